"""Django's Redis cache with a ``get_or_set`` that is computed once over all processes.

Everything else stays Django's own: the client, its connections and its commands, its keys and timeouts. What was
deleted while it was computed is not stored, and what stands under the key when a computation ends is not replaced.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.redis import RedisCache

from django_singleflight import conf, groups, transactions
from django_singleflight.signing import SIGNED, UNREADABLE, SerializerCodec
from singleflight_sync import (
    CodecError,
    HardTimeoutError,
    SingleFlight,
    StoreError,
    TakeoverLimitError,
    Unshared,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_MISSING = object()
_LONGEST = 1e9  # seconds; over thirty years are as good as the engine's longest time


class SingleFlightCache(RedisCache):
    """Use it as ``BACKEND``. One object per thread, as Django makes them; flights belong to the process."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        options = dict(params.get("OPTIONS", {}))
        self._own: Mapping[str, Any] = conf.checked_mapping(
            options.pop(conf.NAME, {}), f"OPTIONS[{conf.NAME!r}] of a cache"
        )
        self._given = server, params
        if options.get("serializer") is None:
            options["serializer"] = SIGNED
        super().__init__(server, {**params, "OPTIONS": options})
        transactions.observe_all()

    # -- the flights

    @property
    def flights(self) -> SingleFlight:
        """The group of this cache, the same in all threads.

        Raises:
            ConfigurationError: a setting cannot be used.
        """
        source = groups.Source(dict(conf.given()), self._own, self._servers, self._options)
        return groups.of_cache(self._name, source, self._make_flights)

    @functools.cached_property
    def _name(self) -> str:
        server, params = self._given
        for alias, settings in caches.settings.items():
            given = {name: value for name, value in settings.items() if name not in ("BACKEND", "LOCATION")}
            if (settings.get("LOCATION", ""), given) == (server, params):
                return f"cache:{alias}"
        return "cache:?"

    def _make_flights(self) -> SingleFlight:
        client = self._cache.get_client(write=True)
        encode = client.get_encoder().encode
        return SingleFlight(
            client,
            name=self._name,
            result_key=encode,
            codec=SerializerCodec(self._cache._serializer, encode),  # noqa: SLF001 - Django has no public word for it
            **conf.cache_arguments(self._own),
        )

    # -- one computation over all processes

    def get_or_set(self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> Any:
        """Return the value of ``key``; where there is none, that of ``default``.

        A callable is computed once for all who ask for the key at the same time, in all processes; all of them get its
        value, which may be None. In a transaction that has written it is computed for this caller alone and not stored,
        see ``IN_ATOMIC``; also where its flight has no outcome (Redis is down, it takes too long, its owners die).

        Args:
            key: as in ``get``.
            default: a callable without arguments, or a value.
            timeout: seconds, milliseconds are kept; None: without end; 0 or less: not stored.
            version: as in ``get``.

        Raises:
            FlightCancelledError: an operator has ended the flight.
            OwnerFailedError: the callable failed elsewhere, with an exception that cannot be rebuilt here.
            Exception: what the callable raised, here or elsewhere; what pickle raised of its value.
        """
        if not callable(default):
            return self._get_or_add(key, default, timeout, version)
        if not self.flights.is_enabled():
            return super().get_or_set(key, default, timeout, version)
        full = self._text(self.make_and_validate_key(key, version))
        if full is None:
            return super().get_or_set(key, default, timeout, version)
        if transactions.has_written() and conf.in_atomic(self._own) == "alone":
            value = self.get(key, _MISSING, version)
            return default() if value is _MISSING else value
        return self._fly(full, default, self._seconds(timeout))

    async def aget_or_set(
        self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> Any:
        """Django's own. Before 6.1 it shares nothing; from then on it is `get_or_set`, in asgiref's one sync thread."""
        # A test of Django 6.1 calls it without a default wherever it is inherited beside another `get_or_set`.
        return await super().aget_or_set(key, default, timeout, version)

    def _get_or_add(self, key: Any, value: Any, timeout: Any, version: int | None) -> Any:
        stored = self.get(key, _MISSING, version)
        if stored is not _MISSING:
            return stored
        return value if self.add(key, value, timeout, version) else self.get(key, value, version)

    def _fly(self, key: str, default: Callable[[], Any], ttl: float | None) -> Any:
        flights = self.flights
        if flights.is_open(key):
            # Who joins gets what was asked of Redis before this call: look what it says now.
            value = flights.get(key, _MISSING)
            if value is not _MISSING:
                return value
        attempt = _Attempt(default, alone=conf.in_atomic(self._own) == "alone")
        try:
            return flights.run(key, attempt, ttl=ttl)  # type: ignore[arg-type] # None is for groups of caches
        except (WaitTimeoutError, HardTimeoutError, TakeoverLimitError, StoreError) as exc:
            return attempt.result(exc)
        except CodecError as exc:
            value = attempt.result(exc)
            if exc.__cause__ is not None or not attempt.returned:
                self._cache._serializer.dumps(value)  # noqa: SLF001 - raises what ``set`` would
            return value

    def _seconds(self, timeout: Any) -> float | None:
        """The timeout as Django understands it, milliseconds kept; 0: not stored, None: without end."""
        if timeout == DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        if timeout is None:
            return None
        int(timeout)  # raises what the other methods raise
        return min(max(0.0, float(timeout)), _LONGEST)

    def _text(self, full: Any) -> str | None:
        """The key in Redis as a text; None if it is none: ``KEY_FUNCTION`` returns what the client takes."""
        if not isinstance(full, str):
            try:
                full = self._cache.get_client(write=True).get_encoder().encode(full).decode()
            except UnicodeDecodeError:
                return None
        return full or None

    # -- reading: what we have not signed is not there

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Django's own; bytes that were not signed with a secret of ours are a miss."""
        value = super().get(key, default, version)
        return default if value is UNREADABLE else value

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Django's own; bytes that were not signed with a secret of ours are a miss."""
        return {key: value for key, value in super().get_many(keys, version).items() if value is not UNREADABLE}

    # -- writing: who asks after a write gets nothing that was computed before it

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        """Django's own. What is being computed for the key elsewhere is not stored over it."""
        with self._write(version, key) as forget:
            super().set(key, value, timeout, version)
            if self._is_deletion(timeout):
                forget()

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Django's own. What is being computed for the key elsewhere is not stored over it."""
        with self._write(version, key) as forget:
            added = bool(super().add(key, value, timeout, version))
            if added and self._is_deletion(timeout):
                forget()
        return added

    def set_many(self, data: dict[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> list[Any]:
        """Django's own. What is being computed for the keys elsewhere is not stored over them."""
        with self._write(version, *data) as forget:
            failed = list(super().set_many(data, timeout, version))
            if self._is_deletion(timeout):
                forget()
        return failed

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Django's own; False while the key is only being computed."""
        with self._write(version, key) as forget:
            touched = bool(super().touch(key, timeout, version))
            if self._is_deletion(timeout):
                forget()
        return touched

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Django's own; a ValueError while the key is only being computed."""
        with self._write(version, key):
            return int(super().incr(key, delta, version))

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Delete the key; what is being computed for it answers those who wait already, and is not stored.

        Returns:
            Whether there was a value.
        """
        flights, full = self.flights, self._text(self.make_and_validate_key(key, version))
        if full is None or not flights.is_enabled():
            return bool(super().delete(key, version))
        return self._forget([full])[0]

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete the keys; what is being computed for them answers those who wait already, and is not stored."""
        keys = list(keys)
        full = [self._text(self.make_and_validate_key(key, version)) for key in keys]
        if None in full or not self.flights.is_enabled():
            super().delete_many(keys, version)
        if self.flights.is_enabled():
            self._forget([each for each in full if each is not None])

    def clear(self) -> bool:
        """Empty the database, as Django's does; what is being computed meanwhile is not stored."""
        try:
            return bool(super().clear())
        finally:
            self.flights.part()

    @contextlib.contextmanager
    def _write(self, version: int | None, *keys: Any) -> Iterator[Callable[[], None]]:
        """Around a write of Django's own; yields what forgets the keys, to be called where the write was a deletion."""
        full = [text for key in keys if (text := self._text(self.make_key(key, version))) is not None]
        flights = self.flights

        def forget() -> None:
            if flights.is_enabled():
                self._forget(full)

        try:
            yield forget
        finally:
            if full:
                flights.part(*full)  # not before: a caller between the two would join what is older than the write

    def _is_deletion(self, timeout: Any) -> bool:
        """Whether a write with this timeout deletes, as Django understands it."""
        return bool(self.get_backend_timeout(timeout) == 0)

    def _forget(self, keys: list[str]) -> list[bool]:
        try:
            return self.flights.forget_many(keys)
        except StoreError as exc:
            raise (exc.__cause__ or exc) from None  # as the other methods raise it

    def make_and_validate_key(self, key: Any, version: int | None = None) -> Any:
        """Django's own; a key in the namespace of the flights is refused.

        Raises:
            ValueError: the key could meet those of flights.
        """
        full = super().make_and_validate_key(key, version)
        start = f"{conf.namespace(self._own)}:"
        if (full.decode("latin-1") if isinstance(full, bytes) else str(full)).startswith(start):
            raise ValueError(
                f"the cache key {full!r} begins as the keys of flights do: "
                f"choose another KEY_PREFIX, or another NAMESPACE for {conf.NAME}"
            )
        return full


class _Attempt:
    """The callable of one ``get_or_set``, as its flight runs it. Used by one thread."""

    def __init__(self, function: Callable[[], Any], *, alone: bool) -> None:
        """``alone``: not to be shared from a transaction that has written."""
        self.returned = False
        self._function = function
        self._alone = alone
        self._ran = False
        self._value: Any = None

    def __call__(self) -> Any:
        self._ran, self.returned = True, False
        self._value = self._function()
        self.returned = True
        return Unshared(self._value) if self._alone and transactions.has_written() else self._value

    def result(self, exc: Exception) -> Any:
        """The value for a caller whose flight came to no end with one.

        Raises:
            Exception: ``exc``, where it is the callable's own, or that of a callable which was stopped.
        """
        if self.returned:
            return self._value
        if self._ran:
            raise exc
        return self._function()
