"""What this process has learnt of its views, so that a request asks under the right key at once."""

from __future__ import annotations

import time

from django_singleflight.keys import Learnt

_MOST = 10_000
_NOTHING = Learnt()


class Memory:
    """What was learnt, by what is asked. Thread-safe: each step is one operation of a dict."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Learnt, float, float]] = {}  # and from when to when, on the monotonic clock

    def recall(self, what: str) -> Learnt:
        """What is known now."""
        learnt, _, until = self._known.get(what, (_NOTHING, 0.0, 0.0))
        return learnt if time.monotonic() < until else _NOTHING

    def note(self, what: str, learnt: Learnt, seconds: float) -> None:
        """Know it for some seconds."""
        if len(self._known) >= _MOST:
            self._known = {}
        now = time.monotonic()
        self._known[what] = learnt, now, now + seconds

    def is_ageing(self, what: str) -> bool:
        """Whether half of the time is over, or it is not known at all."""
        _, since, until = self._known.get(what, (_NOTHING, 0.0, 0.0))
        return time.monotonic() > (since + until) / 2


memory = Memory()
