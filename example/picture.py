"""The picture of a burst: visitors as curves, calls of the model as bars beneath them. A template draws it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from example.burst import Burst, Call

LEFT, RIGHT, TOP, BOTTOM = 44, 706, 36, 206
BAR, GAP = 20, 6
SHORTEST = 8.0
"""Seconds that the picture shows at least."""

_ABOUT_TICKS = 8


class Bar(NamedTuple):
    """A call of the model, as a rectangle."""

    call: Call
    x: str
    y: int
    width: str
    text_x: str
    text_y: int
    anchor: str


class Scale:
    """From seconds and visitors to the picture's own units."""

    def __init__(self, seconds: float, visitors: int) -> None:
        self.seconds = max(SHORTEST, seconds * 1.05)
        self.visitors = max(10, math.ceil(visitors / 10) * 10)

    def x(self, at: float) -> float:
        """Where a moment is."""
        return LEFT + (RIGHT - LEFT) * min(at, self.seconds) / self.seconds

    def y(self, count: float) -> float:
        """Where a number of visitors is."""
        return BOTTOM - (BOTTOM - TOP) * count / self.visitors

    def stairs(self, moments: Sequence[float], until: float) -> str:
        """The points of a line that rises by one at each moment."""
        points = [(self.x(0), self.y(0))]
        for count, at in enumerate(sorted(moments), start=1):
            points += [(self.x(at), self.y(count - 1)), (self.x(at), self.y(count))]
        points.append((self.x(max([until, *moments])), self.y(len(moments))))
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

    def ticks(self) -> list[tuple[str, int]]:
        """Where whole seconds are, some left out."""
        step = max(1, round(self.seconds / _ABOUT_TICKS))
        return [(f"{self.x(second):.1f}", second) for second in range(0, int(self.seconds) + 1, step)]


def drawing(burst: Burst) -> dict[str, Any]:
    """What the template needs."""
    scale = Scale(burst.now, len(burst.arrived))
    first = BOTTOM + 34
    bars = [_bar(scale, call, first + place * (BAR + GAP), burst.now) for place, call in enumerate(burst.calls)]
    height = first + len(bars) * (BAR + GAP) + 8
    return {
        "height": height,
        "left": LEFT,
        "right": RIGHT,
        "top": TOP,
        "bottom": BOTTOM,
        "arrived": scale.stairs(burst.arrived, burst.now),
        "answered": scale.stairs(burst.answered, burst.now),
        "bars": bars,
        "deaths": [f"{scale.x(call.ended or 0):.1f}" for call in burst.calls if call.killed],
        "ticks": scale.ticks(),
        "levels": [(f"{scale.y(level):.1f}", level) for level in (0, scale.visitors // 2, scale.visitors)],
        "now": f"{scale.x(burst.now):.1f}",
        "bars_bottom": height - 8,
    }


def _bar(scale: Scale, call: Call, y: int, now: float) -> Bar:
    left, right = scale.x(call.begun), scale.x(now if call.ended is None else call.ended)
    room = left < LEFT + (RIGHT - LEFT) * 0.7
    text_x, anchor = (left + 6, "start") if room else (left - 6, "end")
    return Bar(call, f"{left:.1f}", y, f"{max(2.0, right - left):.1f}", f"{text_x:.1f}", y + 14, anchor)
