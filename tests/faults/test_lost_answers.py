"""A command that the server executed and whose answer was lost: it is sent again, and must not count twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import FlightCancelledError
from singleflight_sync.sender import script as prepared
from tests.support.callers import META, answer, foreign, instant, making_groups, wait_for_beats, wait_for_readers
from tests.support.flights import Call, Work
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.callers import Make
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

STREAM = "ai:flight:stream:{k}"
LONG: dict[str, Any] = {"lease": 20.0, "heartbeat": 10.0}
SHARED = ("value", "value", 1)


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


@pytest.fixture(autouse=True)
def scripts_are_known(server: Server, group: Make) -> None:
    """So that a script is sent by its digest, and executed by the first request."""
    flights = group(server.client(), lease=1.0, heartbeat=0.2)
    work = Work("value")
    owner = Call(flights, "warm", work)
    eventually(flights.live, what="it is listed")
    eventually(lambda: flights.peek("warm").heartbeat_age < flights.peek("warm").age / 2)  # type: ignore[union-attr]
    flights.forget("warm")
    flights.cancel("warm")
    work.let_go()
    owner.error()
    flights.run("warm", lambda: 1)
    answer(flights.run, "warm too", lambda: 1 // 0)
    flights.close()


def of(script: str) -> Callable[[bytes], bool]:
    """Matches the requests of a script."""
    digest = prepared(script).by_digest
    return lambda raw: digest in raw


def events(client: Any) -> list[bytes]:
    return [fields[b"event"] for _, fields in client.xrange(STREAM)]


def fly(
    server: Server, proxy: Proxy, group: Make, function: Callable[[], Any], **options: Any
) -> tuple[Call, Call, Work]:
    """An owner behind the proxy, and a follower that is not."""
    second = instant("second")
    owner = Call(group(server.client(port=proxy.port), **options), "k", function)
    wait_for_owner(server)
    follower = Call(group(foreign(server), **options), "k", second)
    wait_for_readers(server, 1)
    return owner, follower, second


def wait_for_owner(server: Server) -> None:
    eventually(lambda: server.client().exists(META), what="the flight is claimed")


@pytest.mark.parametrize("times", [1, 2])
def test_a_claim_that_lost_its_answer_owns_its_flight(server: Server, proxy: Proxy, group: Make, times: int) -> None:
    rule = proxy.cut_before_reply(of("claim"), times=times)
    flights = group(server.client(port=proxy.port), **LONG, on_store_error="run")
    begin = events(server.client())
    work = Work("value")
    owner = Call(flights, "k", work)
    rule.wait()
    work.wait_for(1)
    work.let_go()
    assert (owner.result(), begin) == ("value", [])
    if times == 1:
        assert events(server.client()) == [b"claimed", b"succeeded"]


def test_a_claim_to_wait_that_lost_its_answer_waits(server: Server, proxy: Proxy, group: Make) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(foreign(server), **LONG), "k", work)
    work.wait_for(1)
    rule = proxy.cut_before_reply(of("claim"))
    follower = Call(group(server.client(port=proxy.port), **LONG), "k", second)
    rule.wait()
    wait_for_readers(server, 1)
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


def test_a_beat_that_lost_its_answer_is_one_beat(server: Server, proxy: Proxy, group: Make) -> None:
    work = Work("value")
    owner, follower, second = fly(server, proxy, group, work)
    rule = proxy.cut_before_reply(of("renew"), times=3)
    rule.wait()
    wait_for_beats(server.client(), 4)
    work.let_go()
    assert (owner.result(), follower.result(), work.runs + second.runs) == SHARED
    assert events(server.client()) == [b"claimed", b"succeeded"]


@pytest.mark.parametrize("ttl", [0, 60])
def test_a_publication_that_lost_its_answer_is_one_publication(
    server: Server, proxy: Proxy, group: Make, ttl: float
) -> None:
    work = Work("value")
    owner, follower, second = fly(server, proxy, group, work, **LONG, ttl=ttl)
    rule = proxy.cut_before_reply(of("publish"), times=2)
    work.let_go()
    rule.wait()
    assert (owner.result(), follower.result(), work.runs + second.runs) == SHARED
    assert events(server.client()) == [b"claimed", b"succeeded"]


def test_a_publication_that_lost_its_answer_is_done_although_the_next_flight_has_begun(
    server: Server, proxy: Proxy, group: Make
) -> None:
    work, third = Work("value"), Work("third")
    owner, follower, second = fly(server, proxy, group, work, **LONG, ttl=0)
    rule = proxy.cut_before_reply(of("publish"))
    proxy_closed = proxy.hold(of("publish"))  # the one that is sent again
    work.let_go()
    rule.wait()
    proxy_closed.wait()
    assert follower.result() == "value"
    next_owner = Call(group(foreign(server), **LONG, ttl=0), "k", third)
    third.wait_for(1)
    proxy_closed.release()
    assert owner.result(within=10) == "value"
    third.let_go()
    assert (next_owner.result(), second.runs) == ("third", 0)
    assert events(server.client()) == [b"claimed", b"succeeded"] * 2


def test_a_failure_that_lost_its_answer_is_one_failure(server: Server, proxy: Proxy, group: Make) -> None:
    work = Work("value")

    mine = ValueError("on purpose")

    def fail() -> None:
        work()
        raise mine

    owner, follower, second = fly(server, proxy, group, fail, **LONG)
    rule = proxy.cut_before_reply(of("finish"), times=2)
    work.let_go()
    rule.wait()
    assert (owner.error() is mine, type(follower.error()), second.runs) == (True, ValueError, 0)
    assert events(server.client()) == [b"claimed", b"failed"]


def test_a_release_that_lost_its_answer_hands_over_once(server: Server, proxy: Proxy, group: Make) -> None:
    work = Work("value")

    def interrupt() -> None:
        work()
        raise KeyboardInterrupt

    owner, follower, second = fly(server, proxy, group, interrupt, **LONG)
    rule = proxy.cut_before_reply(of("finish"))
    work.let_go()
    rule.wait()
    assert isinstance(owner.error(), KeyboardInterrupt)
    assert (follower.result(), second.runs) == ("second", 1)
    assert events(server.client()) == [b"claimed", b"released", b"claimed", b"succeeded"]


def test_a_takeover_that_lost_its_answer_does_not_fence_its_own_caller(
    server: Server, proxy: Proxy, group: Make
) -> None:
    work, second = Work("value"), instant("second")
    away = group(foreign(server), lease=1.0, heartbeat=0.2)
    owner = Call(away, "k", work)
    work.wait_for(1)
    follower = Call(group(server.client(port=proxy.port), on_store_error="raise"), "k", second)
    wait_for_readers(server, 1)
    rule = proxy.cut_before_reply(of("claim"), times=2)  # a look, or the claim itself
    away.close()
    rule.wait()
    assert (follower.result(), second.runs) == ("second", 1)
    assert events(server.client()) == [b"claimed", b"released", b"claimed", b"succeeded"]
    work.let_go()
    assert answer(owner.result) == "value", "a closed group's callers get their own value"


@pytest.mark.parametrize("act", ["cancel", "forget"])
def test_an_order_that_lost_its_answer_counts_once(server: Server, proxy: Proxy, group: Make, act: str) -> None:
    work = Work("value")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    rule = proxy.cut_before_reply(of(act))
    assert getattr(group(server.client(port=proxy.port)), act)("k") is True
    rule.wait()
    work.let_go()
    found = answer(owner.result)
    assert isinstance(found, FlightCancelledError) if act == "cancel" else found == "value"
    expected = [b"claimed", b"cancelled"] if act == "cancel" else [b"claimed", b"forgotten", b"succeeded"]
    assert events(server.client()) == expected
