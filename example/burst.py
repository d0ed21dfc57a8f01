"""The last burst of visitors, made of the journal's notes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from example.journal import Note

QUIET = 3.0
"""Seconds without anybody that end a burst."""


@dataclass
class Call:
    """One call of the model. Times in seconds since the burst began."""

    number: int
    pid: int
    token: int
    question: str
    begun: float
    ended: float | None = None
    killed: bool = False
    after: float | None = None
    """How long after the death of the owner before it, if that was killed."""


@dataclass
class Burst:
    """Visitors and calls, from the first arrival on. Times in seconds since then.

    Attributes:
        began: Seconds since the epoch.
        arrived, answered, lost: When each of the visitors came and went.
        calls: The calls of the model, in their order.
    """

    began: float
    arrived: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    last: float = 0.0

    def add(self, note: Note) -> None:
        """Take a note in."""
        at = self.last = max(0.0, note.at - self.began)
        if note.what in {"arrived", "answered", "lost"}:
            getattr(self, note.what).append(at)
        elif note.what == "begun":
            same = [call for call in self.calls if call.question == note.question]
            after = at - (same[-1].ended or at) if same and same[-1].killed else None
            self.calls.append(Call(len(self.calls) + 1, note.pid, note.token, note.question, at, after=after))
        else:
            for call in self.calls:
                if call.token == note.token and call.ended is None:
                    call.ended, call.killed = at, note.what == "killed"

    @property
    def waiting(self) -> int:
        """How many visitors wait."""
        return len(self.arrived) - len(self.answered) - len(self.lost)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits and nothing is computed."""
        return self.waiting <= 0 and all(call.ended is not None for call in self.calls)

    @property
    def now(self) -> float:
        """The moment up to which there is something to tell."""
        return self.last if self.is_over else time.time() - self.began


def last_burst(notes: Iterable[Note]) -> Burst | None:
    """The burst that the last notes belong to."""
    burst: Burst | None = None
    for note in notes:
        quiet = burst is None or (burst.is_over and note.at - burst.began - burst.last > QUIET)
        if quiet and note.what in {"arrived", "begun"}:
            burst = Burst(note.at)
        if burst is not None:
            burst.add(note)
    return burst
