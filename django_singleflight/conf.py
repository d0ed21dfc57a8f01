"""The setting ``SINGLEFLIGHT``, and what a cache says of its own in ``OPTIONS["SINGLEFLIGHT"]``.

Both are read at each access, so that ``override_settings`` works. Nothing here connects.
"""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from django.conf import settings
from django.utils.module_loading import import_string

from singleflight_sync import ConfigurationError, PickleCodec, RunOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from singleflight_sync import Codec

NAME = "SINGLEFLIGHT"
NAMESPACE = "ai:flight"

_ENGINE = frozenset(name.upper() for name in RunOptions.__optional_keys__)
_OF_CACHES = frozenset({"IN_ATOMIC"})
_OF_VIEWS = frozenset({"IGNORED_HEADERS", "MAX_BODY", "UNSHARED_TTL", "CACHE_STATUS"})
_OF_ADMIN = frozenset({"SHOW_KEYS"})

NAMES = _ENGINE | _OF_CACHES | _OF_VIEWS | _OF_ADMIN | {"URL", "NAMESPACE", "CODEC"}
"""What ``SINGLEFLIGHT`` may hold."""

CACHE_NAMES = (_ENGINE - {"TTL"}) | _OF_CACHES | {"NAMESPACE"}
"""What a cache may say of its own: server, life and codec of values are its ``LOCATION``, timeout, serializer."""

Arguments = dict[str, Any]
"""The arguments of `singleflight_sync.SingleFlight`, by name."""


def given() -> Mapping[str, Any]:
    """The setting as it stands."""
    return checked_mapping(getattr(settings, NAME, {}), NAME)


def checked_mapping(value: Any, place: str) -> Mapping[str, Any]:
    """Return ``value``.

    Raises:
        ConfigurationError: it is no dict.
    """
    if not isinstance(value, dict):
        raise ConfigurationError(f"{place} is a {type(value).__name__}: it must be a dict such as {{'LEASE': 3.0}}")
    return value


def advice(name: object, names: Iterable[str]) -> str:
    """What to write instead of an unknown name."""
    close = difflib.get_close_matches(str(name).upper(), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(sorted(names))}"


def default_arguments() -> Arguments:
    """The arguments of the default group; equal as long as the settings are.

    Raises:
        ConfigurationError: a name is unknown, or a value cannot be imported.
    """
    found = given()
    read = _Read(dict(found), secrets())
    last = _last.get(NAME)
    if last is not None and last[0] == read:
        return last[1]
    _check_names(found, NAMES, NAME)
    arguments = {"name": "default", "codec": codec(found.get("CODEC")), **_engine_arguments(found)}
    if found.get("URL") is not None:
        arguments["url"] = found["URL"]
    arguments["namespace"] = found.get("NAMESPACE", NAMESPACE)
    _last[NAME] = read, arguments
    return arguments


def cache_arguments(own: Mapping[str, Any]) -> Arguments:
    """The arguments of a cache's group, but for its client, name and codec: its own word first, then ``SINGLEFLIGHT``.

    Raises:
        ConfigurationError: a name is unknown, or a value cannot be imported.
    """
    found = given()
    _check_names(found, NAMES, NAME)
    _check_names(own, CACHE_NAMES, f"OPTIONS[{NAME!r}] of a cache")
    return {"namespace": f"{namespace(own)}:cache", **_engine_arguments({**found, **own})}


def namespace(own: Mapping[str, Any]) -> str:
    """The namespace in which a cache's own is."""
    name: str = own.get("NAMESPACE") or given().get("NAMESPACE", NAMESPACE)
    return name


def in_atomic(own: Mapping[str, Any]) -> Literal["alone", "share"]:
    """What ``get_or_set`` does in a transaction that has written.

    Raises:
        ConfigurationError: the setting is neither ``"alone"`` nor ``"share"``.
    """
    return checked_in_atomic(own.get("IN_ATOMIC", given().get("IN_ATOMIC", "alone")))


def checked_in_atomic(value: Any) -> Literal["alone", "share"]:
    """Return ``value``, a value of ``IN_ATOMIC``.

    Raises:
        ConfigurationError: it is none.
    """
    if value not in ("alone", "share"):
        raise ConfigurationError(f"IN_ATOMIC={value!r} must be 'alone' or 'share'")
    return cast("Literal['alone', 'share']", value)


def show_keys() -> Literal["masked", "full", "digest"]:
    """How the admin page and the command show keys.

    Raises:
        ConfigurationError: the setting is none of the three.
    """
    value = given().get("SHOW_KEYS", "masked")
    if value not in ("masked", "full", "digest"):
        raise ConfigurationError(f"SHOW_KEYS={value!r} must be 'masked', 'full' or 'digest'")
    return cast("Literal['masked', 'full', 'digest']", value)


def codec(value: Any) -> Codec:
    """The codec that ``CODEC`` names: an object, a class, or the dotted path of one; by default signed pickles.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    if isinstance(value, str):
        value = imported("CODEC", value)
    if value is None or value is PickleCodec:
        return signed(*secrets())
    return _instance(value) if isinstance(value, type) else value


def imported(name: str, path: str) -> Any:
    """What stands at the dotted ``path``, the value of the setting ``name``.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    try:
        return import_string(path)
    except ImportError as exc:
        raise ConfigurationError(f"{name}={path!r} cannot be imported: {exc}") from exc


def secrets() -> tuple[str | bytes, tuple[str | bytes, ...]]:
    """The secret that signs, and the older ones that are still accepted for reading."""
    return settings.SECRET_KEY, tuple(settings.SECRET_KEY_FALLBACKS)


@functools.lru_cache(maxsize=8)
def signed(secret: str | bytes, fallbacks: tuple[str | bytes, ...]) -> PickleCodec:
    """The codec of these secrets."""
    return PickleCodec(secret, fallbacks)


class _Read(NamedTuple):
    """All that the arguments were made of."""

    given: dict[str, Any]
    secrets: tuple[str | bytes, tuple[str | bytes, ...]]


# What was read last, and what was made of it. Entries are replaced as a whole.
_last: dict[str, tuple[_Read, Arguments]] = {}


@functools.lru_cache(maxsize=8)
def _instance(kind: type[Codec]) -> Codec:
    return kind()


def _engine_arguments(found: Mapping[str, Any]) -> Arguments:
    arguments = {name.lower(): value for name, value in found.items() if name in _ENGINE}
    if isinstance(arguments.get("enabled"), str):
        arguments["enabled"] = imported("ENABLED", arguments["enabled"])
    return arguments


def _check_names(found: Mapping[str, Any], names: frozenset[str], place: str) -> None:
    for name in found:
        if name not in names:
            raise ConfigurationError(f"{place} has no {name!r}: {advice(name, names)}")
