"""Where the demo is told: lines as things happen, and claims with what was seen of them."""

from __future__ import annotations

import textwrap
import time

from singleflight_sync.demo import picture
from singleflight_sync.demo.picture import COLUMNS, coloured


class Stage:
    """Prints, and keeps count of the claims."""

    def __init__(self) -> None:
        self.claims = 0
        self.false = 0
        self._began = time.monotonic()

    def say(self, *lines: str) -> None:
        """Print lines, at once."""
        print(*lines, sep="\n", flush=True)

    def title(self, text: str) -> None:
        """Print the head of an act."""
        self.say("", coloured(text, "head"))

    def begin(self) -> float:
        """Set the clock of the act to 0, and return when that was."""
        self._began = time.monotonic()
        return self._began

    def tell(self, text: str, at: float | None = None) -> None:
        """Print what happened, with its time."""
        seconds = max(0.0, (time.monotonic() if at is None else at) - self._began)
        self.say(f"  {seconds:6.2f} s  {text}")

    def claim(self, text: str, *, seen: object, wanted: object) -> None:
        """Print a claim; it is true if what was ``seen`` is what was ``wanted``."""
        self.claims += 1
        holds = bool(seen == wanted)
        mark = picture.glyphs().good if holds else picture.glyphs().bad
        if not holds:
            self.false += 1
            text = f"{text} -- NOT TRUE: seen {seen!r}, where it should be {wanted!r}"
        first, *rest = textwrap.wrap(text, COLUMNS - len(mark) - 3)
        self.say(f"  {coloured(mark, 'good' if holds else 'bad')} {first}", *(f"    {line}" for line in rest))
