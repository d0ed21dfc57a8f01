"""Bytes under our keys that are not ours: never an error, never for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync.answers import Answer, Owned, Right, Stored, Waiting
from singleflight_sync.log import Entry
from tests.support.keyspace import Keyspace, right_of

if TYPE_CHECKING:
    from collections.abc import Callable

LIFE_MS = 5_000
HUGE = "9" * 400
FIRST = ("claim", "look", "forget", "cancel", "renew")

PLANTS: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda client, key: client.set(key, b"\x80\x04planted"),
    "hash": lambda client, key: client.hset(key, "planted", "1"),
    "list": lambda client, key: client.rpush(key, "planted"),
    "set": lambda client, key: client.sadd(key, "planted"),
    "sorted set": lambda client, key: client.zadd(key, {"planted": 1}),
    "stream": lambda client, key: client.xadd(key, {"planted": "1"}),
}
plants = pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
places = pytest.mark.parametrize("place", ["meta", "stream", "result", "owner_seq"])


def under(space: Keyspace, place: str, plant: Callable[[Any, bytes], Any]) -> None:
    """Plant it under one of our keys, without an end of its life."""
    space.foreign = getattr(space.store.namespace if place == "owner_seq" else space.names, place)
    space.client.delete(space.foreign)
    plant(space.client, space.foreign)


def healed(space: Keyspace) -> None:
    """A flight from claim to publication leaves nothing of what was planted."""
    right = space.own()
    assert space.renew(right) == (Answer.DONE, False)
    assert space.publish(right) is Answer.DONE
    assert (space.claim().token, space.claim().value) == (right.token, b"value")
    space.foreign = b""
    space.check()


@places
@plants
def test_a_flight_begins_whatever_was_planted(space: Keyspace, place: str, plant: Callable[[Any, bytes], Any]) -> None:
    under(space, place, plant)
    healed(space)


def act(space: Keyspace, name: str, right: Right) -> None:
    """Do what one script does."""
    acts: dict[str, Callable[[], Any]] = {
        "renew": lambda: space.renew(right),
        "publish": lambda: space.publish(right),
        "fail": lambda: space.fail(right),
        "release": lambda: space.release(right),
        "cancel": space.cancel,
        "forget": space.forget,
        "look": lambda: space.look(right.token, right.log_id),
        "claim": space.claim,
        "fetch": lambda: space.store.fetch(space.names),
    }
    acts[name]()


@places
@plants
@pytest.mark.parametrize("name", ["renew", "publish", "fail", "release", "cancel", "forget", "look", "claim", "fetch"])
def test_no_script_stumbles(single: Keyspace, place: str, plant: Callable[[Any, bytes], Any], name: str) -> None:
    right = single.own()
    under(single, place, plant)
    act(single, name, right)
    single.client.delete(single.names.result, single.names.meta)
    healed(single)


@pytest.mark.parametrize(
    "fields",
    [
        {"planted": "1"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "x", "followers": "0"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "inf", "followers": "0"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "nan", "followers": "0"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": HUGE, "followers": "0"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "3000", "followers": "x"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "3000", "followers": HUGE},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "3000", "followers": "9223372036854775807"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "x", "leaseMs": "3000", "followers": "0", "lifeMs": "x"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": HUGE, "leaseMs": "3000", "followers": "0", "lifeMs": HUGE},
        {"status": "shiny", "nonce": "", "ownerToken": "", "leaseMs": "-5", "followers": "-5", "takeovers": "x"},
        {"status": "RUNNING", "nonce": "n", "ownerToken": "5", "leaseMs": "3000", "followers": "0", "logId": "x"},
        {"status": "INIT", "nonce": "n", "leaseMs": "3000", "followers": "0"},
    ],
    ids=lambda fields: "-".join(f"{name}={str(value)[:20]}" for name, value in fields.items()),
)
@pytest.mark.parametrize("first", FIRST)
def test_a_planted_board_never_stumbles_anybody(single: Keyspace, fields: dict[str, str], first: str) -> None:
    single.client.hset(single.names.meta, mapping=fields)
    single.client.pexpire(single.names.meta, LIFE_MS)
    act(single, first, Right(5, b"0-0", 3_000, 13_000))
    assert isinstance(single.claim(), (Waiting, Owned))
    single.forget()
    single.cancel()
    assert isinstance(single.claim(), (Waiting, Owned))


def test_a_board_without_an_end_of_its_life_is_nobodys(single: Keyspace) -> None:
    single.own()
    single.client.persist(single.names.meta)
    assert isinstance(single.claim(), Owned)


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "claimed"},
        {"event": "claimed", "token": "5"},
        {"event": "claimed", "token": "x"},
        {"event": "claimed", "token": ""},
        {"event": "claimed", "token": "inf"},
        {"event": "claimed", "token": "-5", "nonce": "n", "life": "x", "takeovers": "x"},
        {"event": "claimed", "token": "5", "nonce": "n", "life": HUGE, "takeovers": HUGE, "recent": ""},
        {"event": "claimed", "token": "9007199254740991", "nonce": "n"},
        {"event": "claimed", "token": HUGE, "nonce": "n"},
        {"event": "failed", "token": "5", "keep": "x"},
        {"event": "failed", "token": "5", "keep": HUGE},
        {"event": "succeeded"},
        {"event": "cancelled", "token": "x"},
        {"event": "forgotten"},
        {"token": "5"},
    ],
    ids=lambda fields: "-".join(f"{name}={str(value)[:20]}" for name, value in fields.items()),
)
@pytest.mark.parametrize("first", FIRST)
def test_a_planted_log_never_stumbles_anybody(single: Keyspace, fields: dict[str, str], first: str) -> None:
    if fields.get("event") in {"failed", "succeeded", "cancelled", "forgotten"}:
        single.client.xadd(single.names.stream, {"event": "claimed", "token": "5", "nonce": "n"})
    single.client.xadd(single.names.stream, fields)
    single.client.pexpire(single.names.stream, LIFE_MS)
    act(single, first, Right(5, b"0-0", 3_000, 13_000))
    answer = single.claim(failures=False)
    if isinstance(answer, Owned):
        assert single.renew(right_of(answer)) == (Answer.DONE, False)
        assert single.publish(right_of(answer)) is Answer.DONE
    else:
        assert isinstance(answer, (Waiting, Entry))


@pytest.mark.parametrize("raw", [b"", b"value", b"12345", b":value", b"x:value", b"-1:value", b"5" * 40])
def test_a_result_without_a_token_is_a_miss(single: Keyspace, raw: bytes) -> None:
    single.client.set(single.names.result, raw, px=LIFE_MS)
    assert single.store.fetch(single.names) is None
    right = single.own()
    single.publish(right)
    assert single.claim().token == right.token


def test_a_huge_token_in_a_result_is_a_miss_or_unreadable(single: Keyspace) -> None:
    single.client.set(single.names.result, HUGE + ":value", px=LIFE_MS)
    single.store.fetch(single.names)
    answer = single.claim()
    if isinstance(answer, Stored):
        answer = single.claim(unreadable=single.result())
    assert isinstance(answer, Owned)


@plants
def test_the_index_heals(single: Keyspace, plant: Callable[[Any, bytes], Any]) -> None:
    right = single.own()
    plant(single.client, single.store.namespace.live)
    single.store.live()
    single.index(right)
    assert b"report:42" in single.store.live()


@plants
def test_a_planted_board_is_not_listed(single: Keyspace, plant: Callable[[Any, bytes], Any]) -> None:
    under(single, "meta", plant)
    assert single.store.boards([b"report:42", b"planted"]) == []
    single.lose()


def test_whoever_lists_drops_the_flights_that_are_over(space: Keyspace) -> None:
    right = space.own()
    space.index(right)
    space.client.zadd(space.store.namespace.live, {"over": space.now_us() // 1000 + 60_000})
    assert len(space.store.boards(space.store.live())) == 1
    assert space.store.live() == [b"report:42"]
    space.publish(right)
    assert space.store.boards(space.store.live()) == []
    assert space.store.live() == []
