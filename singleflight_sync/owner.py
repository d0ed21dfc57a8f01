"""The owner's life: run the function under the lease, publish, and bow to what has become of the flight meanwhile."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from singleflight_sync import deadline, failures, outcome
from singleflight_sync.answers import Answer, Fate, Position
from singleflight_sync.cancel import CancelReason, CancelToken
from singleflight_sync.codecs import is_immutable
from singleflight_sync.errors import CodecError, ConfigurationError, FlightInterrupted, ReentrantFlightError, StoreError
from singleflight_sync.events import FlightCancelled, FlightFailed, FlightLost, FlightPublished, StoreFailed
from singleflight_sync.log import Entry
from singleflight_sync.outcome import Failure, Kind, Outcome, Value
from singleflight_sync.wire import UnreachableError

if TYPE_CHECKING:
    from datetime import timedelta

    from singleflight_sync.codecs import Codec
    from singleflight_sync.heartbeat import Aboard, Lease
    from singleflight_sync.options import Options

Tell = Callable[..., None]
"""Reports a fact of this flight: the event's class, then its own fields."""

logger = logging.getLogger("singleflight_sync")


class Flight:
    """The flight that the running function computes: see `current_flight`.

    Attributes:
        key: What the caller asked for.
        cancel_token: Tells the function that it should stop, and why.
        parent: The flight that this one runs inside of, or None.
        done: Whether its function has ended.
    """

    __slots__ = ("_lease", "_scope", "cancel_token", "done", "key", "parent")

    def __init__(self, key: str, lease: Lease, scope: object, parent: Flight | None) -> None:
        self.key = key
        self.cancel_token: CancelToken = lease.cancel_token
        self._lease = lease
        self._scope = scope
        self.parent = parent
        self.done = False

    @property
    def fencing_token(self) -> int:
        """The flight's identity, ever increasing over all keys.

        Pass it to a resource that must refuse an owner that was replaced.

        Read it at each use: after Redis lost its data, the flight goes on under a new one. 0 in a flight that
        no Redis knows of.
        """
        return self._lease.right.token

    def is_inside(self, key: str, scope: object, token: int | None) -> bool:
        """Whether this flight, or one that it runs inside of, is that of ``key`` here, or has this fencing token."""
        flight: Flight | None = self
        while flight is not None:
            same = flight._scope is scope or (token and flight.fencing_token == token)  # noqa: SLF001 - of the same class
            if flight.key == key and same:
                return True
            flight = flight.parent
        return False


_current: ContextVar[Flight | None] = ContextVar("singleflight_sync.current_flight", default=None)


def current_flight() -> Flight | None:
    """Return the flight that this thread (or context) is running, the innermost one, or None."""
    flight = _current.get()
    while flight is not None and flight.done:  # in a context that was copied inside of it, and outlives it
        flight = flight.parent
    return flight


def check_entrance(key: str, scope: object, token: int | None = None) -> Flight | None:
    """Return the flight from inside which ``key`` is asked for, if any.

    Args:
        key: What is asked for.
        scope: The rooms in which it is.
        token: Its flight, where that is known: the same key may have been reached by another name of the server.

    Raises:
        ReentrantFlightError: it is the very flight of ``key``, which would wait for itself.
    """
    flight = current_flight()
    if flight is not None and flight.is_inside(key, scope, token):
        raise ReentrantFlightError(
            f"key {key!r} was asked for inside its own flight, which would wait for itself: "
            f"call the function directly there"
        )
    return flight


class Unshared(NamedTuple):
    """What a function returns whose value is for its own caller alone.

    The flight ends without an outcome: nothing is stored, and those who wait claim in turn.
    """

    value: Any


class Kept(NamedTuple):
    """What a function returns whose value has a life of its own for those who come later, whatever ``ttl`` says.

    Attributes:
        value: What everybody in the flight gets.
        ttl: In seconds, or as a ``timedelta``; 0 = nobody else gets it.
    """

    value: Any
    ttl: float | timedelta


def call_directly(function: Callable[[], Any], key: str) -> Any:
    """Call a function for its caller alone, without a flight."""
    value = _checked(function(), key)
    return value.value if isinstance(value, (Unshared, Kept)) else value


class Landed(NamedTuple):
    """The caller has its value."""

    value: Any


class Refused(NamedTuple):
    """Somebody else owns the flight: the value is dropped, and its caller follows from here."""

    position: Position


class Owner(NamedTuple):
    """One flight as its owner runs it."""

    flight: Flight
    lease: Lease
    aboard: Aboard
    options: Options
    codec: Codec
    ttl: float | None
    tell: Tell

    def fly(self, function: Callable[[], Any]) -> Landed | Refused | Failure:
        """Run the function and publish what comes of it.

        Returns:
            The value, or what the caller gets instead of it.

        Raises:
            BaseException: what the function raised; a `StoreError` under ``on_store_error="raise"``. If it is
                no outcome, the caller has to release the lease and to leave its room.
        """
        try:
            _current.set(self.flight)
            return self._run(function)
        finally:
            self.flight.done = True
            _current.set(self.flight.parent)

    def _run(self, function: Callable[[], Any]) -> Landed | Refused | Failure:
        began = deadline.now()
        try:
            value = _checked(function(), self.flight.key)
        except FlightInterrupted as exc:
            if exc.token is not self.lease.cancel_token:
                raise  # of a flight that this one runs inside of
            return self._interrupted()
        except Exception as exc:  # noqa: BLE001 - it is the outcome
            return self._failed(exc, began)
        if isinstance(value, Unshared):
            self.lease.release(counted=False)
            self.aboard.vacate()
            return Landed(value.value)
        ttl = self.ttl
        if isinstance(value, Kept):
            try:
                value, ttl = value.value, self.options.changed(ttl=value.ttl).ttl
            except ConfigurationError as exc:
                return self._failed(exc, began)
        try:
            payload = self._encoded(value)
        except CodecError as exc:
            return self._failed(exc, began)
        return self._published(value, payload, ttl, began)

    def _encoded(self, value: Any) -> bytes:
        try:
            payload: object = self.codec.dumps(value)
        except CodecError as exc:
            raise CodecError(f"the value of key {self.flight.key!r} cannot be shared: {exc}", value) from exc
        except Exception as exc:  # of a codec of the user's
            raise CodecError(
                f"the value of key {self.flight.key!r} cannot be encoded: {failures.text_of(exc)}", value
            ) from exc
        if isinstance(payload, (bytearray, memoryview)):
            payload = bytes(payload)
        if not isinstance(payload, bytes):
            codec = type(self.codec).__qualname__
            raise CodecError(
                f"the value of key {self.flight.key!r} cannot be encoded: dumps of {codec} returned a "
                f"{type(payload).__name__}, and has to return bytes",
                value,
            )
        if len(payload) > self.options.max_bytes:
            raise CodecError(
                f"the value of key {self.flight.key!r} has {len(payload)} bytes encoded, more than "
                f"max_bytes={self.options.max_bytes}: return less, or raise max_bytes",
                value,
            )
        return payload

    def _published(self, value: Any, payload: bytes, ttl: float | None, began: float) -> Landed | Refused | Failure:
        mine = Value(payload, (value,) if is_immutable(value) else ())
        try:
            fate = self.lease.publish(payload, ttl)
        except StoreError as exc:
            self.tell(StoreFailed, operation="publish", error=str(exc))
            if isinstance(exc, UnreachableError) and self.options.on_store_error == "raise":
                self.aboard.settle(Failure(Kind.ERROR, failures.describe(exc, flight=self.lease.described())))
                raise
            logger.warning("the value of key %r is not shared: %s", self.flight.key, exc)
            self.aboard.settle(mine)
            return Landed(value)
        instead = self._instead(fate, mine, began)
        if instead is not None:
            return instead
        if fate is Answer.DONE:
            self.tell(FlightPublished, duration=deadline.now() - began, size=len(payload))
        return Landed(value)

    def _failed(self, error: Exception, began: float) -> Refused | Failure:
        mine = Failure(Kind.ERROR, failures.describe(error, flight=self.lease.described()))
        try:
            fate = self.lease.fail(mine.payload)
        except StoreError as exc:
            self.tell(StoreFailed, operation="fail", error=str(exc))
            fate = Answer.DONE
        instead = self._instead(fate, mine, began)
        if instead is not None:
            return instead
        self.tell(FlightFailed, duration=deadline.now() - began, error=type(error).__name__)
        raise error

    def _interrupted(self) -> Refused | Failure:
        """The cancel token stopped the function."""
        if self.flight.cancel_token.reason is CancelReason.STORE_UNREACHABLE:
            error = StoreError(
                f"flight of key {self.flight.key!r} was stopped: Redis gave no answer until its lease was over"
            )
            self.aboard.settle(Failure(Kind.ERROR, failures.describe(error, flight=self.lease.described())))
            raise error
        instead = self._instead(self.lease.end, None, deadline.now() - self.lease.age())
        assert instead is not None
        return instead

    def _instead(self, fate: Fate | Failure, mine: Outcome | None, began: float) -> Refused | Failure | None:
        """What the caller gets instead of its own outcome, if the flight has another end."""
        end = outcome.of_end(fate) if isinstance(fate, Entry) else fate
        if isinstance(end, Failure):
            self.aboard.settle(end)
            self.tell(FlightCancelled) if end.kind is Kind.CANCELLED else self.tell(
                FlightFailed, duration=deadline.now() - began, error="ended early"
            )
            return end
        if end is Answer.LOST:
            self.aboard.lost(self.lease.position)
            self.tell(FlightLost, duration=deadline.now() - began, reason=CancelReason.LOST.value)
            return Refused(self.lease.position)
        if mine is not None:
            self.aboard.settle(mine)
        return None


def _checked(value: Any, key: str) -> Any:
    if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        kind = type(value).__name__
        if not inspect.isasyncgen(value):
            value.close()
        raise TypeError(
            f"the function of key {key!r} returned a {kind}, which cannot be shared: return a finished value "
            f"(async code is run to its end inside the function)"
        )
    return value
