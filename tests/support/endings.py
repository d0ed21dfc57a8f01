"""What children do about interrupts and at their end. Each function is a child's, see ``processes.py``."""

from __future__ import annotations

import atexit
import logging
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
from tests.support.flights import Journal, outcome_of, wait_for_callers
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Channel

NOBODY = 65_534
trace_id: ContextVar[str] = ContextVar("trace_id", default="none")


def fly_in_main(channel: Channel, url: str, key: str, journal: str, work: str, neighbours: int, options: dict[str, Any]) -> Any:
    """The main thread calls ``run`` and is interrupted; then it calls again. ``neighbours`` threads call as well.

    ``work`` is ``wait`` (for the test), or ``thread`` (another thread of this process is the owner, until the test lets it go).
    """
    note = Journal(journal).note
    go = threading.Event()

    def owner() -> str:
        note("thread")
        assert go.wait(40)
        return "thread"

    def mine() -> str:
        note("main")
        channel.send("running")
        time.sleep(40)
        return "main"

    outcomes: list[Any] = []

    def neighbour(function: Callable[[], str]) -> None:
        outcomes.append(outcome_of(lambda: group.run(key, function, **options)))

    with sfs.SingleFlight(url=url, **options) as group:
        threads = []
        if work == "thread":
            threads.append(threading.Thread(target=neighbour, args=(owner,)))
            threads[0].start()
            Journal(journal).wait_for(1)

        def join_in() -> None:
            """Come after the main thread, which leads or waits then."""
            rooms = group._runtime().shared.rooms
            eventually(lambda: rooms.is_open(key), what="the main thread's room")
            if work == "thread":
                wait_for_callers(group, key, 1)
            for _ in range(neighbours):
                threads.append(threading.Thread(target=neighbour, args=(lambda: "neighbour",)))
                threads[-1].start()
            wait_for_callers(group, key, neighbours + (work == "thread"))
            channel.send("joined")

        helper = threading.Thread(target=join_in)
        helper.start()
        try:
            value = group.run(key, mine, **options)
        except KeyboardInterrupt as error:
            channel.send("interrupted" if type(error) is KeyboardInterrupt else repr(error))
        else:
            channel.send(f"not interrupted, but {value}")
        helper.join()
        if work == "thread":
            again = threading.Thread(target=lambda: (channel.wait(), go.set()))
            again.start()
        value = group.run(key, lambda: "again", **options)
        for thread in threads:
            thread.join()
        return {"again": value, "neighbours": sorted(outcome[1] for outcome in outcomes)}


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

    def owner() -> str:
        if role != "owner":
            release.wait(10)
        else:
            time.sleep(0.004)
        return "value"

    def call() -> None:
        outcomes.append(outcome_of(lambda: group.run(key, owner, wait_timeout=20)))

    others = [threading.Thread(target=call) for _ in range(2)]
    if role == "event":
        for other in others:
            other.start()
        eventually(lambda: group._runtime().shared.rooms.is_open(key), what="an owner here")

    def interrupt() -> None:
        if role == "owner":
            for other in others:
                other.start()
        time.sleep(random.uniform(0, 0.012))
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    began = time.monotonic()
    try:
        helper.start()
        group.run(key, owner, wait_timeout=20)
        time.sleep(10)  # it had been done before the signal came
    except KeyboardInterrupt:
        pass
    took = time.monotonic() - began
    helper.join()
    release.set()
    again = outcome_of(lambda: group.run(key, lambda: "again", wait_timeout=10))
    for other in others:
        other.join(20)
    wrong = [f"{key}: {other.name} hangs" for other in others if other.is_alive()]
    wrong += [f"{key}: the interrupt took {took:.1f} s"] if took > 5 else []
    wrong += [f"{key}: again {again}"] if again[0] != "value" else []
    return wrong + [f"{key}: another caller got {outcome}" for outcome in outcomes if outcome != ["value", "value"] and outcome != ["value", "again"]]


def at_the_end(channel: Channel, url: str, journal: str, way: str, used: bool, seconds: float, options: dict[str, Any]) -> None:
    """Call ``run`` when the main thread is over: by ``atexit``, or in a thread that outlives it.

    ``used``: the timer thread runs already. Notes the outcome, and warnings.
    """
    note = Journal(journal).note
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: note("warning")  # type: ignore[method-assign]
    logging.getLogger("singleflight_sync").addHandler(handler)
    group = sfs.SingleFlight(url=url, **options)
    if used:
        group.run("warm", lambda: time.sleep(0.3))

    def function() -> str:
        note("running")
        time.sleep(seconds)
        return "value"

    def call() -> None:
        kind, *rest = outcome_of(lambda: group.run("k", function))
        note(rest[0])
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


def without_threads(channel: Channel, url: str, journal: str, used: bool, seconds: float, options: dict[str, Any]) -> Any:
    """No further thread may be started, as a container's limit on processes does; ``used``: the timer thread runs already."""
    group = sfs.SingleFlight(url=url, **options)
    group.run("warm", lambda: time.sleep(0.3))  # reads what nobody may read afterwards
    if not used:
        keeper.IDLE = 0.0
        eventually(lambda: threading.active_count() == 1, what="the timer thread has ended")
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:  # to whom no limit applies
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        return "threads can be started"
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("singleflight_sync").addHandler(handler)
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
            seen.append((trace_id.get(), translation.get_language(), connection.in_atomic_block, threading.current_thread().name))
        return 1

    with sfs.SingleFlight(url=url, lease=0.4, heartbeat=0.1, ttl=0) as group, transaction.atomic():
        for number in range(flights):
            group.run(f"k{number % 7}", function)
    connection.close()
    return {"seen": sorted(set(seen)), "opened": opened}


def publish_in_main(channel: Channel, url: str, proxy_url: str, options: dict[str, Any]) -> Any:
    """The main thread is interrupted while its publication is held up behind a proxy; then it calls again, past the proxy."""

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
