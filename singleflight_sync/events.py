"""What observers are told: one frozen class per fact. All times are seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger("singleflight_sync")

Callback = Callable[["FlightEvent"], object]


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """A fact about one flight.

    Attributes:
        key: What the caller asked for; ``""`` if the fact belongs to no key.
        group: Name of the ``SingleFlight`` that reports it.
        fencing_token: Identity of the flight; ``None`` if not known or not issued.
    """

    key: str
    group: str
    fencing_token: int | None


@dataclass(frozen=True, slots=True)
class FlightClaimed(FlightEvent):
    """This caller became the owner of a new flight.

    Attributes:
        takeovers: How many owners of the key were lost before this one.
    """

    takeovers: int


@dataclass(frozen=True, slots=True)
class FlightFollowed(FlightEvent):
    """This caller began to wait for another owner's outcome.

    Attributes:
        place: Its place in the queue, from 1; 0 = behind another thread of this process.
    """

    place: int


@dataclass(frozen=True, slots=True)
class ResultHit(FlightEvent):
    """A fresh result was found; nobody computed or waited."""


@dataclass(frozen=True, slots=True)
class FlightPublished(FlightEvent):
    """The owner's value was accepted.

    Attributes:
        duration: Seconds from the claim to the publication.
        size: Bytes of the encoded value.
    """

    duration: float
    size: int


@dataclass(frozen=True, slots=True)
class FlightFailed(FlightEvent):
    """The flight ended as a failure.

    Attributes:
        duration: Seconds from the claim to the failure.
        error: Class name of the exception.
    """

    duration: float
    error: str


@dataclass(frozen=True, slots=True)
class FlightLost(FlightEvent):
    """The owner lost its flight; its result will be refused.

    Attributes:
        duration: Seconds from the claim to the loss.
        reason: Value of the ``CancelReason``.
    """

    duration: float
    reason: str


@dataclass(frozen=True, slots=True)
class FlightTakenOver(FlightEvent):
    """A follower became the owner of a lapsed or released flight.

    Attributes:
        takeovers: How many owners were lost before it.
        waited: Seconds that it had waited as a follower.
    """

    takeovers: int
    waited: float


@dataclass(frozen=True, slots=True)
class FlightCancelled(FlightEvent):
    """The flight was ended by ``cancel()``."""


@dataclass(frozen=True, slots=True)
class WaitTimedOut(FlightEvent):
    """A follower's ``wait_timeout`` passed.

    Attributes:
        waited: Seconds that it had waited.
    """

    waited: float


@dataclass(frozen=True, slots=True)
class StoreFailed(FlightEvent):
    """Redis was unreachable or refused a command.

    Attributes:
        operation: What was tried, such as ``"claim"``.
        error: Text of the error.
    """

    operation: str
    error: str


class _Subscription:
    __slots__ = ("callback", "failed")

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.failed = False


class Observers:
    """The callbacks of one group. Thread-safe.

    Attributes:
        active: Whether anybody listens; lets the hot path skip the building of events.
    """

    def __init__(self) -> None:
        """Begin with no callback."""
        self.active = False
        self._lock = threading.Lock()
        # Written under `_lock`, and only ever replaced as a whole, so that `emit` reads it without the lock.
        self._subscriptions: tuple[_Subscription, ...] = ()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` with every event from now on, in the thread in which the fact happens.

        Returns:
            A function that ends the subscription; a second call of it has no effect.
        """
        subscription = _Subscription(callback)
        with self._lock:
            self._replace((*self._subscriptions, subscription))

        def unsubscribe() -> None:
            with self._lock:
                self._replace(tuple(one for one in self._subscriptions if one is not subscription))

        return unsubscribe

    def emit(self, event: FlightEvent) -> None:
        """Tell every callback; what one of them raises is logged the first time, and never reaches the flight."""
        for subscription in self._subscriptions:
            try:
                subscription.callback(event)
            except Exception:
                if not subscription.failed:
                    subscription.failed = True
                    logger.exception(
                        "observer %r failed on %r; its next failures are not logged", subscription.callback, event
                    )

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self.active = bool(subscriptions)
