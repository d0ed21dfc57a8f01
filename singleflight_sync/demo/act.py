"""One act: all processes ask one question; what they say is kept, told, and checked."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from singleflight_sync.demo import picture
from singleflight_sync.demo.cast import BrokenOffError
from singleflight_sync.demo.picture import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight_sync.demo.cast import Actor, Cast, Line
    from singleflight_sync.demo.stage import Stage
    from singleflight_sync.demo.witness import Witness


class Act:
    """What was heard of one question. Times in seconds of the monotonic clock."""

    def __init__(self, stage: Stage, cast: Cast, witness: Witness, question: str, *, hold: bool = False) -> None:
        """``hold``: the first owner is held half-way."""
        self.stage = stage
        self.cast = cast
        self.witness = witness
        self.question = question
        self.began = 0.0
        self._hold = hold
        self._lines: list[Line] = []

    @property
    def actors(self) -> Sequence[Actor]:
        """The processes that are there."""
        return self.cast.actors

    def computation(self, number: int) -> Line:
        """How the computation with this number began.

        Raises:
            BrokenOffError: it never did.
        """
        for line in self.of("begun"):
            if line.facts["number"] == number:
                return line
        raise BrokenOffError(f"computation {number} of this act never began; errors: {self._errors()}")

    def of(self, what: str) -> list[Line]:
        """The lines of a kind, as they came."""
        return [line for line in self._lines if line.what == what]

    def counted(self) -> tuple[int, int]:
        """How many computations began and finished, as counted in Redis."""
        return self.witness.counted(f"begun {self.question}"), self.witness.counted(f"finished {self.question}")

    def last(self) -> float:
        """When the last caller had its answer."""
        return max(float(line.facts["last"]) for line in self.of("done"))

    # -- what happens

    def prepare(self, threads: int) -> Counter[str] | None:
        """Bring all threads to the start; returns what Redis was sent until then."""
        self.cast.fill()
        self.cast.tell({"do": "prepare", "question": self.question, "threads": threads, "hold": self._hold})
        self.until("ready", self.cast.size)
        return self.witness.commands()

    def go(self) -> None:
        """Let all threads ask."""
        self.began = self.stage.begin()
        self.cast.tell({"do": "go"})
        self.stage.tell(f"all ask at once: {self.question}", self.began)

    def until(self, what: str, number: int = 1) -> None:
        """Hear, and tell, until so many lines of a kind have come."""
        while len(self.of(what)) < number:
            line = self.cast.hear()
            self._lines.append(line)
            self._tell(line)

    def _tell(self, line: Line) -> None:
        name, facts = f"{line.who.name} (pid {line.who.pid})", line.facts
        if line.what == "begun" and facts["number"] == 1:
            self.stage.tell(f"{name} owns the flight and asks the LLM", line.at)
        elif line.what == "begun":
            self.stage.tell(f"{name} takes over and asks the LLM", line.at)
        elif line.what == "finished":
            told = f", told that its flight is {facts['reason']}" if facts["reason"] else ""
            self.stage.tell(f"the LLM has answered {line.who.name}{told}", line.at)
        elif line.what == "done":
            self.stage.tell(f"{line.who.name}: {len(facts['answers'])} callers have their answer", facts["last"])

    def work(self, actor: Actor, end: float | None = None) -> list[Span]:
        """What an actor does in time: it waits, and computes until ``end``, or its function's own end."""
        glyphs = picture.glyphs()
        starts = [line.at for line in self.of("begun") if line.who is actor]
        ends = [line.facts["last"] for line in self.of("done") if line.who is actor]
        spans = [Span(0, ends[0] - self.began, glyphs.waits)] if ends else []
        if starts:
            finished = [line.at for line in self.of("finished") if line.who is actor]
            stop = end if end is not None else finished[0]
            spans += [
                Span(0, starts[0] - self.began, glyphs.waits),
                Span(starts[0] - self.began, stop - self.began, glyphs.works),
            ]
        return spans

    # -- what is claimed of it

    def claim_answers(self, number: int, *, by: Actor, whose: str = "") -> None:
        """Claim that so many callers got the answer of one process, and nobody an error."""
        answers = self._answers()
        self.stage.claim(
            f"{whose or f'all {number} callers'} got the same answer, that of {by.name}",
            seen=(
                dict(Counter(json.loads(answer)["said in"] for answer in answers)),
                len(set(answers)),
                self._errors(),
            ),
            wanted=({by.name: number}, 1, []),
        )

    def claim_counts(self, *, begun: int, finished: int) -> None:
        """Claim how often the function ran."""
        plural = "" if begun == 1 else "s"
        self.stage.claim(
            f"{begun} computation{plural} begun, {finished} finished (say Redis and the processes)",
            seen=(*self.counted(), len(self.of("begun")), len(self.of("finished"))),
            wanted=(begun, finished, begun, finished),
        )

    def claim_takeover(self, lost_at: float, *, within: float) -> None:
        """Claim that another process came to be the owner, not later than ``within`` seconds."""
        first, second = self.computation(1), self.computation(2)
        seconds = second.at - lost_at
        self.stage.claim(
            f"{second.who.name} took over {seconds:.2f} s later, under a higher fencing token",
            seen=(second.who is not first.who, 0 <= seconds <= within, second.facts["token"] > first.facts["token"]),
            wanted=(True, True, True),
        )

    def summary(self, name: str, takeover: float | None) -> tuple[str, ...]:
        """The act as a row: name, callers, begun, finished, answers, different ones, taken over after."""
        answers = self._answers()
        begun, finished = self.counted()
        callers = sum(line.facts["threads"] for line in self.of("ready"))
        after = "-" if takeover is None else f"{takeover:.2f} s"
        return (name, *map(str, (callers, begun, finished, len(answers), len(set(answers)))), after)

    def _errors(self) -> list[str]:
        return [error for line in self.of("done") for error in line.facts["errors"]]

    def _answers(self) -> list[str]:
        return [json.dumps(answer, sort_keys=True) for line in self.of("done") for answer in line.facts["answers"]]
