"""Caches on a test's server, and calls in threads of this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django.core.cache import caches
from django.test import override_settings

import singleflight_sync
from django_singleflight import groups
from tests.support.idle import end_keeper
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.support.servers import Server

BACKEND = "django_singleflight.cache.SingleFlightCache"
DATABASE = 1


class Caches:
    """The caches of a project whose aliases have these settings; all in one database, unless they say otherwise."""

    def __init__(self, server: Server, aliases: dict[str, dict[str, Any]]) -> None:
        self.location = f"redis://127.0.0.1:{server.port}/{DATABASE}"
        base = {"BACKEND": BACKEND, "LOCATION": self.location}
        config = {alias: {**base, **settings} for alias, settings in aliases.items()}
        config.setdefault("default", {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"})
        self._override = override_settings(CACHES=config, SINGLEFLIGHT={"URL": server.url})
        self._override.enable()

    def __getitem__(self, alias: str) -> Any:
        return caches[alias]

    def close(self) -> None:
        """Close all groups, and have the old settings again."""
        singleflight_sync.close()
        self._override.disable()
        groups.close()
        end_keeper()


class Computation:
    """A callable that stops where the test wants it to."""

    def __init__(self, value: Any = "value") -> None:
        self.runs = 0
        self.running = threading.Event()
        self.go_on = threading.Event()
        self._value = value

    def __call__(self) -> Any:
        self.runs += 1
        self.running.set()
        assert self.go_on.wait(20)
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Threads:
    """Calls in threads of their own; a context manager that ends them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(32)

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call it, in a thread."""
        return self._pool.submit(function, *args)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def followers(cache: Any, key: str, count: int) -> None:
    """Wait until so many processes follow the flight of the key."""
    full = cache.make_key(key)

    def joined() -> bool:
        info = cache.flights.peek(full)
        return info is not None and info.followers >= count

    eventually(joined, within=10, what=f"{count} followers of {full}")


def never() -> Any:
    """A callable that must not be called."""
    raise AssertionError("computed, though there was a value")
