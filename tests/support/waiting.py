"""Waiting on a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 5.0, what: str = "") -> T:
    """Return the first true answer of ``condition``; fail after ``within`` seconds."""
    deadline = time.monotonic() + within
    pause = 0.001
    while True:
        last_look = time.monotonic() >= deadline
        if answer := condition():
            return answer
        if last_look:
            sentence = what or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {within} s: {sentence}; last answer: {answer!r}")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
