"""Distributed single-flight on Redis: one caller computes, all others get the same outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from singleflight_sync.cancel import CancelReason, CancelToken
from singleflight_sync.codecs import CBORCodec, Codec, JSONCodec, PickleCodec
from singleflight_sync.decorator import decorator as _decorator
from singleflight_sync.default import configure
from singleflight_sync.default import group as default_group
from singleflight_sync.errors import (
    CodecError,
    ConfigurationError,
    FlightCancelledError,
    FlightInterrupted,
    HardTimeoutError,
    OwnerFailedError,
    ReentrantFlightError,
    SingleFlightError,
    StoreError,
    TakeoverLimitError,
    TooManyWaitingError,
    WaitTimeoutError,
)
from singleflight_sync.events import (
    FlightCancelled,
    FlightClaimed,
    FlightEvent,
    FlightFailed,
    FlightFollowed,
    FlightLost,
    FlightPublished,
    FlightTakenOver,
    ResultHit,
    StoreFailed,
    WaitTimedOut,
)
from singleflight_sync.failures import describe as describe_error
from singleflight_sync.failures import rebuild as rebuild_error
from singleflight_sync.group import SingleFlight
from singleflight_sync.info import FlightInfo, LogEntry
from singleflight_sync.options import RunOptions
from singleflight_sync.owner import Flight, Kept, Unshared, current_flight

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from typing_extensions import Unpack

    from singleflight_sync.decorator import Decorated
    from singleflight_sync.events import Callback

    P = ParamSpec("P")
    T = TypeVar("T")

__version__ = "0.1.0"

__all__ = [
    "CBORCodec",
    "CancelReason",
    "CancelToken",
    "Codec",
    "CodecError",
    "ConfigurationError",
    "Flight",
    "FlightCancelled",
    "FlightCancelledError",
    "FlightClaimed",
    "FlightEvent",
    "FlightFailed",
    "FlightFollowed",
    "FlightInfo",
    "FlightInterrupted",
    "FlightLost",
    "FlightPublished",
    "FlightTakenOver",
    "HardTimeoutError",
    "JSONCodec",
    "Kept",
    "LogEntry",
    "OwnerFailedError",
    "PickleCodec",
    "ReentrantFlightError",
    "ResultHit",
    "RunOptions",
    "SingleFlight",
    "SingleFlightError",
    "StoreError",
    "StoreFailed",
    "TakeoverLimitError",
    "TooManyWaitingError",
    "Unshared",
    "WaitTimedOut",
    "WaitTimeoutError",
    "cancel",
    "close",
    "configure",
    "current_flight",
    "default_group",
    "describe_error",
    "forget",
    "get",
    "history",
    "live",
    "peek",
    "rebuild_error",
    "run",
    "single_flight",
    "subscribe",
]


def run(
    key: str,
    fn: Callable[[], T],
    *,
    codec: Codec | None = None,
    max_waiting: int | None = None,
    on_wait: Callable[[], object] | None = None,
    **options: Unpack[RunOptions],
) -> T:
    """Run ``fn`` as one flight of the default group; see `SingleFlight.run`."""
    return default_group().run(key, fn, codec=codec, max_waiting=max_waiting, on_wait=on_wait, **options)


@overload
def single_flight(function: Callable[P, T], /) -> Decorated[P, T]: ...


@overload
def single_flight(
    function: None = None, /, *, key: str | Callable[..., str] | None = None, **options: Unpack[RunOptions]
) -> Callable[[Callable[P, T]], Decorated[P, T]]: ...


def single_flight(function: Any = None, /, *, key: Any = None, **options: Any) -> Any:
    """Decorate a function for the default group; see `SingleFlight.single_flight`."""
    return _decorator(run, function, key, options)


def get(key: str, default: Any = None) -> Any:
    """The fresh result of ``key`` in the default group; see `SingleFlight.get`."""
    return default_group().get(key, default)


def peek(key: str) -> FlightInfo | None:
    """The live flight of ``key`` in the default group; see `SingleFlight.peek`."""
    return default_group().peek(key)


def history(key: str) -> list[LogEntry]:
    """What the log of ``key`` still holds in the default group; see `SingleFlight.history`."""
    return default_group().history(key)


def live() -> list[FlightInfo]:
    """All live flights of the default group, oldest first; see `SingleFlight.live`."""
    return default_group().live()


def cancel(key: str, fencing_token: int | None = None) -> bool:
    """End the open flight of ``key`` in the default group; see `SingleFlight.cancel`."""
    return default_group().cancel(key, fencing_token)


def forget(key: str, fencing_token: int | None = None) -> bool:
    """Drop the result of ``key`` in the default group; see `SingleFlight.forget`."""
    return default_group().forget(key, fencing_token)


def subscribe(callback: Callback) -> Callable[[], None]:
    """Have ``callback`` called with each event of the default group; see `SingleFlight.subscribe`."""
    return default_group().subscribe(callback)


def close() -> None:
    """Close the default group; see `SingleFlight.close`."""
    default_group().close()
