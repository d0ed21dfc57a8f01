"""What children do about interrupts and at their end. Each function is a child's, see ``processes.py``."""

from __future__ import annotations

import atexit
import os
import random
import resource
import signal
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import singleflight_sync as sfs
from singleflight_sync import keeper
from tests.support.flights import Journal, Listener, outcome_of, wait_for_callers
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Channel

NOBODY = 65_534
trace_id: ContextVar[str] = ContextVar("trace_id", default="none")


class Household:
    """The callers of one child: the main thread, which is interrupted, and other threads."""

    def __init__(self, channel: Channel, group: sfs.SingleFlight, key: str, journal: Journal) -> None:
        self.channel = channel
        self.group = group
        self.key = key
        self.journal = journal
        self.threads: list[threading.Thread] = []
        self.outcomes: list[Any] = []
        self._go = threading.Event()

    def add(self, function: Callable[[], str]) -> None:
        """One more caller, in a thread."""

        def call() -> None:
            self.outcomes.append(outcome_of(lambda: self.group.run(self.key, function)))

        self.threads.append(threading.Thread(target=call))
        self.threads[-1].start()

    def add_owner(self) -> None:
        """Another thread owns the flight, until the test lets it go."""

        def function() -> str:
            self.journal.note("thread")
            assert self._go.wait(40)
            return "thread"

        self.add(function)
        self.journal.wait_for(1)

    def add_neighbours(self, count: int, already: int) -> None:
        """Callers that come after the main thread, which leads, or waits like ``already`` (1 or 0) before them."""
        rooms = self.group._runtime().shared.rooms
        eventually(lambda: rooms.is_open(self.key), what="a room")
        wait_for_callers(self.group, self.key, already)
        for _ in range(count):
            self.add(lambda: "neighbour")
        wait_for_callers(self.group, self.key, already + count)
        self.channel.send("joined")

    def let_go(self) -> None:
        """Wait for the test, and let the owner go."""
        self.channel.wait()
        self._go.set()

    def be_interrupted(self) -> None:
        """Call ``run`` and tell how that ended."""

        def function() -> str:
            self.journal.note("main")
            self.channel.send("running")
            time.sleep(40)
            return "main"

        try:
            value = self.group.run(self.key, function)
        except KeyboardInterrupt as error:
            self.channel.send("interrupted" if type(error) is KeyboardInterrupt else repr(error))
        else:
            self.channel.send(f"not interrupted, but {value}")


def fly_in_main(
    channel: Channel, url: str, key: str, journal: str, work: str, neighbours: int, options: dict[str, Any]
) -> Any:
    """The main thread calls ``run`` and is interrupted; then it calls again. ``neighbours`` threads call as well.

    ``work`` is ``main`` (the main thread may become the owner), or ``thread`` (another thread of this process
    is the owner, until the test lets it go).
    """
    with sfs.SingleFlight(url=url, **options) as group:
        house = Household(channel, group, key, Journal(journal))
        if work == "thread":
            house.add_owner()
        helper = threading.Thread(target=house.add_neighbours, args=(neighbours, int(work == "thread")))
        helper.start()
        house.be_interrupted()
        helper.join()
        if work == "thread":
            threading.Thread(target=house.let_go).start()
        value = group.run(key, lambda: "again")
        for thread in house.threads:
            thread.join()
        return {"again": value, "neighbours": sorted(outcome[1] for outcome in house.outcomes)}


def interrupted_at_random(channel: Channel, url: str, role: str, times: int, seed: int) -> list[str]:
    """Real signals at random moments; returns what went wrong."""
    random.seed(seed)
    wrong: list[str] = []
    with sfs.SingleFlight(url=url, lease=0.4, heartbeat=0.1, ttl=0) as group:
        for number in range(times):
            wrong += _interrupted_once(group, f"k{number}", role)
            if wrong:
                break
    return wrong


def _interrupted_once(group: sfs.SingleFlight, key: str, role: str) -> list[str]:
    release = threading.Event()
    outcomes: list[Any] = []

    def function() -> str:
        if role == "owner":
            time.sleep(0.004)
        else:
            release.wait(10)
        return "value"

    def call() -> None:
        outcomes.append(outcome_of(lambda: group.run(key, function, wait_timeout=20)))

    others = [threading.Thread(target=call, name=f"other {number}") for number in range(2)]
    if role == "event":
        _start(others)
        eventually(lambda: group._runtime().shared.rooms.is_open(key), what="an owner here")
    began = time.monotonic()
    _run_interrupted(lambda: group.run(key, function, wait_timeout=20), others if role == "owner" else [])
    wrong = [f"{key}: the interrupt took long"] if time.monotonic() - began > 5 else []
    release.set()
    outcomes.append(outcome_of(lambda: group.run(key, lambda: "again", wait_timeout=10)))
    for other in others:
        other.join(20)
    wrong += [f"{key}: {other.name} hangs" for other in others if other.is_alive()]
    return wrong + [f"{key}: {outcome}" for outcome in outcomes if outcome[1] not in {"value", "again"}]


def _start(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()


def _run_interrupted(call: Callable[[], Any], others: list[threading.Thread]) -> None:
    """Call, and be interrupted at a random moment, at the latest after the call."""

    def interrupt() -> None:
        _start(others)
        time.sleep(random.uniform(0, 0.012))
        signal.pthread_kill(main, signal.SIGINT)  # kill() may have it handled by a thread that wakes nobody

    main = threading.get_ident()
    helper = threading.Thread(target=interrupt)
    try:
        helper.start()
        call()
        while True:
            time.sleep(0.01)  # it was done before the signal came
    except KeyboardInterrupt:
        pass
    helper.join()


def at_the_end(
    channel: Channel, *, url: str, journal: str, way: str, used: bool, seconds: float, options: dict[str, Any]
) -> None:
    """Call ``run`` when the main thread is over: by ``atexit``, or in a thread that outlives it.

    ``used``: the timer thread runs already. Notes whether a thread can start then, the outcome, and warnings.
    """
    note = Journal(journal).note
    Listener(lambda _: note("warning")).__enter__()
    group = sfs.SingleFlight(url=url, **options)
    if used:
        group.run("warm", lambda: time.sleep(0.3))

    def function() -> str:
        note("running")
        time.sleep(seconds)
        return "value"

    def call() -> None:
        note("a thread can start" if _can_start_a_thread() else "no thread can start")
        note(outcome_of(lambda: group.run("k", function))[1])
        group.close()

    def outlive() -> None:
        threading.main_thread().join()
        call()

    if way == "atexit":
        atexit.register(call)
    elif way == "thread":
        threading.Thread(target=outlive).start()
    else:
        assert way == "thread before"
        threading.Thread(target=call).start()


def _can_start_a_thread() -> bool:
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return False
    return True


def without_threads(
    channel: Channel, *, url: str, journal: str, used: bool, seconds: float, options: dict[str, Any]
) -> Any:
    """No further thread may be started, as under a container's limit; ``used``: the timer thread runs already."""
    group = sfs.SingleFlight(url=url, **options)
    group.run("warm", lambda: time.sleep(0.3))  # reads what nobody may read afterwards
    if not used:
        keeper.IDLE = 0.0
        eventually(lambda: threading.active_count() == 1, what="the timer thread has ended")
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:  # to whom no limit applies
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if _can_start_a_thread():
        return "threads can be started"
    warnings: list[str] = []
    Listener(warnings.append).__enter__()
    seen: dict[str, Any] = {}

    def function() -> str:
        channel.send("running")
        if seconds:
            time.sleep(seconds)
        else:
            token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
            token.wait(30)
            token.checkpoint()
        info = group.peek("k")
        seen["lease"] = info and info.lease
        return "value"

    seen["outcome"] = outcome_of(lambda: group.run("k", function))
    seen["next"] = outcome_of(lambda: group.run("next", lambda: 1))
    seen["warnings"] = warnings
    group.close()
    return seen


def django_in_the_function(channel: Channel, url: str, flights: int) -> Any:
    """Context variable, language and transaction are there inside the function; helpers open no database connection."""
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415

    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    settings.configure(DATABASES=databases, USE_I18N=True, INSTALLED_APPS=["django.contrib.contenttypes"])
    django.setup()
    from django.db import connections, transaction  # noqa: PLC0415
    from django.utils import translation  # noqa: PLC0415

    connection = connections["default"]
    opened: list[str] = []
    real = type(connection).get_new_connection

    def counted(self: Any, params: Any) -> Any:
        opened.append(threading.current_thread().name)
        return real(self, params)

    type(connection).get_new_connection = counted
    trace_id.set("trace")
    translation.activate("fr")
    seen: list[Any] = []

    def function() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            if len(seen) == 0:
                time.sleep(0.5)  # long enough for a heartbeat
            seen.append(
                (
                    trace_id.get(),
                    translation.get_language(),
                    connection.in_atomic_block,
                    threading.current_thread().name,
                )
            )
        return 1

    with sfs.SingleFlight(url=url, lease=0.4, heartbeat=0.1, ttl=0) as group, transaction.atomic():
        for number in range(flights):
            group.run(f"k{number % 7}", function)
    connection.close()
    return {"seen": sorted(set(seen)), "opened": opened}


def publish_in_main(channel: Channel, url: str, proxy_url: str, options: dict[str, Any]) -> Any:
    """The main thread is interrupted while a proxy holds up its publication; then it calls again, past the proxy."""

    def function() -> str:
        channel.send("running")
        channel.wait()
        return "outlived"

    with sfs.SingleFlight(url=proxy_url, **options) as behind:
        try:
            behind.run("k", function)
        except KeyboardInterrupt:
            channel.send("interrupted")
    with sfs.SingleFlight(url=url, **options) as group:
        return group.run("k", lambda: "again")
