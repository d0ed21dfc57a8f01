"""A server whose memory is full: what must work works, what is refused is refused as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from singleflight_sync.answers import Answer, Owned, Position, Waiting, new_nonce
from singleflight_sync.errors import StoreError
from singleflight_sync.log import Entry
from tests.support.keyspace import Keyspace
from tests.support.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

lapsing = pytest.mark.parametrize("lapsed", [False, True], ids=["alive", "lapsed"])


@pytest.fixture(scope="module")
def small_server(server_binary: str) -> Iterator[Server]:
    server = Server(maxmemory_policy="noeviction")
    yield server
    server.stop()


@pytest.fixture
def space(small_server: Server) -> Iterator[Keyspace]:
    space = Keyspace(small_server.client())
    space.client.config_set("maxmemory", 0)
    space.client.flushall()
    yield space
    space.close()


def fill(space: Keyspace) -> None:
    """From now on the server has no memory for anything that needs some."""
    space.client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        space.client.set("anything", "x")


@lapsing
def test_an_owner_renews(space: Keyspace, *, lapsed: bool) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    fill(space)
    assert space.renew(right) == (Answer.DONE, False)
    assert space.board()["status"] == "RUNNING"


@lapsing
@pytest.mark.parametrize("event", ["failed", "released"])
def test_an_owner_ends_its_flight_without_a_value(space: Keyspace, *, lapsed: bool, event: str) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    fill(space)
    ending = space.fail if event == "failed" else space.release
    assert ending(right) is Answer.DONE
    assert space.events() == ["claimed", event]


@lapsing
def test_a_flight_can_be_cancelled(space: Keyspace, *, lapsed: bool) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    fill(space)
    assert space.cancel() == right.token
    assert space.events() == ["claimed", "cancelled"]


@lapsing
@pytest.mark.parametrize("token", [False, True], ids=["whichever", "with a token"])
def test_a_flight_can_be_forgotten(space: Keyspace, *, lapsed: bool, token: bool) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    fill(space)
    assert tuple(space.forget(right.token if token else None)) == (False, True, right.token)
    assert space.events() == ["claimed", "forgotten"]
    assert space.renew(right) == (Answer.DONE, True)


def test_a_result_can_be_forgotten(space: Keyspace) -> None:
    space.publish(space.own())
    fill(space)
    assert tuple(space.forget()) == (True, False, None)


def test_a_kept_failure_can_be_forgotten(space: Keyspace) -> None:
    space.fail(space.own(error_ttl=60), keep=60)
    fill(space)
    assert tuple(space.forget()) == (False, True, None)


def test_a_follower_joins_and_looks(space: Keyspace) -> None:
    right = space.own()
    fill(space)
    assert space.wait().place == 1
    assert isinstance(space.look(right.token, right.log_id, counted=right.token), Waiting)
    space.lapse()
    assert space.look(right.token, right.log_id, counted=right.token) is Answer.LAPSED


def test_results_and_ends_are_read(space: Keyspace) -> None:
    right = space.own()
    space.publish(right)
    fill(space)
    assert space.claim().value == b"value"
    end = space.claim(position=Position(right.token, right.log_id, None))
    assert isinstance(end, Entry)


def test_a_claim_that_is_sent_again_owns_its_flight(space: Keyspace) -> None:
    nonce = new_nonce()
    right = space.own(nonce)
    fill(space)
    assert space.own(nonce) == right
    space.lapse()
    assert space.own(nonce) == right


@pytest.mark.parametrize("before", ["nothing", "ended", "lapsed", "at the limit"])
def test_a_claim_that_would_own_is_refused_as_a_whole(space: Keyspace, before: str) -> None:
    most = 0 if before == "at the limit" else 3
    if before != "nothing":
        right = space.own()
        if before == "ended":
            space.release(right)
        else:
            space.lapse()
    fill(space)
    state = space.state()
    for continues in (None, 5) if before == "nothing" else (None,):
        with pytest.raises(StoreError, match="memory"):
            space.claim(most=most, continues=continues)
        assert space.state() == state
    space.client.config_set("maxmemory", 0)
    assert isinstance(space.claim(), Owned)


def test_a_claim_that_names_a_dead_owner_is_taken_or_refused_as_a_whole(space: Keyspace) -> None:
    dead = space.own()
    fill(space)
    state = space.state()
    try:
        answer = space.claim(position=Position(dead.token, dead.log_id, dead.token, dead.token))
    except StoreError:
        assert space.state() == state
    else:
        assert isinstance(answer, Owned)
        assert space.board()["ownerToken"] == str(answer.token)
        assert space.events() == ["claimed", "claimed"]


@lapsing
@pytest.mark.parametrize(("size", "ttl"), [(5, 5.0), (5, 0.0), (20_000, 60.0)])
def test_a_publication_is_refused_as_a_whole(space: Keyspace, *, lapsed: bool, size: int, ttl: float) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    fill(space)
    state = space.state()
    with pytest.raises(StoreError, match="memory"):
        space.publish(right, b"x" * size, ttl=ttl)
    assert space.state() == state
    assert space.release(right, counted=False) is Answer.DONE
    space.client.config_set("maxmemory", 0)
    assert space.claim().takeovers == 0


def test_what_happened_already_is_answered(space: Keyspace) -> None:
    right, nonce = space.own(), new_nonce()
    space.publish(right, nonce=nonce)
    fill(space)
    calls: list[Callable[[], Any]] = [
        lambda: space.publish(right, nonce=nonce),
        lambda: space.publish(right),
        lambda: space.renew(right)[0],
        lambda: space.release(right),
    ]
    done, *ends = [call() for call in calls]
    assert done is Answer.DONE
    assert {entry.event for entry in ends} == {b"succeeded"}
