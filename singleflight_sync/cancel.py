"""The cancel token: how a running function learns that it should stop, and shows that it is alive."""

from __future__ import annotations

import enum
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from singleflight_sync import deadline
from singleflight_sync.errors import FlightInterrupted

if TYPE_CHECKING:
    from singleflight_sync.deadline import Deadline


class CancelReason(enum.Enum):
    """Why a function should stop."""

    LOST = "lost"
    """Somebody else owns the flight, or it has ended: the result would be refused."""
    CANCELLED = "cancelled"
    """``cancel()`` ended the flight."""
    HARD_TIMEOUT = "hard_timeout"
    """The flight ran past ``hard_timeout``."""
    STALLED = "stalled"
    """No checkpoint for longer than ``stall_timeout``."""
    STORE_UNREACHABLE = "store_unreachable"
    """Redis gave no answer until the lease was over: whether the flight goes on is unknown.

    Any other reason outranks it, and it passes when Redis answers again that the flight goes on.
    """


class CancelToken:
    """What the running function polls; one per owned flight. Thread-safe.

    Attributes:
        last_seen: Monotonic time in seconds of the last sign of life.
        raise_on_store_error: Whether `checkpoint` raises for ``STORE_UNREACHABLE`` too.
    """

    # `_facts` holds "reason" once fired and "event" once waited for, each written by one `dict.setdefault`, which is
    # atomic, and never replaced. That takes the place of a lock, so that a token costs a dict and no more: a firer
    # writes the reason and then reads the event, a waiter writes the event and then reads the reason; whatever the
    # order of the two, one of them sees what the other wrote, so that no waiter is missed.
    __slots__ = ("_facts", "_hard", "_key", "_parent", "last_seen", "raise_on_store_error")

    def __init__(self, key: str, hard: Deadline, parent: CancelToken | None = None) -> None:
        """Make the token of a flight of ``key``, inside the flight of ``parent`` if there is one."""
        self._key = key
        self._hard = hard
        self._parent = parent
        self._facts: dict[str, Any] = {}
        self.last_seen = deadline.now()
        self.raise_on_store_error = False

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop."""
        return self.reason is not None

    @property
    def reason(self) -> CancelReason | None:
        """Why the function should stop; ``None`` as long as it need not."""
        fired: list[CancelReason] | None = self._facts.get("reason") or self._facts.get("unreachable")
        return fired[0] if fired else None

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until cancelled, as a sleep that a cancellation ends; counts as a sign of life when it begins and ends.

        Args:
            timeout: Longest wait in seconds; ``None`` = no limit.

        Returns:
            Whether the function should stop.
        """
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        self.touch()
        event: threading.Event = self._facts.get("event") or self._facts.setdefault("event", threading.Event())
        if not self.cancelled:
            event.wait(timeout)
        self.touch()
        return self.cancelled

    def remaining(self) -> float | None:
        """Return the seconds until ``hard_timeout``, never negative; ``None`` = no limit."""
        return self._hard.remaining()

    def checkpoint(self) -> None:
        """Show that the function is alive, and stop it if the flight is over.

        Raises:
            FlightInterrupted: The token is cancelled. Under ``on_store_error="run"`` an unreachable Redis is no
                reason to stop, as the caller gets the value all the same.
        """
        self.touch()
        reason = self.reason
        if reason is None or (reason is CancelReason.STORE_UNREACHABLE and not self.raise_on_store_error):
            return
        interrupt = FlightInterrupted(
            f"flight of key {self._key!r} is over ({reason.value}): let this pass, its outcome would be refused", reason
        )
        interrupt.token = self
        raise interrupt

    def fire(self, reason: CancelReason) -> bool:
        """Cancel, unless that has happened before; return whether this call was the first."""
        mine = [reason]  # a fresh list tells this call from another one with the same reason
        slot = "unreachable" if reason is CancelReason.STORE_UNREACHABLE else "reason"
        if self._facts.setdefault(slot, mine) is not mine:
            return False
        event = self._facts.get("event")
        if event is not None:
            event.set()
        return True

    def reached(self) -> None:
        """Redis answered that the flight goes on: ``STORE_UNREACHABLE`` is over."""
        if self._facts.pop("unreachable", None) is not None:
            self._facts.pop("event", None)  # set for good; the next to wait makes a new one

    def touch(self) -> None:
        """Note a sign of life, here and in the flights that this one runs inside of."""
        seen = deadline.now()
        token: CancelToken | None = self
        while token is not None:
            token.last_seen = seen
            token = token._parent  # noqa: SLF001 - a token of the same class

    def idle(self) -> float:
        """Return the seconds since the last sign of life."""
        return deadline.now() - self.last_seen
