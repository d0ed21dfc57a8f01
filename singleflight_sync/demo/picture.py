"""What the demo draws: lines in time, bars to scale, marks; 80 columns, with colours only where they can be seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from singleflight_sync import terminal

COLUMNS = 78
_BAR = 44
_COLOURS = {"good": "32", "bad": "31", "head": "1", "dim": "2"}


class Glyphs(NamedTuple):
    """The characters of a picture."""

    works: str
    waits: str
    stopped: str
    dead: str
    good: str
    bad: str


_RICH = Glyphs("█", "·", "░", "✗", "✓", "✗")
_POOR = Glyphs("#", ".", "=", "X", "ok", "FALSE:")


class Span(NamedTuple):
    """What a process does from ``start`` to ``end``, in seconds; drawn with ``glyph``."""

    start: float
    end: float
    glyph: str


Row = tuple[str, Sequence[Span], str]
"""One line of a `timeline`: name, what it does when, remark."""


def glyphs() -> Glyphs:
    """Those that stdout can write."""
    try:
        "".join(_RICH).encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return _POOR
    return _RICH


def coloured(text: str, colour: str) -> str:
    """``text`` in a colour, where stdout shows colours and nobody objects."""
    if not terminal.is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def timeline(rows: Sequence[Row], seconds: float) -> list[str]:
    """One line a row, all to the same scale."""

    def column(moment: float) -> int:
        return min(_BAR, max(0, round(moment / max(seconds, 0.1) * _BAR)))

    lines = []
    for name, spans, remark in rows:
        bar = [" "] * _BAR
        for start, end, glyph in spans:
            first = min(column(start), _BAR - 1)
            bar[first : max(column(end), first + 1)] = glyph * max(column(end) - first, 1)
        lines.append(terminal.cut(f"  {name:<10}{''.join(bar)}  {remark}".rstrip(), COLUMNS))
    return [*lines, f"  {'':<10}0 s{f'{seconds:.1f} s':>{_BAR - 3}}"]


def bars(rows: Sequence[tuple[str, float, str]]) -> list[str]:
    """One bar a row (name, length, remark), all to the same scale."""
    names = max(terminal.width(name) for name, _, _ in rows)
    longest = max(length for _, length, _ in rows)
    works = glyphs().works
    return [
        f"  {terminal.padded(name, names)}  {works * max(1, round(length / longest * _BAR))} {remark}"
        for name, length, remark in rows
    ]
