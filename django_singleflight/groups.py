"""The groups of this process: the default one, and one for each cache with our backend.

Django's own handlers keep one object per thread, which would defeat sharing; this registry belongs to the process.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.core.cache import caches
from django.utils.module_loading import import_string

import singleflight_sync
from django_singleflight import places
from singleflight_sync import ConfigurationError, SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from singleflight_sync import FlightInfo, LogEntry

DEFAULT = "default"


class Group(Protocol):
    """What an operator can ask of a group; see `singleflight_sync.SingleFlight`."""

    def get(self, key: str, default: Any = None) -> Any:
        """The fresh result of ``key``, or ``default``."""

    def peek(self, key: str) -> FlightInfo | None:
        """The live flight of ``key``, or None."""

    def live(self) -> list[FlightInfo]:
        """All live flights, oldest first."""

    def history(self, key: str) -> list[LogEntry]:
        """What the log of ``key`` still holds, oldest first."""

    def cancel(self, key: str, fencing_token: int | None = None) -> bool:
        """End the open flight of ``key``; whether there was one."""

    def forget(self, key: str, fencing_token: int | None = None) -> bool:
        """Drop the result of ``key``; whether a result, a kept failure or an open flight was there."""


class Source(NamedTuple):
    """All that a cache's group is made of; equal as long as the settings are."""

    given: Mapping[str, Any]
    own: Mapping[str, Any]
    servers: Any
    options: Mapping[str, Any]


class _Made(NamedTuple):
    source: Source
    group: SingleFlight


# By name. Entries are replaced as a whole, under the lock; a forked child goes on with the same groups.
_made: dict[str, _Made] = {}
_locks: dict[
    int, threading.Lock
] = {}  # by process, made at the first use; `setdefault` lets one of several threads win


def of_cache(name: str, source: Source, make: Callable[[], SingleFlight]) -> SingleFlight:
    """The group ``name`` of this process; where its source has changed it is made anew, and the old one closed."""
    made = _made.get(name)
    if made is not None and made.source == source:
        return made.group
    with _lock():
        old = _made.get(name)
        if old is not None and old.source == source:
            return old.group
        made = _made[name] = _Made(source, make())
    if old is not None:
        old.group.close()
    return made.group


def by_name() -> dict[str, Group]:
    """All groups, the default one first; nothing connects.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    groups: dict[str, Group] = {DEFAULT: singleflight_sync}
    for alias in cache_aliases():
        group: SingleFlight = caches[alias].flights
        groups[group.name] = group
    return groups


def distinct() -> dict[str, Group]:
    """The groups, but of caches that mean the same flights the first one alone."""
    groups, seen = by_name(), set()
    for alias in cache_aliases():
        group = caches[alias].flights
        place = places.of_cache(caches.settings[alias]), group.namespace.name
        if place in seen and place[0] is not None:
            del groups[group.name]
        seen.add(place)
    return groups


def chosen(name: str) -> Group:
    """The group of this name.

    Raises:
        ConfigurationError: there is none.
    """
    groups = by_name()
    if name not in groups:
        raise ConfigurationError(f"there is no group {name!r}: the groups are {', '.join(groups)}")
    return groups[name]


def cache_aliases() -> list[str]:
    """The caches with our backend."""
    return [alias for alias, settings in caches.settings.items() if _is_ours(settings.get("BACKEND", ""))]


def close() -> None:
    """Close the groups of all caches; they are made anew at the next use."""
    with _lock():
        closing = [_made.pop(name).group for name in list(_made)]
    for group in closing:
        group.close()


def _is_ours(path: str) -> bool:
    try:
        backend = import_string(path)
    except ImportError:
        return False  # Django says so where it is used
    return isinstance(getattr(backend, "flights", None), property)


def _lock() -> threading.Lock:
    pid = os.getpid()
    return _locks.get(pid) or _locks.setdefault(pid, threading.Lock())
