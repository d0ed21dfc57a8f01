"""``get_or_set`` and the rest of the backend, in one process and in several."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from django.test import override_settings

from singleflight_sync import FlightCancelledError, WaitTimeoutError, testing
from tests.djangoapp.support import Computation, Threads, followers, never
from tests.support.monitor import Monitor
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.processes import Child
    from tests.support.servers import Server

Make = Any


@pytest.fixture
def raw(server: Server) -> redis.Redis:
    """The database of the caches."""
    return server.client(db=1)


def flight_keys(raw: redis.Redis) -> list[bytes]:
    return [key for key in map(bytes, raw.scan_iter()) if key.startswith(b"ai:flight:")]


# What is kept of Django


def test_it_is_djangos_redis_cache_with_its_client(cache: Any) -> None:
    assert isinstance(cache, RedisCache)
    assert type(cache._cache) is RedisCacheClient


def test_a_value_stands_under_the_ordinary_key_in_the_database_of_the_location(cache: Any, raw: redis.Redis) -> None:
    assert cache.get_or_set("k", lambda: {"a": (1,)}) == {"a": (1,)}
    assert cache.get("k") == {"a": (1,)}
    assert raw.exists(":1:k")


def test_flights_stand_in_the_database_of_the_location_in_a_namespace_of_their_own(
    cache: Any, raw: redis.Redis
) -> None:
    cache.get_or_set("k", lambda: 1)
    assert {key.split(b"{")[0] for key in flight_keys(raw)} == {
        b"ai:flight:cache:owner-seq",
        b"ai:flight:cache:stream:",
    }


# Timeouts


@pytest.mark.lasting_keys(":1:k")
def test_timeout_none_is_without_end(cache: Any, raw: redis.Redis) -> None:
    assert cache.get_or_set("k", lambda: 1, None) == 1
    assert raw.pttl(":1:k") == -1


@pytest.mark.parametrize("timeout", [0, -1, 0.0, -0.5])
def test_timeout_of_zero_or_less_is_not_stored_but_returned(cache: Any, raw: redis.Redis, timeout: float) -> None:
    assert cache.get_or_set("k", lambda: "value", timeout) == "value"
    assert not raw.exists(":1:k")


@pytest.mark.parametrize(("timeout", "life"), [(0.5, 500), (2.75, 2750), ("3", 3000), (100_000_000_000, 10**12)])
def test_milliseconds_of_a_timeout_are_kept(cache: Any, raw: redis.Redis, timeout: Any, life: int) -> None:
    cache.get_or_set("k", lambda: 1, timeout)
    left = raw.pttl(":1:k")
    assert life - 400 < left <= life


def test_less_than_a_millisecond_is_not_for_ever(cache: Any, raw: redis.Redis) -> None:
    cache.get_or_set("k", lambda: 1, 0.0004)
    eventually(lambda: not raw.exists(":1:k"))


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), "soon", [5]])
def test_a_timeout_that_set_refuses_is_refused_with_the_same_error(cache: Any, timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)) as of_set:
        cache.set("k", 1, timeout)
    with pytest.raises(of_set.type):
        cache.get_or_set("k", never, timeout)


def test_without_a_timeout_the_cache_has_its_own(make_caches: Make, raw: redis.Redis) -> None:
    make_caches(default={"TIMEOUT": 77})["default"].get_or_set("k", lambda: 1)
    assert 76_000 < raw.pttl(":1:k") <= 77_000


@pytest.mark.lasting_keys(":1:k")
def test_without_a_timeout_a_cache_without_end_has_none(make_caches: Make, raw: redis.Redis) -> None:
    make_caches(default={"TIMEOUT": None})["default"].get_or_set("k", lambda: 1)
    assert raw.pttl(":1:k") == -1


@pytest.mark.parametrize("timeout", [0, -1, 0.5])
def test_an_add_for_no_time_leaves_what_is_there(cache: Any, timeout: float) -> None:
    cache.set("k", "there")
    assert cache.add("k", "other", timeout) is False
    assert cache.get_or_set("k", "other", timeout) == "there"
    assert cache.get("k") == "there"


@pytest.mark.parametrize("timeout", [0, -1, 0.5])
def test_a_write_for_no_time_deletes_what_is_there(cache: Any, timeout: float) -> None:
    cache.set_many({"set": 1, "set_many": 1, "touch": 1})
    cache.set("set", 2, timeout)
    cache.set_many({"set_many": 2}, timeout)
    assert cache.touch("touch", timeout) is True
    assert cache.get_many(["set", "set_many", "touch"]) == {}


def test_a_write_that_cannot_be_pickled_leaves_what_is_there(cache: Any) -> None:
    cache.set("k", "there")
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        cache.set("k", lambda: 1, 0)
    assert cache.get("k") == "there"


# Defaults


def test_none_is_a_value(cache: Any) -> None:
    assert cache.get_or_set("k", lambda: None) is None
    assert cache.get_or_set("k", never) is None
    assert cache.get("k", "missing") is None


def test_a_default_that_is_no_callable_makes_no_flight_and_one_write(cache: Any, server: Server) -> None:
    cache.get("warm")
    with Monitor(server) as monitor:
        assert cache.get_or_set("k", "value") == "value"
        assert cache.get_or_set("k", "other") == "value"
    assert monitor.counts() == {"GET": 2, "SET": 1}


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_default_that_is_no_callable_follows_the_timeout(cache: Any, raw: redis.Redis, timeout: int) -> None:
    assert cache.get_or_set("k", "value", timeout) == "value"
    assert not raw.exists(":1:k")


def test_what_the_callable_raises_comes_out_and_is_not_kept(cache: Any) -> None:
    error = LookupError("gone")

    def fail() -> Any:
        raise error

    with pytest.raises(LookupError) as raised:
        cache.get_or_set("k", fail)
    assert raised.value is error
    assert cache.get_or_set("k", lambda: "next") == "next"


def test_a_value_that_cannot_be_pickled_raises_what_set_raises(cache: Any) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)) as of_set:
        cache.set("k", lambda: 1)
    with pytest.raises(of_set.type):
        cache.get_or_set("k", lambda: lambda: 1)


def test_a_value_that_is_too_large_is_returned_and_not_stored(make_caches: Make) -> None:
    cache = make_caches(default={"OPTIONS": {"SINGLEFLIGHT": {"MAX_BYTES": 100}}})["default"]
    assert cache.get_or_set("k", lambda: "x" * 1000) == "x" * 1000
    assert cache.get("k") is None


def test_a_coroutine_is_refused(cache: Any) -> None:
    async def compute() -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        cache.get_or_set("k", compute)


# Keys


def test_versions_are_values_of_their_own(cache: Any) -> None:
    assert cache.get_or_set("k", lambda: "one", version=1) == "one"
    assert cache.get_or_set("k", lambda: "two", version=2) == "two"
    assert (cache.get("k"), cache.get("k", version=2)) == ("one", "two")
    assert cache.incr_version("k") == 2
    assert cache.get("k", version=2) == "one"
    assert cache.get("k") is None


def test_prefixes_are_values_of_their_own(make_caches: Make) -> None:
    made = make_caches(default={}, other={"KEY_PREFIX": "other"})
    assert made["default"].get_or_set("k", lambda: 1) == 1
    assert made["other"].get_or_set("k", lambda: 2) == 2


def whole(key: Any, prefix: str, version: int) -> Any:
    return key


@pytest.mark.parametrize("key", ["plain", b"bytes", b"\xff\xfe", "", 17, 2.5, "{curly} spaces \n", "ключ", "x" * 5000])
@pytest.mark.filterwarnings("ignore::django.core.cache.backends.base.CacheKeyWarning")
def test_a_key_function_may_return_whatever_the_client_takes(make_caches: Make, raw: redis.Redis, key: Any) -> None:
    cache = make_caches(default={"KEY_FUNCTION": whole})["default"]
    cache.validate_key = bool  # Django's takes only str, and warns of characters
    assert cache.get_or_set(key, lambda: "value") == "value"
    assert cache.get_or_set(key, never) == "value"
    assert cache.get(key) == "value"
    assert raw.exists(key)
    assert cache.delete(key)
    assert not raw.exists(key)


def test_a_key_that_could_meet_those_of_flights_is_refused(make_caches: Make) -> None:
    cache = make_caches(default={"KEY_FUNCTION": whole})["default"]
    cache.validate_key = bool
    for key in ("ai:flight:cache:meta:{k}", b"ai:flight:cache:stream:{k}"):
        for use in (cache.get, cache.delete, lambda key: cache.set(key, 1), lambda key: cache.get_or_set(key, never)):
            with pytest.raises(ValueError, match="KEY_PREFIX"):
                use(key)


def test_every_key_of_a_flight_is_unknown_to_the_cache_while_it_is_in_the_air(cache: Any, raw: redis.Redis) -> None:
    computation = Computation()
    with Threads() as threads:
        call = threads.call(cache.get_or_set, "k", computation)
        assert computation.running.wait(10)
        assert cache.get("k") is None
        assert cache.get_many(["k"]) == {}
        assert not cache.has_key("k")
        assert cache.touch("k") is False
        with pytest.raises(ValueError, match="not found"):
            cache.incr("k")
        computation.go_on.set()
        assert call.result(10) == "value"


# Sharing


def test_threads_of_one_process_compute_once(cache: Any) -> None:
    computation = Computation([1])
    with Threads() as threads:
        calls = [threads.call(lambda: caches["default"].get_or_set("k", computation)) for _ in range(20)]
        assert computation.running.wait(10)
        computation.go_on.set()
        values = [call.result(10) for call in calls]
    assert values == [[1]] * 20
    assert computation.runs == 1
    assert len({id(value) for value in values}) == 20


def test_processes_compute_once(start: Callable[..., Child], cache: Any) -> None:
    owner = start("own", keys=["k"], value="shared")
    others = [start("ask", keys=["k"], value="other") for _ in range(3)]
    for child in (owner, *others):
        assert child.receive() == "ready"
    owner.release()
    assert owner.receive() == "running"
    for child in others:
        child.release()
    followers(cache, "k", 3)
    owner.release()
    assert owner.result() == {"k": "shared"}
    assert [child.result() for child in others] == [{"values": {"k": "shared"}, "computed": []}] * 3
    assert cache.get("k") == "shared"


def test_a_killed_owner_is_replaced_and_nobody_gets_none(start: Callable[..., Child], cache: Any) -> None:
    owner = start("own", keys=["k"], value="of the dead")
    others = [start("ask", keys=["k"], value="of the next") for _ in range(2)]
    for child in (owner, *others):
        assert child.receive() == "ready"
    owner.release()
    assert owner.receive() == "running"
    for child in others:
        child.release()
    followers(cache, "k", 2)
    owner.kill()
    results = [child.result() for child in others]
    assert [result["values"] for result in results] == [{"k": "of the next"}] * 2
    assert sorted(result["computed"] for result in results) == [[], ["k"]]


def test_a_failure_is_shared_by_those_in_the_flight(cache: Any) -> None:
    computation = Computation(KeyError("missing"))
    with Threads() as threads:
        calls = [threads.call(cache.get_or_set, "k", computation) for _ in range(3)]
        assert computation.running.wait(10)
        eventually(lambda: len(waiting(cache)) == 2)
        computation.go_on.set()
        errors = [call.exception(10) for call in calls]
    assert [repr(error) for error in errors] == ["KeyError('missing')"] * 3
    assert computation.runs == 1


def waiting(cache: Any) -> list[Any]:
    rooms = cache.flights._runtime().shared.rooms._rooms
    return [seat for room in rooms.values() for seat in room.waiting]


def test_two_aliases_of_one_database_share_their_flights(make_caches: Make) -> None:
    made = make_caches(default={}, twin={"TIMEOUT": 10})
    computation = Computation()
    with Threads() as threads:
        first = threads.call(made["default"].get_or_set, "k", computation)
        assert computation.running.wait(10)
        second = threads.call(made["twin"].get_or_set, "k", never)
        eventually(lambda: waiting(made["default"]))
        computation.go_on.set()
        assert (first.result(10), second.result(10)) == ("value", "value")


def test_an_alias_in_the_database_of_the_flights_of_run_keeps_apart(make_caches: Make, server: Server) -> None:
    import singleflight_sync  # noqa: PLC0415 - its default group belongs to this project

    cache = make_caches(default={"LOCATION": server.url})["default"]
    computation = Computation("cached")
    try:
        with Threads() as threads:
            call = threads.call(cache.get_or_set, "k", computation)
            assert computation.running.wait(10)
            assert singleflight_sync.run(":1:k", lambda: "of run") == "of run"
            computation.go_on.set()
            assert call.result(10) == "cached"
        assert singleflight_sync.get(":1:k") == "of run"
        assert cache.get("k") == "cached"
    finally:
        singleflight_sync.close()


# Costs


def test_a_hit_is_one_round_trip_and_a_miss_two(cache: Any, server: Server) -> None:
    cache.get_or_set("warm", lambda: 1)
    cache.get("warm")
    with Monitor(server) as miss:
        cache.get_or_set("k", lambda: 1)
    with Monitor(server) as hit:
        cache.get_or_set("k", never)
    with Monitor(server) as deletion:
        cache.delete("k")
    with Monitor(server) as deletions:
        cache.delete_many(["a", "b", "c"])
    assert miss.counts() == {"EVALSHA": 2}
    assert hit.counts() == {"EVALSHA": 1}
    assert deletion.counts() == {"EVALSHA": 1}
    assert deletions.counts() == {"EVALSHA": 3}  # in one go


# When there is no outcome


def test_who_waits_too_long_computes_for_itself_and_stores_nothing(
    make_caches: Make, start: Callable[..., Child]
) -> None:
    cache = make_caches(default={"OPTIONS": {"SINGLEFLIGHT": {"WAIT_TIMEOUT": 0.3}}})["default"]
    owner = start("own", keys=["k"], value="slow")
    assert owner.receive() == "ready"
    owner.release()
    assert owner.receive() == "running"
    assert cache.get_or_set("k", lambda: "mine") == "mine"
    assert cache.get("k") is None
    owner.release()
    assert owner.result() == {"k": "slow"}
    assert cache.get("k") == "slow"


def test_past_the_hard_timeout_the_value_is_returned_and_not_stored(make_caches: Make) -> None:
    own = {"HARD_TIMEOUT": 0.3, "HEARTBEAT": 0.2}
    cache = make_caches(default={"OPTIONS": {"SINGLEFLIGHT": own}})["default"]
    computation = Computation("late")
    with Threads() as threads:
        call = threads.call(cache.get_or_set, "k", computation)
        assert computation.running.wait(10)
        assert cache.get_or_set("k", lambda: "mine") == "mine"  # freed when the flight was ended
        computation.go_on.set()
        assert call.result(10) == "late"
    assert cache.get("k") in (None, "mine")


def test_a_cancelled_flight_raises(cache: Any) -> None:
    computation = Computation()
    with Threads() as threads:
        call = threads.call(cache.get_or_set, "k", computation)
        assert computation.running.wait(10)
        assert cache.flights.cancel(cache.make_key("k"))
        computation.go_on.set()
        assert isinstance(call.exception(10), FlightCancelledError)
    assert cache.get("k") is None


def test_an_error_of_the_callable_itself_does_not_make_it_run_again(cache: Any) -> None:
    runs = []

    def fail() -> None:
        runs.append(1)
        raise WaitTimeoutError("of another flight")

    with pytest.raises(WaitTimeoutError, match="of another flight"):
        cache.get_or_set("k", fail)
    assert runs == [1]


@pytest.mark.parametrize("policy", ["run", "raise"])
def test_without_redis_it_computes(make_caches: Make, policy: str) -> None:
    settings = {"LOCATION": "redis://127.0.0.1:1/1", "OPTIONS": {"SINGLEFLIGHT": {"ON_STORE_ERROR": policy}}}
    cache = make_caches(default=settings)["default"]
    assert cache.get_or_set("k", lambda: "computed") == "computed"


def test_without_redis_delete_raises_what_the_other_methods_raise(make_caches: Make) -> None:
    cache = make_caches(default={"LOCATION": "redis://127.0.0.1:1/1"})["default"]
    with pytest.raises(redis.ConnectionError):
        cache.delete("k")
    with pytest.raises(redis.ConnectionError):
        cache.delete_many(["k"])


# Switched off


def test_switched_off_it_is_djangos_own(cache: Any, server: Server) -> None:
    cache.get("warm")
    with override_settings(SINGLEFLIGHT={"ENABLED": False}), Monitor(server) as monitor:
        assert cache.get_or_set("k", lambda: 1) == 1
        assert cache.get_or_set("k", never) == 1
        assert cache.delete("k") is True
        cache.delete_many(["k", "l"])
    assert monitor.counts() == {"GET": 3, "SET": 1, "DEL": 2}


def test_one_cache_can_be_switched_off(make_caches: Make, raw: redis.Redis) -> None:
    made = make_caches(default={"OPTIONS": {"SINGLEFLIGHT": {"ENABLED": False}}}, on={"KEY_PREFIX": "on"})
    assert made["default"].get_or_set("k", lambda: 1) == 1
    assert flight_keys(raw) == []
    assert made["on"].get_or_set("k", lambda: 1) == 1
    assert flight_keys(raw) != []


@pytest.mark.parametrize("mode", [testing.plain, testing.local])
def test_in_tests_without_flights_it_is_djangos_own(cache: Any, server: Server, mode: Any) -> None:
    cache.get("warm")
    with mode(), Monitor(server) as monitor:
        assert cache.get_or_set("k", lambda: 1) == 1
        assert cache.get_or_set("k", never) == 1
        assert cache.delete("k") is True
        cache.delete_many(["k", "l"])
    assert monitor.counts() == {"GET": 3, "SET": 1, "DEL": 2}


# Options, groups


def test_a_caches_own_options_come_before_the_projects(make_caches: Make) -> None:
    made = make_caches(default={"OPTIONS": {"SINGLEFLIGHT": {"LEASE": 9}}}, other={})
    with override_settings(SINGLEFLIGHT={"LEASE": 7, "HEARTBEAT": 2, "NAMESPACE": "mine"}):
        own, other = made["default"].flights, made["other"].flights
        assert (own.options.lease, own.options.heartbeat, other.options.lease) == (9, 2, 7)
        assert (own.name, other.name) == ("cache:default", "cache:other")
        assert own.namespace.name == "mine:cache"


def test_other_options_go_to_the_client(make_caches: Make) -> None:
    options = {"db": 3, "SINGLEFLIGHT": {"LEASE": 9}}
    location = make_caches().location.rpartition("/")[0]
    cache = make_caches(default={"LOCATION": location, "OPTIONS": options})["default"]
    assert cache._cache._get_connection_pool(write=True).connection_kwargs["db"] == 3
    assert cache.get_or_set("k", lambda: 1) == 1
    assert cache.get("k") == 1
    cache.delete("k")


def test_all_threads_have_one_group(cache: Any) -> None:
    with Threads() as threads:
        found = [threads.call(lambda: caches["default"].flights).result(10) for _ in range(5)]
    assert {id(group) for group in found} == {id(cache.flights)}


def test_a_changed_setting_makes_a_new_group_and_closes_the_old_one(cache: Any) -> None:
    cache.get_or_set("k", lambda: 1)
    before = cache.flights
    with override_settings(SINGLEFLIGHT={"LEASE": 5}):
        assert cache.flights is not before
        assert cache.flights.options.lease == 5
    assert before._runtimes == {}


def test_the_first_server_of_several_has_the_flights(make_caches: Make, server: Server) -> None:
    location = [f"redis://127.0.0.1:{server.port}/1", "redis://127.0.0.1:1/1"]
    cache = make_caches(default={"LOCATION": location})["default"]
    assert cache.get_or_set("k", lambda: 1) == 1
    assert cache.get_or_set("k", never) == 1


# Asynchronous callers


def test_the_asynchronous_methods_are_djangos_own(cache: Any) -> None:
    async def use() -> list[Any]:
        await cache.aset("a", 1)
        found = [await cache.aget_or_set("k", lambda: "value"), await cache.aget_or_set("k", never)]
        return [*found, await cache.adelete("k"), await cache.aget("k"), await cache.aincr("a")]

    assert asyncio.run(use()) == ["value", "value", True, None, 2]
