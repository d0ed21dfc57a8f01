"""Writes and deletions at every moment of a flight in another process: what was deleted never comes back."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.core.cache import caches

from tests.djangoapp.support import Computation, Threads, followers, never
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.processes import Child
    from tests.support.proxy import Proxy

QUICK = {"LEASE": 0.8, "HEARTBEAT": 0.3}
SETTINGS = json.dumps({"SINGLEFLIGHT": QUICK})


class Write(NamedTuple):
    """A write during a flight, and what must stand there when the flight has ended with the value ``old``."""

    do: Callable[[Any, str], Any]
    after: Any
    answers: Any = None


def no_such_key(cache: Any, key: str) -> None:
    with pytest.raises(ValueError, match="not found"):
        cache.incr(key)


def nothing(cache: Any, key: str) -> None:
    pass


def counted(cache: Any, key: str) -> int:
    cache.set(key, 1, 60)
    return int(cache.incr(key))


WRITES = {
    "delete": Write(lambda cache, key: cache.delete(key), None, answers=False),
    "delete_many": Write(lambda cache, key: cache.delete_many([key, "unknown"]), None),
    "set": Write(lambda cache, key: cache.set(key, "new"), "new"),
    "set_many": Write(lambda cache, key: cache.set_many({key: "new"}), "new", answers=[]),
    "add": Write(lambda cache, key: cache.add(key, "new"), "new", answers=True),
    "incr": Write(counted, 2, answers=2),
    "incr-of-nothing": Write(no_such_key, "old"),
    "touch": Write(lambda cache, key: cache.touch(key), "old", answers=False),
    "set-for-no-time": Write(lambda cache, key: cache.set(key, "new", 0), None),
    "set_many-for-no-time": Write(lambda cache, key: cache.set_many({key: "new"}, -1), None, answers=[]),
    "add-for-no-time": Write(lambda cache, key: cache.add(key, "new", 0.5), None, answers=True),
    "touch-for-no-time": Write(lambda cache, key: cache.touch(key, 0), None, answers=False),
    "get_or_set-of-a-value": Write(lambda cache, key: cache.get_or_set(key, "new"), "new", answers="new"),
    "set-then-deleted": Write(lambda cache, key: (cache.set(key, "new"), cache.delete(key))[1], None, answers=True),
    "deleted-then-set": Write(lambda cache, key: (cache.delete(key), cache.set(key, "new"))[1], "new"),
    "nothing": Write(nothing, "old"),
}


class Race:
    """An owner in another process, computing all keys of ``WRITES``, and a follower in a third one."""

    def __init__(self, cache: Any, start: Callable[..., Child], keys: list[str], **options: Any) -> None:
        self.cache = cache
        self.keys = keys
        self.owner = start("own", keys=keys, value="old", settings=SETTINGS, **options)
        self.follower = start("ask", keys=keys, value="next", settings=SETTINGS)
        assert self.owner.receive() == "ready"
        assert self.follower.receive() == "ready"
        self.owner.release()
        assert self.owner.receive() == "running"

    def join(self) -> None:
        """Have the follower in every flight."""
        self.follower.release()
        for key in self.keys:
            followers(self.cache, key, 1)

    def write(self) -> None:
        for name in self.keys:
            assert WRITES[name].do(self.cache, name) == WRITES[name].answers, name

    def check(self) -> None:
        """What stands there is what the write left."""
        assert {name: self.cache.get(name) for name in self.keys} == {name: WRITES[name].after for name in self.keys}


@pytest.fixture
def quick(make_caches: Any) -> Any:
    return make_caches(default={"OPTIONS": {"SINGLEFLIGHT": QUICK}})["default"]


def everybody(value: Any, keys: list[str]) -> dict[str, Any]:
    return dict.fromkeys(keys, value)


# Single keys


def test_while_it_is_computed(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, list(WRITES))
    race.join()
    race.write()
    race.owner.release()
    assert race.owner.result() == everybody("old", race.keys)
    assert race.follower.result() == {"values": everybody("old", race.keys), "computed": []}
    race.check()


def test_while_its_owner_is_paused(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, list(WRITES))
    race.owner.pause()
    race.write()
    race.owner.resume()
    race.owner.release()
    assert race.owner.result() == everybody("old", race.keys)
    race.check()


def test_while_its_owner_is_paused_past_its_lease_and_nobody_has_come(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, list(WRITES))
    race.owner.pause()
    eventually(lambda: not any(quick.flights.peek(quick.make_key(key)) for key in race.keys), within=10)
    race.write()
    race.owner.resume()
    race.owner.release()
    assert race.owner.result() == everybody("old", race.keys)
    race.check()


def test_while_its_owner_is_paused_and_another_one_has_taken_over(quick: Any, start: Callable[..., Child]) -> None:
    """The first owner's value is dropped, and the second one's is treated as any other."""
    race = Race(quick, start, list(WRITES))
    race.owner.pause()
    second = start("own", keys=race.keys, value="old", settings=SETTINGS)
    assert second.receive() == "ready"
    second.release()
    assert second.receive() == "running"
    race.write()
    race.owner.resume()
    race.owner.release()
    second.release()
    assert second.result() == everybody("old", race.keys)
    assert race.owner.result() == everybody("old", race.keys)
    race.check()


def test_while_its_value_is_on_its_way_to_redis(quick: Any, start: Callable[..., Child], proxy: Proxy) -> None:
    race = Race(quick, start, list(WRITES), url=f"redis://127.0.0.1:{proxy.port}/1")
    count = len(race.keys)
    rule = proxy.hold(lambda raw: b"EVAL" in raw and b"old" in raw and b"claimed" not in raw, times=count)
    race.owner.release()
    eventually(lambda: len(rule.requests) == count, within=10, what="all publications are held")
    race.write()
    rule.release()
    assert race.owner.result() == everybody("old", race.keys)
    race.check()


def test_when_it_has_ended(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, ["delete", "set", "delete_many"])
    race.owner.release()
    assert race.owner.result() == everybody("old", race.keys)
    assert quick.delete("delete") is True
    quick.set("set", "new")
    quick.delete_many(["delete_many"])
    race.check()


# The whole database


def flight_of(cache: Any, key: str) -> Any:
    return cache.flights.peek(cache.make_key(key))


@pytest.mark.parametrize("moment", ["computing", "paused", "lapsed", "beaten", "on its way"])
def test_a_cleared_database_stays_clear(quick: Any, start: Callable[..., Child], proxy: Proxy, moment: str) -> None:
    race = Race(quick, start, ["k"], url=f"redis://127.0.0.1:{proxy.port}/1")
    if moment in {"paused", "lapsed"}:
        race.owner.pause()
    if moment == "lapsed":
        eventually(lambda: flight_of(quick, "k") is None, within=10)
    if moment == "on its way":
        rule = proxy.hold(lambda raw: b"EVAL" in raw and b"old" in raw)
        race.owner.release()
        rule.wait()
    assert quick.clear() is True
    if moment in {"paused", "lapsed"}:
        race.owner.resume()
    if moment == "beaten":
        eventually(lambda: flight_of(quick, "k") is not None, within=10, what="the owner goes on, under a new token")
    if moment == "on its way":
        rule.release()
    else:
        race.owner.release()
    assert race.owner.result() == {"k": "old"}
    assert quick.get("k") is None
    assert quick.get_or_set("k", lambda: "fresh") == "fresh"


def test_who_asks_after_a_clear_gets_nothing_older(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, ["k"])
    quick.clear()
    race.follower.release()
    race.owner.release()
    assert race.owner.result() == {"k": "old"}
    assert race.follower.result()["values"] == {"k": "next"}
    assert quick.get("k") in ("next", None)


# Who comes after a deletion


def test_who_comes_after_a_deletion_waits_and_computes_anew(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, ["k"])
    quick.delete("k")
    race.join()
    assert flight_of(quick, "k").forgotten
    race.owner.release()
    assert race.owner.result() == {"k": "old"}
    assert race.follower.result() == {"values": {"k": "next"}, "computed": ["k"]}
    assert quick.get("k") == "next"


def test_a_deletion_in_the_owners_process_closes_the_flight_to_its_threads(quick: Any) -> None:
    old, new = Computation("old"), Computation("new")
    with Threads() as threads:
        first = threads.call(quick.get_or_set, "k", old)
        assert old.running.wait(10)
        quick.delete("k")
        second = threads.call(quick.get_or_set, "k", new)
        followers(quick, "k", 1)
        old.go_on.set()
        assert new.running.wait(10)
        new.go_on.set()
        assert (first.result(10), second.result(10)) == ("old", "new")
    assert quick.get("k") == "new"


def test_a_deletion_by_the_callable_itself_keeps_its_value_out(quick: Any) -> None:
    def compute() -> str:
        quick.delete("k")
        return "old"

    assert quick.get_or_set("k", compute) == "old"
    assert quick.get("k") is None


@pytest.mark.parametrize("write", ["set", "add", "set_many", "incr"])
def test_a_write_in_the_owners_process_is_seen_by_its_threads_at_once(quick: Any, write: str) -> None:
    old = Computation("old")
    with Threads() as threads:
        call = threads.call(quick.get_or_set, "k", old)
        assert old.running.wait(10)
        WRITES[write].do(quick, "k")
        assert quick.get_or_set("k", never) == WRITES[write].after
        old.go_on.set()
        assert call.result(10) == "old"
    assert quick.get("k") == WRITES[write].after


@pytest.mark.parametrize("write", [name for name in WRITES if name != "nothing"])
def test_every_write_closes_the_flight_to_later_callers_of_this_process(quick: Any, write: str) -> None:
    old = Computation("old")
    with Threads() as threads:
        call = threads.call(quick.get_or_set, "k", old)
        assert old.running.wait(10)
        assert quick.flights.is_open(quick.make_key("k"))
        WRITES[write].do(quick, "k")
        assert not quick.flights.is_open(quick.make_key("k"))
        old.go_on.set()
        assert call.result(10) == "old"


def test_a_clear_in_the_owners_process_closes_the_flight_to_its_threads(quick: Any) -> None:
    old, new = Computation("old"), Computation("new")
    with Threads() as threads:
        first = threads.call(quick.get_or_set, "k", old)
        assert old.running.wait(10)
        quick.clear()
        second = threads.call(quick.get_or_set, "k", new)
        eventually(lambda: quick.flights.is_open(quick.make_key("k")))
        old.go_on.set()
        new.go_on.set()
        assert second.result(10) == "new"
        assert first.result(10) in ("old", "new")  # new, where the second flight began before the first one ended
    assert quick.get("k") in ("new", None)


def test_a_write_of_another_process_is_seen_where_somebody_follows(quick: Any, start: Callable[..., Child]) -> None:
    race = Race(quick, start, ["k"])
    with Threads() as threads:
        call = threads.call(quick.get_or_set, "k", never)
        followers(quick, "k", 1)
        assert quick.flights.is_open(quick.make_key("k"))
        quick._cache.set(quick.make_key("k"), "new", 60)  # as another process would, past our own backend
        assert quick.get_or_set("k", never) == "new"
        race.owner.release()
        assert race.owner.result() == {"k": "old"}
        assert call.result(10) == "old"
    assert quick.get("k") == "new"


def test_a_deletion_of_another_process_is_seen_by_followers_elsewhere_at_once(
    quick: Any, start: Callable[..., Child]
) -> None:
    race = Race(quick, start, ["k"])
    deleter = start("delete", key="k", settings=SETTINGS)
    assert deleter.receive() == "ready"
    with Threads() as threads:
        first = threads.call(quick.get_or_set, "k", never)
        followers(quick, "k", 1)
        deleter.release()
        assert deleter.result() is False
        eventually(lambda: not quick.flights.is_open(quick.make_key("k")))
        second = threads.call(quick.get_or_set, "k", lambda: "new")
        followers(quick, "k", 2)
        race.owner.release()
        assert race.owner.result() == {"k": "old"}
        assert (first.result(10), second.result(10)) == ("old", "new")
    assert quick.get("k") == "new"


# Many at once


def test_a_value_never_outlives_its_deletion(quick: Any) -> None:
    """A source that counts, readers and a deleter in one process: after each deletion nobody reads what is older."""
    source = [0]
    stop = threading.Event()
    wrong: list[tuple[int, int]] = []

    def read() -> None:
        while not stop.is_set():
            least = source[0] if deleted_at[0] is None else deleted_at[0]
            value = caches["default"].get_or_set("k", lambda: source[0])
            if value < least:
                wrong.append((value, least))

    deleted_at: list[int | None] = [0]
    with Threads() as threads:
        readers = [threads.call(read) for _ in range(6)]
        for number in range(1, 300):
            source[0] = number
            quick.delete("k")
            deleted_at[0] = number
        stop.set()
        for reader in readers:
            reader.result(10)
    assert wrong == []
