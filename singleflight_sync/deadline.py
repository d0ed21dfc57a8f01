"""Time: the monotonic clock, deadlines on it, and the one conversion to milliseconds."""

from __future__ import annotations

import math
import time

clock = time.monotonic
"""The clock of the whole package, looked up here at each use, so that tests can swap it."""


def now() -> float:
    """Return the monotonic time in seconds."""
    return clock()


def to_ms(seconds: float) -> int:
    """Return whole milliseconds, rounded up: a positive time never becomes 0, which Redis takes for "at once"."""
    # The small bias keeps the noise of the multiplication (2.007 * 1000 > 2007) from adding a millisecond.
    return max(1, math.ceil(seconds * 1000 - 1e-6)) if seconds > 0 else 0


class Deadline:
    """A moment on the monotonic clock, or none at all.

    Attributes:
        at: The moment in seconds of the monotonic clock; ``None`` = no limit.
    """

    __slots__ = ("at",)

    def __init__(self, seconds: float | None) -> None:
        """Set the deadline ``seconds`` from now; ``None`` = no limit."""
        self.at = None if seconds is None else clock() + seconds

    def remaining(self) -> float | None:
        """Return the seconds that are left, never negative; ``None`` = no limit."""
        return None if self.at is None else max(0.0, self.at - clock())

    @property
    def expired(self) -> bool:
        """Whether the moment is reached; never without a limit."""
        return self.at is not None and clock() >= self.at

    def extend(self, seconds: float) -> None:
        """Move the deadline later by ``seconds``; no effect without a limit."""
        if self.at is not None:
            self.at += seconds
