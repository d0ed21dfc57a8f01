"""The default group, which the module-level functions use."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from singleflight_sync.errors import ConfigurationError
from singleflight_sync.group import SingleFlight

Settings = dict[str, Any]
"""The arguments of `SingleFlight`, by name."""


class _Default:
    """Made at import, and so without a lock before its first use."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}  # by process; `setdefault` lets one of several threads win
        # Written under the lock.
        self._source: Callable[[], Settings] = dict
        self._place: str | None = None
        self._made: tuple[Settings, SingleFlight] | None = None

    def configure(self, source: Callable[[], Settings], place: str) -> None:
        with self._lock():
            if self._place is not None and source is self._source:
                return  # the same once more: a framework that sets itself up twice
            if self._place is not None:
                raise ConfigurationError(
                    f"singleflight_sync was configured at {self._place}, and now again at {place}: do it once"
                )
            if self._made is not None:
                raise ConfigurationError(
                    f"singleflight_sync is configured at {place}, after its default group was used: "
                    f"do it before the first call"
                )
            self._source, self._place = source, place

    def group(self) -> SingleFlight:
        answer = self._source()
        made = self._made
        if made is not None and made[0] == answer:
            return made[1]
        with self._lock():
            old = self._made
            if old is not None and old[0] == answer:
                return old[1]
            made = self._made = (dict(answer), SingleFlight(**answer))
        if old is not None:
            old[1].close()
        return made[1]

    def reset(self) -> None:
        """For tests: as if never configured."""
        with self._lock():
            made, self._made, self._place, self._source = self._made, None, None, dict
        if made is not None:
            made[1].close()

    def _lock(self) -> threading.Lock:
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())


default = _Default()


def configure(source: Any = None, /, **settings: Any) -> None:
    """Configure the default group, once and before its first use. Connects to nothing.

    Args:
        source: a ready client of redis-py; or a callable that returns the settings below as a dict. It is
            asked at each call, and where its answer has changed the group is built anew and the old one
            closed.
        **settings: as for `SingleFlight`: ``url``, ``namespace``, ``codec``, ``name`` and the options.

    Raises:
        ConfigurationError: a setting cannot be used; it was configured or used before.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - two places that configure are named in the error
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if callable(source):
        if settings:
            raise ConfigurationError("configure() takes a callable or settings, not both")
        default.configure(source, place)
        return
    if source is not None:
        settings["client"] = source
    SingleFlight(**settings)  # raises for what cannot be used
    default.configure(lambda: settings, place)


def group() -> SingleFlight:
    """The default group as it is configured now."""
    return default.group()
