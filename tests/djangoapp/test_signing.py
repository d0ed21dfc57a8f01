"""What stands in Redis is signed; what was not signed by us is not there."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from django.test import override_settings

from singleflight_sync import PickleCodec
from tests.djangoapp.support import followers, never

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from tests.support.processes import Child
    from tests.support.servers import Server

KEY = ":1:k"
NEW, OLD = "the newer secret", "a secret of the tests"


class Bomb:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@pytest.fixture
def raw(server: Server) -> redis.Redis:
    return server.client(db=1)


@pytest.fixture
def bomb(tmp_path: Path) -> Any:
    """Bytes by name, none of which we have signed; and the file that must not appear."""
    exploded = tmp_path / "exploded"
    content = pickle.dumps(Bomb(exploded))
    return exploded, {
        "a pickle": content,
        "a pickle with a format byte": b"P" + bytes(32) + content,
        "signed with another secret": PickleCodec("of somebody else").dumps(Bomb(exploded)),
        "cut": PickleCodec(OLD).dumps("value")[:-1],
        "changed": PickleCodec(OLD).dumps("value")[:-2] + b"x.",
        "empty": b"",
        "a text": b"hello",
        "almost a number": b" 7",
        "a number of Python alone": b"1_000",
        "digits of another script": "٣".encode(),
        "too long a number": b"9" * 5000,
        "a float": b"1.5",
        "the format byte": b"P",
    }


def test_planted_values_are_misses_and_never_unpickled(cache: Any, raw: redis.Redis, bomb: Any) -> None:
    exploded, planted = bomb
    cache.set("good", "value")
    for name, data in planted.items():
        raw.set(KEY, data, ex=60)
        assert cache.get("k") is None, name
        assert cache.get("k", "default") == "default", name
        assert cache.get_many(["k", "good"]) == {"good": "value"}, name
        assert cache.get_or_set("k", "default") == "default", name
        assert cache.get_or_set("k", lambda: "computed") == "computed", name
        assert cache.get("k") == "computed", name
    assert not exploded.exists()


def test_without_flights_planted_values_are_misses_too(cache: Any, raw: redis.Redis, bomb: Any) -> None:
    exploded, planted = bomb
    with override_settings(SINGLEFLIGHT={"ENABLED": False}):
        for data in planted.values():
            raw.set(KEY, data, ex=60)
            assert cache.get_or_set("k", lambda: "computed") == "computed"
    assert not exploded.exists()


def test_values_are_signed_pickles(cache: Any, raw: redis.Redis) -> None:
    cache.set("k", {"a": True})
    data = raw.get(KEY)
    assert isinstance(data, bytes)
    assert data[:1] == b"P"
    assert pickle.loads(data[33:]) == {"a": True}


@pytest.mark.parametrize("number", [0, 7, -7, 2**70])
def test_exact_integers_stay_raw(cache: Any, raw: redis.Redis, number: int) -> None:
    cache.set("k", number)
    assert raw.get(KEY) == str(number).encode()
    assert cache.get("k") == number
    cache.delete("k")
    assert cache.get_or_set("k", lambda: number) == number
    assert raw.get(KEY) == str(number).encode()
    assert cache.get_or_set("k", never) == number


def test_counters_work_on_what_get_or_set_has_stored(cache: Any) -> None:
    assert cache.get_or_set("k", lambda: 5) == 5
    assert cache.incr("k") == 6
    assert cache.decr("k", 2) == 4
    assert cache.get_or_set("k", never) == 4


def test_a_bool_is_no_integer(cache: Any, raw: redis.Redis) -> None:
    cache.set("k", True)
    assert cache.get("k") is True
    assert not raw.get(KEY).isdigit()  # type: ignore[union-attr]


def test_older_secrets_are_read_and_the_newest_one_signs(cache: Any, raw: redis.Redis) -> None:
    cache.set("old", "signed with the old one")
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[OLD]):
        assert cache.get("old") == "signed with the old one"
        assert cache.get_or_set("old", never) == "signed with the old one"
        assert cache.get_or_set("k", lambda: "signed with the new one") == "signed with the new one"
    assert cache.get("k") is None
    with override_settings(SECRET_KEY=NEW):
        assert cache.get("old") is None
        assert cache.get("k") == "signed with the new one"


def secrets(secret: str, *fallbacks: str) -> str:
    return json.dumps({"SECRET_KEY": secret, "SECRET_KEY_FALLBACKS": fallbacks})


def test_two_processes_with_an_older_and_a_newer_secret(cache: Any, start: Callable[..., Child]) -> None:
    newer = start("own", keys=["k"], value="newer", settings=secrets(NEW, OLD))
    both = [start("ask", keys=["k"], value="older", settings=secrets(OLD)) for _ in range(2)]
    also_newer = start("ask", keys=["k"], value="unused", settings=secrets(NEW, OLD))
    for child in (newer, *both, also_newer):
        assert child.receive() == "ready"
    newer.release()
    assert newer.receive() == "running"
    both[0].release()
    also_newer.release()
    followers(cache, "k", 2)
    newer.release()
    assert newer.result() == {"k": "newer"}
    assert also_newer.result() == {"values": {"k": "newer"}, "computed": []}
    # Who cannot read what is shared computes for itself; who comes later replaces what it cannot read.
    assert both[0].result() == {"values": {"k": "older"}, "computed": ["k"]}
    both[1].release()
    assert both[1].result() == {"values": {"k": "older"}, "computed": ["k"]}
    with override_settings(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[OLD]):
        assert cache.get("k") == "older"


# A serializer of the user's


class TextSerializer:
    """Texts as they are; knows nothing of signatures."""

    def dumps(self, value: Any) -> Any:
        return value if isinstance(value, int) else json.dumps(value)

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


@pytest.mark.parametrize("serializer", [TextSerializer, f"{__name__}.TextSerializer", TextSerializer()])
def test_a_serializer_of_the_users_is_used_as_it_is(make_caches: Any, raw: redis.Redis, serializer: Any) -> None:
    cache = make_caches(default={"OPTIONS": {"serializer": serializer}})["default"]
    assert cache.get_or_set("k", lambda: {"a": [1]}) == {"a": [1]}
    assert raw.get(KEY) == b'{"a": [1]}'
    assert cache.get_or_set("k", never) == {"a": [1]}
    raw.set(KEY, "{", ex=60)
    with pytest.raises(ValueError, match="Expecting"):
        cache.get("k")
    assert cache.get_or_set("k", lambda: "replaced") == "replaced"
