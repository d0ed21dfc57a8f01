"""Ctrl-C, the end of the interpreter, processes without threads; and whose thread and context the function runs in."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

import singleflight_sync as sfs
from singleflight_sync import keeper
from singleflight_sync.log import Reading
from tests.support import parts
from tests.support.flights import Call, Journal, Listener, Work, wait_for_followers, waiting_here
from tests.support.interrupts import Interrupter
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from tests.support.processes import Child
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2, "ttl": 0}
LONG: dict[str, Any] = {"lease": 60, "heartbeat": 1, "ttl": 0}
META = "ai:flight:meta:{k}"
ENDINGS = "tests.support.endings"

trace_id: ContextVar[str] = ContextVar("trace_id", default="none")


@pytest.fixture(scope="module", autouse=True)
def impatient_keeper() -> Iterator[None]:
    """The timer thread ends with its test, and not two seconds later."""
    idle, keeper.IDLE = keeper.IDLE, 0.1
    yield
    keeper.IDLE = idle


@pytest.fixture
def group(server: Server) -> Iterator[sfs.SingleFlight]:
    with sfs.SingleFlight(url=server.url, **QUICK) as group:
        yield group
        Work.let_all_go()


@pytest.fixture
def there(server: Server) -> Iterator[sfs.SingleFlight]:
    """A group that shares nothing with ``group`` but the server: to Redis, another process."""
    with sfs.SingleFlight(url=server.unix_url, **QUICK) as there:
        yield there
        Work.let_all_go()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    tmp_path.chmod(0o777)  # for children that give their rights away
    return Journal(tmp_path / "journal")


@pytest.fixture
def start_child(server: Server, spawn: Callable[..., Child]) -> Callable[..., Child]:
    """Starts a function of ``tests.support.endings``; children end before the server is looked at."""
    return lambda function, **arguments: spawn(f"{ENDINGS}:{function}", url=server.url, **arguments)


@pytest.fixture
def in_main(start_child: Callable[..., Child], journal: Journal) -> Callable[..., Child]:
    """Starts a child whose main thread calls ``run("k")``, without a limit to its patience."""

    def start(work: str, neighbours: int, **options: Any) -> Child:
        options = {**LONG, "wait_timeout": None, **options}
        return start_child(
            "fly_in_main", key="k", journal=journal.path, work=work, neighbours=neighbours, options=options
        )

    return start


def interrupt(child: Child) -> None:
    child.process.send_signal(signal.SIGINT)


def hear(child: Child, *messages: str) -> None:
    """Receive these messages, in any order."""
    assert sorted(child.receive() for _ in messages) == sorted(messages)


# Ctrl-C, by a real signal, at a known moment


def test_ctrl_c_in_a_follower_on_an_event_harms_nobody(in_main: Callable[..., Child], journal: Journal) -> None:
    child = in_main("thread", 2)
    hear(child, "joined")
    interrupt(child)
    hear(child, "interrupted")
    child.release()
    assert child.result() == {"again": "thread", "neighbours": ["thread"] * 3}
    assert len(journal) == 1


@pytest.mark.parametrize("neighbours", [0, 2])
def test_ctrl_c_in_a_follower_on_the_read_hands_its_lead_over(
    in_main: Callable[..., Child], group: sfs.SingleFlight, journal: Journal, neighbours: int
) -> None:
    work = Work("outside")
    owner = Call(group, "k", work)
    work.wait_for(1)
    child = in_main("main", neighbours)
    hear(child, "joined")
    wait_for_followers(group, "k", 1)
    interrupt(child)
    hear(child, "interrupted")
    eventually(lambda: group.peek("k"), what="the flight goes on")
    time.sleep(LEASE)  # to those who follow on nothing may happen
    work.let_go()
    assert owner.result() == "outside"
    told = child.result()
    assert told["neighbours"] == ["outside"] * neighbours
    assert told["again"] in {"outside", "again"}
    assert (work.runs, len(journal)) == (1, 0)


@pytest.mark.parametrize("neighbours", [0, 2])
def test_ctrl_c_in_the_owner_ends_its_flight_and_the_next_takes_over_at_once(
    in_main: Callable[..., Child], group: sfs.SingleFlight, journal: Journal, neighbours: int
) -> None:
    child = in_main("main", neighbours)
    hear(child, "running", "joined")
    outside = Call(group, "k", lambda: "outside", **LONG)
    wait_for_followers(group, "k", 1)
    interrupt(child)
    hear(child, "interrupted")
    told = child.result()
    values = {outside.result(), told["again"], *told["neighbours"]}
    assert values <= {"outside", "again", "neighbour"}
    assert len(told["neighbours"]) == neighbours
    assert len(journal) == 1


def test_ctrl_c_while_the_value_is_being_published_leaves_nobody_waiting(
    start_child: Callable[..., Child], server: Server, proxy: Proxy, group: sfs.SingleFlight, journal: Journal
) -> None:
    options = {**LONG, "wait_timeout": None}
    held = proxy.hold(lambda raw: b"outlived" in raw)
    child = start_child("publish_in_main", proxy_url=proxy.url, options=options)
    hear(child, "running")
    outside = Call(group, "k", lambda: "outside", **LONG)
    wait_for_followers(group, "k", 1)
    child.release()
    held.wait()
    interrupt(child)
    hear(child, "interrupted")
    assert outside.result() == "outside"  # it was released, as the connection of the publication is cut
    assert child.result() in {"again", "outside"}
    held.release()


def test_a_follower_in_the_main_thread_waits_in_slices(
    group: sfs.SingleFlight, there: sfs.SingleFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes a moment before a wait begins does not end it: the next slice does."""
    pauses: list[tuple[threading.Thread, float | None]] = []
    real_wait, real_read = threading.Event.wait, Reading.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if sys._getframe(1).f_globals["__name__"].startswith("singleflight_sync"):
            pauses.append((threading.current_thread(), timeout))
        return real_wait(event, timeout)

    def read(reading: Reading, timeout: float | None, *others: int) -> bool:
        pauses.append((threading.current_thread(), timeout))
        return real_read(reading, timeout, *others)

    for owner_of, key in ((group, "event"), (there, "read")):
        work = Work("value")
        owner = Call(owner_of, key, work, **LONG)
        work.wait_for(1)
        timer = threading.Timer(0.3, work.let_go)
        timer.start()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Event, "wait", wait)
            patch.setattr(Reading, "wait", read)
            assert group.run(key, work, wait_timeout=None, **LONG) == "value"
        timer.join()
        assert owner.result() == "value"
        mine = [pause for thread, pause in pauses if thread is threading.main_thread()]
        assert mine
        assert all(pause is not None and pause <= 1 for pause in mine)


# Ctrl-C at every moment


def test_real_signals_at_random_moments_are_survived_by_all(start_child: Callable[..., Child]) -> None:
    children = [
        start_child("interrupted_at_random", role=role, times=50, seed=seed)
        for seed, role in enumerate(("owner", "event"))
    ]
    for child in children:
        assert child.result(within=50) == []


class Trial:
    """One call that is interrupted at one moment, and what must hold after it."""

    def __init__(self, group: sfs.SingleFlight, key: str, number: int) -> None:
        self.group = group
        self.key = key
        self.interrupter = Interrupter(number)
        self.others: list[Call] = []
        self.error: BaseException | None = None

    def add_waiter(self, value: str = "value") -> None:
        """Another caller of this process takes a seat in the room, if the interrupt does not come before."""
        count = len(self.others) + 1
        self.others.append(Call(self.group, self.key, lambda: value, wait_timeout=30))
        eventually(
            lambda: waiting_here(self.group, self.key) >= count or self.interrupter.place, what=f"{count} in the room"
        )

    def fly(self, function: Callable[[], str]) -> bool:
        """Call, with the interrupt; False: the call was over before its moment came."""
        thread = threading.Thread(target=self._fly, args=(function,), name="test-interrupted")
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), f"{self.interrupter.place}: hangs"
        assert self.error is None or isinstance(self.error, KeyboardInterrupt), (
            f"{self.interrupter.place}: {self.error!r}"
        )
        return bool(self.interrupter.place)

    def _fly(self, function: Callable[[], str]) -> None:
        try:
            self.interrupter.run(lambda: self.group.run(self.key, function, wait_timeout=30))
        except BaseException as error:  # noqa: BLE001 - looked at in fly()
            self.error = error.with_traceback(None)  # which would keep connections in a cycle

    def check(self, *allowed: str) -> list[str]:
        """What is wrong now."""
        wrong: list[str] = [] if self.error is not None else ["the interrupt was swallowed"]
        for call in [*self.others, Call(self.group, self.key, lambda: "again", wait_timeout=30)]:
            try:
                value = call.result(within=5)
            except BaseException as error:  # noqa: BLE001 - reported
                wrong.append(f"another caller: {error!r}")
            else:
                wrong += [] if value in {*allowed, "again"} else [f"another caller got {value!r}"]
        shared = self.group._runtime().shared
        if shared.rooms.is_open(self.key):
            wrong.append("a room is left open")
        if any(lease.names.key == self.key and lease._end is None for lease in shared.leases):
            wrong.append("a flight is left in the air")
        return [f"{self.interrupter.place}: {each}" for each in wrong]


@pytest.fixture
def tiny(server: Server) -> Iterator[sfs.SingleFlight]:
    """A group whose leases are short: an interrupted claim may cost its key one of them."""
    with sfs.SingleFlight(url=server.url, lease=0.2, heartbeat=0.1, ttl=0) as group:
        group.run("warm", lambda: 1)
        yield group


def try_all(trial: Callable[[int], tuple[bool, list[str]]]) -> None:
    """Try all moments, until the call is over before its moment comes; stop after five that went wrong."""
    number = 0
    wrong: list[str] = []
    while len(wrong) < 5:
        reached, complaints = trial(number)
        if not reached:
            break
        wrong += complaints
        number += 1
    assert wrong == []
    assert number > 50


needs_exact_moments = pytest.mark.skipif(
    sys.version_info < (3, 12), reason=f"{parts.NOT_APPLICABLE}these moments are those of Python 3.12 and later"
)


@needs_exact_moments
def test_an_owner_may_be_interrupted_at_any_moment(tiny: sfs.SingleFlight) -> None:
    def trial(number: int) -> tuple[bool, list[str]]:
        trial = Trial(tiny, f"k{number}", number)

        def function() -> str:
            trial.add_waiter()
            trial.add_waiter()
            return "value"

        reached = trial.fly(function)
        return reached, trial.check("value") if reached else []

    try_all(trial)


@needs_exact_moments
def test_a_follower_on_an_event_may_be_interrupted_at_any_moment(tiny: sfs.SingleFlight) -> None:
    def trial(number: int) -> tuple[bool, list[str]]:
        trial = Trial(tiny, f"k{number}", number)
        work = Work("value")
        trial.others.append(Call(tiny, trial.key, work, wait_timeout=30))
        work.wait_for(1)
        timer = threading.Timer(0.01, work.let_go)
        timer.start()
        reached = trial.fly(lambda: "mine")
        timer.join()
        return reached, trial.check("value", "mine") if reached else []

    try_all(trial)


@needs_exact_moments
def test_a_follower_on_the_read_may_be_interrupted_at_any_moment(
    tiny: sfs.SingleFlight, there: sfs.SingleFlight
) -> None:
    """It leads in its process: two more callers wait for it, and must not wait for the lease."""

    def trial(number: int) -> tuple[bool, list[str]]:
        trial = Trial(tiny, f"k{number}", number)
        work = Work("value")
        owner = Call(there, trial.key, work, **LONG)
        work.wait_for(1)

        def join_in_and_let_go() -> None:
            try:
                eventually(lambda: tiny._runtime().shared.rooms.is_open(trial.key), within=0.02)
            except AssertionError:
                pass  # interrupted before it opened a room
            else:
                trial.add_waiter("mine")
                trial.add_waiter("mine")
            work.let_go()

        helper = threading.Thread(target=join_in_and_let_go)
        helper.start()
        reached = trial.fly(lambda: "mine")
        helper.join()
        complaints = trial.check("value", "mine") if reached else []
        assert owner.result() == "value"
        return reached, complaints

    try_all(trial)


# The end of the interpreter


@pytest.mark.parametrize("way", ["atexit", "thread"])
def test_a_flight_after_the_main_thread_has_ended_takes_one_long_lease_where_no_thread_can_start(
    start_child: Callable[..., Child], journal: Journal, client: redis.Redis, way: str
) -> None:
    options = {**QUICK, "hard_timeout": 30}
    child = start_child("at_the_end", journal=journal.path, way=way, used=False, seconds=2 * LEASE, options=options)
    eventually(lambda: "running" in notes(journal), within=20, what="an execution")
    lease = int(client.hget(META, "leaseMs") or 0)
    assert child.wait() == 0, child.errors()
    if notes(journal)[0] == "a thread can start":  # not so under Python 3.12
        assert sys.version_info[:2] != (3, 12)
        assert (lease, notes(journal)[1:]) == (LEASE * 1000, ["running", "value"])
    else:
        assert (lease, notes(journal)[1:]) == (30_000, ["warning", "running", "value"])
    assert not client.exists(META)
    assert "Traceback" not in child.errors()


@pytest.mark.parametrize("way", ["atexit", "thread", "thread before"])
def test_a_flight_after_the_main_thread_has_ended_is_beaten_for_by_a_timer_that_runs_already(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight, client: redis.Redis, way: str
) -> None:
    child = start_child("at_the_end", journal=journal.path, way=way, used=True, seconds=4 * LEASE, options=QUICK)
    eventually(lambda: "running" in notes(journal), within=20, what="an execution")
    assert client.hget(META, "leaseMs") == b"600"
    assert group.run("k", lambda: "outside") == "value"
    assert child.wait() == 0, child.errors()
    assert notes(journal)[1:] == ["running", "value"]
    assert not client.exists(META)


def notes(journal: Journal) -> list[str]:
    return [note.who for note in journal.notes()]


# No more threads


def test_where_no_thread_can_start_a_flight_takes_one_long_lease_with_one_warning(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight, client: redis.Redis
) -> None:
    options = {**QUICK, "hard_timeout": 30}
    child = start_child("without_threads", journal=journal.path, used=False, seconds=2 * LEASE, options=options)
    assert child.receive() == "running"
    follower = Call(group, "k", lambda: "outside")
    told = child.result()
    assert told["outcome"] == ["value", "value"]
    assert follower.result() == "value"
    assert (told["lease"], told["next"], len(told["warnings"])) == (30, ["value", 1], 1)
    assert not client.exists(META)


def test_where_no_heartbeat_thread_can_start_the_timer_beats_itself(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight, client: redis.Redis
) -> None:
    child = start_child("without_threads", journal=journal.path, used=True, seconds=4 * LEASE, options=QUICK)
    assert child.receive() == "running"
    follower = Call(group, "k", lambda: "outside")
    told = child.result()
    assert told["outcome"] == ["value", "value"]
    assert follower.result() == "value"
    assert (told["lease"], told["next"], told["warnings"]) == (LEASE, ["value", 1], [])
    assert not client.exists(META)


@pytest.mark.parametrize("limit", ["hard_timeout", "stall_timeout"])
def test_where_no_heartbeat_thread_can_start_a_flight_is_bound_all_the_same(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight, limit: str
) -> None:
    child = start_child("without_threads", journal=journal.path, used=True, seconds=0, options={**QUICK, limit: 1.2})
    assert child.receive() == "running"
    follower = Call(group, "k", lambda: "outside")
    assert isinstance(follower.error(), sfs.HardTimeoutError)
    assert child.result()["outcome"][:2] == ["error", "HardTimeoutError"]


def test_a_listed_flight_is_listed_also_where_the_timer_beats(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight
) -> None:
    child = start_child("without_threads", journal=journal.path, used=True, seconds=4 * LEASE, options=QUICK)
    assert child.receive() == "running"
    eventually(lambda: [info.key for info in group.live()] == ["k"], what="the flight is listed")
    child.result()


# Threads and contexts


def test_the_function_runs_in_its_callers_thread_and_context(group: sfs.SingleFlight) -> None:
    def function() -> list[Any]:
        seen = [threading.get_ident(), trace_id.get()]
        trace_id.set("changed inside")
        return seen

    token = trace_id.set("mine")
    try:
        assert group.run("k", function) == [threading.get_ident(), "mine"]
        assert trace_id.get() == "changed inside"
    finally:
        trace_id.reset(token)
    assert sfs.current_flight() is None


def test_a_function_that_takes_over_runs_in_its_callers_thread_and_context(
    group: sfs.SingleFlight, there: sfs.SingleFlight
) -> None:
    leave = Work("never")

    def function() -> None:
        leave()
        raise SystemExit

    def heir() -> str:
        trace_id.set("heir")
        me = threading.get_ident()
        value: str = group.run("k", lambda: f"{threading.get_ident() == me} {trace_id.get()}")
        return value

    owner = Call(there, "k", function)
    leave.wait_for(1)
    follower = Call(there, "unrelated", heir)
    wait_for_followers(there, "k", 1)
    leave.let_go()
    assert isinstance(owner.error(), SystemExit)
    assert follower.result() == "True heir"


def test_helper_threads_know_nothing_of_the_callers_context(proxy: Proxy) -> None:
    seen: list[tuple[str, str]] = []

    def hear(_: str) -> None:
        seen.append((threading.current_thread().name, trace_id.get()))

    token = trace_id.set("the caller's")
    try:
        with sfs.SingleFlight(url=proxy.url, **QUICK) as behind, Listener(hear):

            def function() -> str:
                proxy.refuse()
                assert sfs.current_flight().cancel_token.wait(20)  # type: ignore[union-attr]
                eventually(lambda: seen, what="a word of the heartbeat")
                return "value"

            assert behind.run("k", function) == "value"
    finally:
        trace_id.reset(token)
    told = dict(seen)
    assert told["singleflight-heartbeat"] == "none"


def test_django_finds_its_language_and_transaction_and_no_further_connection(start_child: Callable[..., Child]) -> None:
    if importlib.util.find_spec("django") is None:
        parts.missing("no Django: install the extra 'django'")
    told = start_child("django_in_the_function", flights=500).result(within=50)
    assert told["seen"] == [["trace", "fr", True, "MainThread"]]
    assert told["opened"] == ["MainThread"]


def test_each_long_flight_has_one_heartbeat_thread_that_ends_with_it(group: sfs.SingleFlight) -> None:
    def heartbeats() -> int:
        return sum(thread.name == "singleflight-heartbeat" for thread in threading.enumerate())

    works = [Work(number) for number in range(12)]
    calls = [Call(group, f"k{number}", work) for number, work in enumerate(works)]
    waiting = [Call(group, f"k{number}", work) for number, work in enumerate(works)]
    eventually(lambda: heartbeats() == 12, what="twelve heartbeats")
    for number, work in enumerate(works[:6]):
        work.let_go()
        assert calls[number].result() == waiting[number].result() == number
    eventually(lambda: heartbeats() == 6, what="six heartbeats")
    for work in works[6:]:
        work.let_go()
    assert [call.result() for call in calls + waiting] == list(range(12)) * 2
    eventually(lambda: heartbeats() == 0, what="no heartbeat")


def test_short_flights_start_no_thread_but_the_timer(group: sfs.SingleFlight, monkeypatch: pytest.MonkeyPatch) -> None:
    group.run("k", lambda: 1, heartbeat=5, lease=10)
    started: list[str] = []
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started.append(thread.name)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for number in range(100):
        group.run(f"k{number}", lambda: 1, heartbeat=5, lease=10)
    assert set(started) <= {"singleflight-keeper"}
