"""How long a caller goes on waiting: until its own deadline, and, inside another flight, while that one goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from singleflight_sync import deadline
from singleflight_sync.deadline import Deadline
from singleflight_sync.errors import TooManyWaitingError, WaitTimeoutError

if TYPE_CHECKING:
    from singleflight_sync.cancel import CancelToken

NESTED_SLICE = 0.1
"""A wait inside a flight looks this often (in seconds) whether that flight goes on."""
MAIN_SLICE = 1.0
"""The main thread, which alone gets signals, wakes this often: one that comes just before a wait does not end it."""


class Patience:
    """The patience of one caller. Counts the time spent following, not computing. Used by one thread."""

    __slots__ = ("_deadline", "_key", "_longest", "_max_waiting", "_outer", "_outer_key", "began", "error", "seconds")

    def __init__(
        self,
        key: str,
        seconds: float | None,
        outer: CancelToken | None = None,
        outer_key: str = "",
        max_waiting: int | None = None,
    ) -> None:
        """``seconds`` as in ``wait_timeout``; ``outer``: the cancel token of the flight that the caller runs."""
        self._key = key
        self._max_waiting = max_waiting
        self._deadline = Deadline(seconds)
        self._outer = outer
        self._outer_key = outer_key
        self._longest = MAIN_SLICE if threading.current_thread() is threading.main_thread() else None
        self.began = deadline.now()
        self.seconds = seconds
        self.error: WaitTimeoutError | None = None

    def slice(self, upto: float | None = None) -> float | None:
        """How many seconds to wait now at most, before asking again.

        Args:
            upto: After these seconds there is something to do anyway.

        Raises:
            WaitTimeoutError: the patience is over.
            FlightInterrupted: the flight that the caller is running is over.
        """
        left = self._deadline.remaining()
        if left == 0.0:
            raise self.over()
        limits = [each for each in (left, upto, self._longest) if each is not None]
        if self._outer is not None:
            self._outer.checkpoint()
            limits.append(NESTED_SLICE)
        return max(0.0, min(limits)) if limits else None

    def at_most(self, seconds: float) -> float:
        """The seconds that may be spent on something that takes up to ``seconds``."""
        left = self._deadline.remaining()
        return seconds if left is None else min(seconds, left)

    def over(self) -> WaitTimeoutError:
        """The error of a caller that gives up."""
        inside = f", from inside the flight of key {self._outer_key!r}" if self._outer is not None else ""
        if self.seconds == 0:
            text = (
                f"key {self._key!r} is being computed by somebody else{inside}, and wait_timeout=0 never waits: "
                f"try later, or let it wait"
            )
        else:
            text = (
                f"no outcome for key {self._key!r} within wait_timeout={self.seconds:g} s{inside}: its owner is "
                f"still computing. Raise wait_timeout, or lower hard_timeout to end such flights"
            )
        self.error = WaitTimeoutError(text)
        return self.error

    def check_queue(self, waiting: int) -> None:
        """Refuse to wait where too many wait already; ``waiting`` includes this caller.

        Raises:
            TooManyWaitingError: there are more than ``max_waiting``.
        """
        if self._max_waiting is not None and waiting > self._max_waiting:
            raise TooManyWaitingError(
                f"{waiting} callers would wait for key {self._key!r}, more than max_waiting={self._max_waiting}: "
                f"try again later, or raise max_waiting"
            )

    def resume(self, computing: float) -> None:
        """Give back the seconds that the caller spent computing."""
        self._deadline.extend(computing)
