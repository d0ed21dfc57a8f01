"""Redis that is refused, cut off, silent or stopped: what a request pays, and what its callers get."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import SingleFlight, StoreError, WaitTimeoutError
from tests.support.callers import answer, end_pause, foreign, instant, making_groups, wait_for_beats, wait_for_readers
from tests.support.flights import Call, Work, wait_for_callers
from tests.support.liar import nowhere
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.callers import Make
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

MODES = ["refused", "black hole", "dropped", "stopped"]
ABOUT_ONE_TIMEOUT = 6.0  # seconds; a connection and an answer are waited for up to 1 s + 2 s


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


class Fault:
    """One way of being unreachable, at a port."""

    def __init__(self, mode: str, server: Server, proxy: Proxy, stack: ExitStack) -> None:
        self.port = stack.enter_context(nowhere()) if mode == "dropped" else proxy.port
        self._mode, self._server, self._proxy = mode, server, proxy
        self._stack = stack

    def begin(self) -> None:
        if self._mode == "refused":
            self._proxy.refuse()
        elif self._mode == "black hole":
            self._proxy.black_hole()
        elif self._mode == "stopped":
            self._server.pause()
            self._stack.callback(self._server.resume)

    def end(self) -> None:
        if self._mode == "stopped":
            self._server.resume()
        else:
            self._proxy.forward()


@pytest.fixture(params=MODES)
def fault(request: pytest.FixtureRequest, server: Server, proxy: Proxy) -> Iterator[Fault]:
    with ExitStack() as stack:
        yield Fault(request.param, server, proxy, stack)


def is_failure(given: object) -> bool:
    return isinstance(given, StoreError)


@pytest.mark.parametrize(("policy", "expected"), [("run", "value"), ("raise", True)])
def test_a_request_with_ten_calls_pays_about_one_timeout(
    server: Server, fault: Fault, group: Make, policy: str, expected: object
) -> None:
    client = server.client(port=fault.port, socket_timeout=None, socket_connect_timeout=None)
    flights = group(client, on_store_error=policy)
    fault.begin()
    begin = time.monotonic()
    answers = [answer(flights.run, f"k{number}", instant("value")) for number in range(10)]
    assert time.monotonic() - begin < ABOUT_ONE_TIMEOUT
    assert [is_failure(each) if policy == "raise" else each for each in answers] == 10 * [expected]


@pytest.mark.parametrize(("policy", "expected"), [("run", "default"), ("raise", True)])
def test_a_request_with_ten_reads_pays_about_one_timeout(
    server: Server, fault: Fault, group: Make, policy: str, expected: object
) -> None:
    flights = group(server.client(port=fault.port), on_store_error=policy)
    fault.begin()
    begin = time.monotonic()
    answers = [answer(flights.get, f"k{number}", "default") for number in range(10)]
    assert time.monotonic() - begin < ABOUT_ONE_TIMEOUT
    assert [is_failure(each) if policy == "raise" else each for each in answers] == 10 * [expected]


def test_the_short_patience_of_the_client_is_not_ours(server: Server, proxy: Proxy, group: Make) -> None:
    flights = group(server.client(port=proxy.port, socket_timeout=0.02), on_store_error="raise", ttl=60)
    flights.run("warm", instant("value"))
    proxy.delay(0.1)
    assert (flights.run("k", instant("value")), flights.get("k")) == ("value", "value")


def test_an_established_connection_that_hangs_costs_no_more(server: Server, proxy: Proxy, group: Make) -> None:
    flights = group(server.client(port=proxy.port))
    flights.run("k", instant("value"))
    proxy.black_hole()
    begin = time.monotonic()
    answers = [flights.run(f"k{number}", instant("value")) for number in range(10)]
    assert (answers, time.monotonic() - begin < ABOUT_ONE_TIMEOUT) == (10 * ["value"], True)


OPERATIONS: dict[str, tuple[Callable[[SingleFlight], Any], Any]] = {
    "run": (lambda flights: flights.run("k", instant("second")), "value"),
    "run anew": (lambda flights: flights.run("new", instant("second")), "second"),
    "get": (lambda flights: flights.get("k"), "value"),
    "forget": (lambda flights: flights.forget("k"), True),
    "cancel": (lambda flights: flights.cancel("k"), False),
    "peek": (lambda flights: flights.peek("k"), None),
    "live": (lambda flights: flights.live(), []),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_idle_connection_that_was_cut_is_replaced_without_a_word(
    server: Server, proxy: Proxy, group: Make, operation: str
) -> None:
    """A restarted server, a firewall, the server's own ``timeout``."""
    act, expected = OPERATIONS[operation]
    flights = group(server.client(port=proxy.port), ttl=60, on_store_error="raise")
    assert flights.run("k", instant("value")) == "value"
    assert flights.live() == []
    proxy.cut()
    eventually(lambda: not proxy.open)
    assert act(flights) == expected


@pytest.mark.parametrize("operation", ["forget", "cancel", "peek", "live"])
def test_an_operator_is_told_at_once_that_redis_is_gone(
    server: Server, proxy: Proxy, group: Make, operation: str
) -> None:
    act, _ = OPERATIONS[operation]
    flights = group(server.client(port=proxy.port))
    proxy.refuse()
    begin = time.monotonic()
    with pytest.raises(StoreError, match="check that the server is up"):
        act(flights)
    assert time.monotonic() - begin < ABOUT_ONE_TIMEOUT


def test_threads_share_the_flight_without_redis(server: Server, proxy: Proxy, group: Make) -> None:
    flights, work = group(server.client(port=proxy.port)), Work(["v"])
    proxy.refuse()
    calls = [Call(flights, "k", work) for _ in range(20)]
    work.wait_for(1)
    wait_for_callers(flights, "k", 19)
    work.let_go()
    values = [call.result() for call in calls]
    assert (values, work.runs, len({id(value) for value in values})) == (20 * [["v"]], 1, 20)


def test_after_the_pause_redis_is_used_again(server: Server, proxy: Proxy, group: Make) -> None:
    flights = group(server.client(port=proxy.port), ttl=60)
    proxy.refuse()
    flights.run("k", instant("first"))
    proxy.forward()
    assert flights.run("k", instant("second")) == "second", "within the pause nothing is asked"
    assert server.client().exists("ai:flight:owner-seq") == 0
    end_pause(flights)
    assert flights.run("k", instant("third")) == "third"
    assert flights.run("k", instant("fourth")) == "third"


def test_after_the_pause_one_caller_pays_for_the_next_attempt(server: Server, proxy: Proxy, group: Make) -> None:
    flights = group(server.client(port=proxy.port))
    proxy.black_hole()
    flights.run("k", instant("value"))
    end_pause(flights)
    connections = proxy.connections
    begin = time.monotonic()
    calls = [Call(flights, f"k{number}", instant("value")) for number in range(10)]
    assert [call.result() for call in calls] == 10 * ["value"]
    assert (proxy.connections - connections, time.monotonic() - begin < ABOUT_ONE_TIMEOUT) == (1, True)


def test_a_caller_that_never_waits_gets_no_store_error(server: Server, proxy: Proxy, group: Make) -> None:
    flights, work = group(server.client(port=proxy.port)), Work("value")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    proxy.refuse()
    with pytest.raises(WaitTimeoutError):
        flights.run("k", instant("value"), wait_timeout=0)
    work.let_go()
    assert owner.result() == "value"


@pytest.mark.parametrize(("policy", "expected"), [("run", "value"), ("raise", True)])
def test_an_owner_that_cannot_publish_runs_its_function_once(
    server: Server, proxy: Proxy, group: Make, policy: str, expected: object
) -> None:
    flights, work = group(server.client(port=proxy.port), on_store_error=policy), Work("value")
    calls = [Call(flights, "k", work) for _ in range(3)]
    work.wait_for(1)
    wait_for_callers(flights, "k", 2)
    proxy.refuse()
    work.let_go()
    answers = [answer(call.result) for call in calls]
    assert work.runs == 1
    assert [is_failure(each) if policy == "raise" else each for each in answers] == 3 * [expected]


def test_an_outage_shorter_than_the_lease_is_nobodys_business(server: Server, proxy: Proxy, group: Make) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client(port=proxy.port), lease=4.0), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), lease=4.0), "k", second)
    wait_for_readers(server, 1)
    proxy.refuse()
    wait_for_readers(server, 0)
    proxy.forward()
    wait_for_readers(server, 1)
    work.let_go()
    assert (owner.result(), follower.result(), work.runs, second.runs) == ("value", "value", 1, 0)


def test_a_follower_that_missed_the_lease_in_an_outage_gives_the_owner_time(
    server: Server, proxy: Proxy, group: Make
) -> None:
    """The owner beats through another way; the follower is away for a moment, and loses its read."""
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client()), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port)), "k", second)
    wait_for_readers(server, 1)
    proxy.refuse()
    wait_for_readers(server, 0)
    proxy.forward()
    wait_for_readers(server, 1)
    wait_for_beats(server.client(), 8)
    assert not follower.done
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


@pytest.mark.parametrize("policy", ["run", "raise"])
def test_a_follower_that_stays_cut_off_obeys_the_policy(server: Server, proxy: Proxy, group: Make, policy: str) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client()), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), on_store_error=policy), "k", second)
    wait_for_readers(server, 1)
    proxy.refuse()
    if policy == "run":
        assert follower.result() == "second"
    else:
        assert isinstance(follower.error(), StoreError)
    work.let_go()
    assert owner.result() == "value"
