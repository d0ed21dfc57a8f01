"""``SingleFlight``: the groups that users make, and everything that they can ask of one."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from singleflight_sync import connect, presence, urls
from singleflight_sync.answers import Forgotten
from singleflight_sync.caller import Caller, Manner
from singleflight_sync.codecs import JSONCodec
from singleflight_sync.decorator import Decorated, decorator
from singleflight_sync.errors import ConfigurationError, StoreError
from singleflight_sync.events import Observers, StoreFailed
from singleflight_sync.info import FlightInfo, LogEntry
from singleflight_sync.keys import Namespace
from singleflight_sync.options import Options
from singleflight_sync.owner import call_directly
from singleflight_sync.runtime import Runtime, shared
from singleflight_sync.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from singleflight_sync.codecs import Codec
    from singleflight_sync.connect import Server
    from singleflight_sync.events import Callback
    from singleflight_sync.keys import Names
    from singleflight_sync.options import RunOptions, Seconds

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Mode = Literal["plain", "local"]

logger = logging.getLogger("singleflight_sync")

mode: Mode | None = None
"""What `singleflight_sync.testing` makes of all groups: plain calls, or flights inside the process."""


class SingleFlight:
    """A group of flights: one namespace on one server, with options in common.

    Thread-safe and fork-safe. Connects at the first use. As a context manager it is closed at the end.
    """

    def __init__(
        self,
        client: object = None,
        *,
        url: str | None = None,
        namespace: str = "ai:flight",
        codec: Codec | None = None,
        name: str = "default",
        result_key: Callable[[str], bytes] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Make a group; nothing connects yet.

        Args:
            client: a ready client of redis-py (``Redis``, ``RedisCluster``, Sentinel's ``master_for``), taken
                as it is.
            url: instead of a client; without both, the environment's ``SINGLEFLIGHT_URL``, else the embedded
                server where it is installed, else ``redis://127.0.0.1:6379/0``.
            namespace: prefix of all Redis keys.
            codec: how values become bytes; `JSONCodec` by default.
            name: the group's name in listings and metrics.
            result_key: for caches: the Redis key under which the value of a key is stored, without its token;
                it then gives way to what others have written there meanwhile.
            **options: defaults of all calls, see `Options`. Times in seconds or as ``timedelta``.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        if client is not None and url is not None:
            raise ConfigurationError("client and url are both given: pass one of them")
        if isinstance(client, str):
            raise ConfigurationError("client is a str: pass a URL as url=...")
        self._client = client
        self._url = None if url is None else urls.check_url(url)
        if client is not None:
            connect.from_client(client)  # raises for what is no client
        self.namespace = Namespace(namespace)
        self.name = _checked_name(name)
        self.options = Options.build(**options)
        self._codec = JSONCodec() if codec is None else _checked_codec(codec)
        self._result_key = result_key
        self._observers = Observers()
        self._runtimes: dict[
            tuple[int, Mode | None], Runtime
        ] = {}  # by process; `setdefault` lets one of several threads win

    def __repr__(self) -> str:
        return f"<SingleFlight {self.name!r} in {self.namespace.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- flights

    def run(
        self,
        key: str,
        fn: Callable[[], T],
        *,
        codec: Codec | None = None,
        max_waiting: int | None = None,
        on_wait: Callable[[], object] | None = None,
        **options: Unpack[RunOptions],
    ) -> T:
        """Return ``fn()``, computed once for all who ask for ``key`` at the same time, in all processes.

        ``fn`` runs in the caller's own thread and context, if at all. The owner gets its own object; every
        other caller one of its own (``str``, ``bytes`` and numbers are handed out as they are).

        Args:
            key: any non-empty text.
            fn: takes no argument; may look at `current_flight`.
            codec: instead of the group's.
            max_waiting: refuse to wait where more callers than that would wait, this one included: in this
                process, or processes in the flight's queue.
            on_wait: called once in this thread, before it begins to wait for somebody else.
            **options: what differs from the group's options.

        Raises:
            TooManyWaitingError: ``max_waiting`` is exceeded.
            WaitTimeoutError: no outcome within ``wait_timeout``.
            HardTimeoutError: the flight ran past ``hard_timeout`` or ``stall_timeout``.
            FlightCancelledError: it was ended by `cancel`.
            TakeoverLimitError: it lost more owners than ``max_takeovers`` replaces.
            ReentrantFlightError: ``key`` was asked for inside its own flight.
            CodecError: the value cannot be shared; in the caller that computed it, it stands on
                ``exc.value``.
            StoreError: Redis is unreachable, under ``on_store_error="raise"``.
            OwnerFailedError: the owner's exception cannot be rebuilt here.
            ConfigurationError, TypeError: an argument cannot be used.
            Exception: what the owner's ``fn`` raised.
        """
        endless = self._result_key is not None and options.get("ttl", 0) is None
        if endless:
            del options["ttl"]
        chosen = self.options.changed(**options)
        if not callable(fn):
            raise TypeError(
                f"fn is a {type(fn).__name__}: pass a function without arguments, such as lambda: build(42)"
            )
        names = self._names(key)
        codec = self._codec if codec is None else _checked_codec(codec)
        if not self._shares(chosen):
            return cast("T", call_directly(fn, key))
        manner = Manner(codec, None if endless else chosen.ttl, max_waiting, on_wait)
        return cast("T", Caller(self._runtime(), names, fn, chosen, manner).obtain())

    @overload
    def single_flight(self, function: Callable[P, T], /) -> Decorated[P, T]: ...

    @overload
    def single_flight(
        self, function: None = None, /, *, key: str | Callable[..., str] | None = None, **options: Unpack[RunOptions]
    ) -> Callable[[Callable[P, T]], Decorated[P, T]]: ...

    def single_flight(self, function: Any = None, /, *, key: Any = None, **options: Any) -> Any:
        """Decorate a function, so that equal calls at the same time are one flight.

        Args:
            function: the function, where the decorator is used without parentheses.
            key: a template over the arguments' names (``"report:{report_id}"``), or a callable that takes the
                call's arguments; by default the function's module, qualified name and typed arguments.
            **options: as for `run`.

        Raises:
            ConfigurationError, TypeError: it cannot be decorated so.
        """
        return decorator(self.run, function, key, options, self.options)

    def get(self, key: str, default: Any = None) -> Any:
        """The fresh result of ``key``, or ``default``; never computes and never waits.

        Raises:
            StoreError: Redis is unreachable, under ``on_store_error="raise"``.
        """
        names, store = self._names(key), self._store()
        if store is None:
            return default
        try:
            stored = store.first(key, lambda: store.fetch(names))
        except StoreError as exc:
            self._observers.emit(StoreFailed(key, self.name, None, "get", str(exc)))
            if self.options.on_store_error == "raise":
                raise
            return default
        try:
            return default if stored is None else self._codec.loads(stored.value)
        except Exception as exc:  # noqa: BLE001 - whatever a codec of the user's raises, these bytes are a miss
            logger.warning("the result of key %r cannot be read: %s", key, exc)
            return default

    # -- for operators

    def peek(self, key: str) -> FlightInfo | None:
        """The live flight of ``key``, or None.

        Raises:
            StoreError: Redis is unreachable.
        """
        return next(iter(self._infos([self._names(key).tag.encode()], key)), None)

    def history(self, key: str) -> list[LogEntry]:
        """What the log of ``key`` still holds, oldest first: the newest 100 entries, without their values.

        Raises:
            StoreError: Redis is unreachable.
        """
        names, store = self._names(key), self._store()
        if store is None:
            return []
        entries = store.history(names, 100)
        return [LogEntry.of_entry(values, now_ms) for now_ms, values in entries]

    def live(self) -> list[FlightInfo]:
        """All live flights, oldest first.

        A flight enters the index by its heartbeat's first act, a quarter of a beat after its claim.

        Raises:
            StoreError: Redis is unreachable.
        """
        store = self._store()
        if store is None:
            return []
        return sorted(self._infos(store.live()), key=lambda info: -info.age)

    def cancel(self, key: str, fencing_token: int | None = None) -> bool:
        """End the open flight of ``key`` now.

        Everybody in it gets `FlightCancelledError`, and its function's cancel token fires.

        Args:
            key: the flight's key.
            fencing_token: end that flight only.

        Returns:
            Whether it ended an open flight. Who comes later starts a new one.

        Raises:
            StoreError: Redis is unreachable.
        """
        names, store = self._names(key), self._store()
        _check_token(fencing_token)
        token = self._airborne(key, fencing_token) if store is None else store.cancel(names, fencing_token)
        if token is None:
            return False
        self.part(key)
        for lease in self._runtime().shared.leases.copy():
            if lease.names.key == key:
                lease.cancelled(token)
        return True

    def forget(self, key: str, fencing_token: int | None = None) -> bool:
        """Drop the result of ``key``; an open flight answers those in it, and stores nothing.

        Who comes later takes nothing from that flight, waits for its end, and then starts the next one.

        Args:
            key: what is to be forgotten.
            fencing_token: of that flight only.

        Returns:
            Whether a result, a kept failure or an open flight was there.

        Raises:
            StoreError: Redis is unreachable.
        """
        _check_token(fencing_token)
        (found,) = self._forgotten([key], fencing_token)
        return found.stored or found.other

    def forget_many(self, keys: Sequence[str]) -> list[bool]:
        """Forget several keys in one round trip.

        Returns:
            For each key whether a stored result was there.

        Raises:
            StoreError: Redis is unreachable.
        """
        return [found.stored for found in self._forgotten(keys, None)] if keys else []

    def _forgotten(self, keys: Sequence[str], token: int | None) -> list[Forgotten]:
        every, store = [self._names(key) for key in keys], self._store()
        try:
            if store is None:
                tokens = [self._airborne(key, token) for key in keys]
                found = [Forgotten(stored=False, other=each is not None, token=each) for each in tokens]
            else:
                found = store.forget(every, token)
        finally:
            self.part(*keys)  # not before: a caller between the two would join what is being forgotten
        for lease in self._runtime().shared.leases.copy():
            for names, each in zip(every, found, strict=True):
                if each.token is not None and lease.names.key == names.key:
                    lease.forgotten(each.token)
        return found

    def _airborne(self, key: str, token: int | None) -> int | None:
        """The token of the flight that no Redis knows of, where all stay inside the process (see `testing`)."""
        leases = () if mode == "plain" else self._runtime().shared.leases.copy()
        tokens = [lease.right.token for lease in leases if lease.names.key == key]
        return next((each for each in tokens if token in {None, each}), None)

    # -- for those who build on flights

    def put(self, key: str, value: object, ttl: Seconds, *, codec: Codec | None = None) -> None:
        """Store a fresh result without a flight, instead of what is there; touches no flight in the air.

        Args:
            key: As for `run`.
            value: As a function would return it.
            ttl: Its life in seconds.
            codec: Instead of the group's.

        Raises:
            StoreError: Redis is unreachable or refuses.
            CodecError: The value cannot be encoded.
        """
        names, store = self._names(key), self._store()
        life = self.options.changed(ttl=ttl).ttl
        if store is not None and life > 0:
            payload = (codec or self._codec).dumps(value)
            store.first(key, lambda: store.put(names, payload, life))

    def is_enabled(self) -> bool:
        """Whether `run` shares at all: by the option ``enabled``, and by `singleflight_sync.testing`."""
        return self._shares(self.options)

    def _shares(self, options: Options) -> bool:
        # What a cache keeps stands in its server: it cannot be local.
        plain = mode == "plain" or (mode == "local" and self._result_key is not None)
        return not plain and options.is_enabled()

    def is_open(self, key: str) -> bool:
        """Whether a caller of ``key`` would join callers of this process now. Asks nobody."""
        runtime = self._runtimes.get((os.getpid(), mode))
        return runtime is not None and runtime.shared.rooms.is_open(key)

    def part(self, *keys: str) -> None:
        """Later callers of these keys (of all, without any) join no flight that is in the air in this process.

        Those who are in one stay in it. Asks nobody and never fails.
        """
        runtime = self._runtimes.get((os.getpid(), mode))
        if runtime is not None:
            runtime.shared.rooms.close_keys(keys)

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Have ``callback`` called with each event of this group, in the thread in which it happens.

        Returns:
            A function that ends it.
        """
        return self._observers.subscribe(callback)

    def close(self) -> None:
        """Release the flights in the air, whose callers get their own value, and close all connections.

        A later call connects anew.
        """
        for place in [each for each in list(self._runtimes) if each[0] == os.getpid()]:
            runtime = self._runtimes.pop(place, None)
            if runtime is None:  # another thread closes, too
                continue
            for lease in runtime.own.copy():
                lease.give_up()
            if runtime.store is not None:
                runtime.store.close()

    # -- inside

    def _names(self, key: str) -> Names:
        names = self.namespace.names(key)
        return names if self._result_key is None else names._replace(result=self._result_key(key))

    def _runtime(self) -> Runtime:
        place = os.getpid(), mode
        return self._runtimes.get(place) or self._runtimes.setdefault(place, self._new_runtime(place))

    def _store(self) -> Store | None:
        return None if mode == "plain" else self._runtime().store

    def _new_runtime(self, place: tuple[int, Mode | None]) -> Runtime:
        server = None if place[1] == "local" else self._server()
        store = None if server is None else Store(server, self.namespace, bare=self._result_key is not None)
        identity = id(self) if server is None else server.identity
        common = shared((place, identity, self.namespace.name, self._result_key is not None))
        return Runtime(self.name, place[0], presence.own_id().encode(), store, self._observers, common)

    def _server(self) -> Server:
        return (
            urls.from_url(self._url or urls.default_url())
            if self._client is None
            else connect.from_client(self._client)
        )

    def _infos(self, tags: list[bytes], key: str = "") -> list[FlightInfo]:
        store = self._store()
        if store is None or not tags:
            return []
        boards = store.boards(tags, key)
        return [FlightInfo.of_board(values, now_ms, self.name) for now_ms, values in boards]


def _check_token(token: object) -> None:
    if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
        raise TypeError(f"fencing_token is {token!r}: pass the int that current_flight(), peek() or live() shows")


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"name is {name!r}: pass a non-empty str")
    return name


def _checked_codec(codec: Any) -> Codec:
    if isinstance(codec, type) or not (
        callable(getattr(codec, "dumps", None)) and callable(getattr(codec, "loads", None))
    ):
        raise ConfigurationError(
            f"codec is {codec!r}: pass an object with dumps(value) -> bytes and loads(bytes) -> value, "
            f"such as JSONCodec()"
        )
    return codec  # type: ignore[no-any-return]
