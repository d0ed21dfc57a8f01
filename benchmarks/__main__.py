"""Run the package and its floor side by side: ``python -m benchmarks [NAME ...] [--json] [--strict]``.

Both run in turns, in small batches, on a private server: the speed of a machine changes within minutes, so that only
figures of one run can be compared. A ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import floor, ours
from tests.support.monitor import connections, counting
from tests.support.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SENT = ("EVALSHA", "EVAL", "XREAD")
"""What we send, and no script of ours calls: a count of these is one of round trips."""


class Benchmark(NamedTuple):
    """One row: what runs, how often, and what it may cost.

    Attributes:
        title: What is measured.
        ours: Takes a URL and a number of flights, returns seconds.
        bare: The same without the package; None where there is nothing to compare with.
        calls: Flights in a turn.
        turns: Turns of each side.
        limit: Largest ratio; largest number of seconds where nothing is compared.
        aim: The ratio to reach.
        commands: Most commands of a flight, of all its processes together.
    """

    title: str
    ours: Callable[[str, int], list[float]]
    bare: Callable[[str, int], list[float]] | None
    calls: int
    turns: int
    limit: float
    aim: float
    commands: int


def _bare_herd(url: str, calls: int) -> list[float]:
    return [max(floor.herd(url)) for _ in range(calls)]


def _bare_event(_url: str, calls: int) -> list[float]:
    return [max(floor.event()) for _ in range(calls)]


BENCHMARKS = {
    "hit": Benchmark("hit / GET", ours.hit, floor.get, 50, 50, 1.4, 1.0, 1),
    "miss": Benchmark("miss / SET NX + SET", ours.miss, floor.set_nx_set, 25, 50, 2.0, 1.25, 2),
    "wake-up": Benchmark("wake-up / XADD -> XREAD", ours.wake_up, floor.wake_up, 50, 4, 2.0, 2.0, 4),
    "herd": Benchmark("herd of 4 x 25, last / bare", ours.herd, _bare_herd, 1, 5, 2.0, 2.0, 16),
    "killed": Benchmark("owner killed -> next starts", ours.killed, None, 1, 5, 0.2, 0.2, 5),
    "threads": Benchmark("300 threads, last / Event", ours.threads_of_one_process, _bare_event, 1, 5, 1.5, 1.5, 2),
}


@dataclass(frozen=True)
class Result:
    """What was measured; seconds are medians of a flight.

    Attributes:
        name: Of the benchmark.
        ours: Seconds with the package.
        floor: Seconds without it.
        ratio: The median ratio of the turns.
        commands: Sent for one flight by all its processes together.
        connections: Most connections of the package that were open at a time.
        blocked: Most of them that waited in a blocked read.
        broken: The limits that do not hold.
    """

    name: str
    ours: float
    floor: float | None
    ratio: float | None
    commands: float
    connections: int
    blocked: int
    broken: list[str]


class Peak:
    """The most connections of the package that were open, and blocked, at a time."""

    def __init__(self) -> None:
        self.open = 0
        self.blocked = 0

    def note(self, server: Server) -> None:
        """Look at the server's list of clients."""
        rows = connections(server)
        self.open = max(self.open, len(rows))
        self.blocked = max(self.blocked, sum("b" in row["flags"] for row in rows))


@contextmanager
def watched(server: Server) -> Iterator[Peak]:
    """Look at the connections every few milliseconds meanwhile."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            peak.note(server)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def measure(name: str, server: Server) -> Result:
    """Warm up, count, and then let both sides run in turns."""
    what = BENCHMARKS[name]
    what.ours(server.url, 1)  # brings the scripts to the server
    commands, peak = count(what, server)
    mine, bare = [], []
    for _ in range(what.turns):
        mine.append(statistics.median(what.ours(server.url, what.calls)))
        if what.bare:
            bare.append(statistics.median(what.bare(server.url, what.calls)))
    cost = statistics.median(mine)
    ratio = statistics.median([a / b for a, b in zip(mine, bare, strict=True)]) if bare else None
    return Result(
        name=name,
        ours=cost,
        floor=statistics.median(bare) if bare else None,
        ratio=ratio,
        commands=commands,
        connections=peak.open,
        blocked=peak.blocked,
        broken=broken(what, cost if ratio is None else ratio, commands),
    )


def count(what: Benchmark, server: Server) -> tuple[float, Peak]:
    """Return the commands for one flight, without what is needed once for the first one, and the connections."""
    spent = []
    with watched(server) as peak:
        for flights in (what.calls, 2 * what.calls):
            with counting(server) as counts:
                what.ours(server.url, flights)
            spent.append(sum(counts[command] for command in SENT))
    return (spent[1] - spent[0]) / what.calls, peak


def broken(what: Benchmark, cost: float, commands: float) -> list[str]:
    """Name the limits that do not hold."""
    return [
        *([f"{cost:.2f} > {what.limit:g}"] if cost > what.limit else []),
        *([f"{commands:g} commands > {what.commands}"] if commands > what.commands else []),
    ]


HEADER = ("", "ours ms", "floor ms", "ratio", "aim", "limit", "commands", "connections", "blocked", "")


def row(result: Result) -> tuple[str, ...]:
    """Write a result as the cells of the table."""
    what = BENCHMARKS[result.name]
    return (
        what.title,
        f"{result.ours * 1000:.3f}",
        "" if result.floor is None else f"{result.floor * 1000:.3f}",
        "" if result.ratio is None else f"{result.ratio:.2f}",
        f"{what.aim:g}" + ("" if what.bare else " s"),
        f"{what.limit:g}" + ("" if what.bare else " s"),
        f"{result.commands:g}",
        str(result.connections),
        str(result.blocked),
        "; ".join(result.broken) or "holds",
    )


def show(cells: tuple[str, ...]) -> None:
    """Print one line of the table."""
    first, *numbers, last = cells
    print(f"{first:28}", *(f"{cell:>9}" for cell in numbers), f" {last}", flush=True)


def main(words: list[str] | None = None) -> int:
    """Return the exit status: 1 if a limit is broken and ``--strict`` is given."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="The package against bare Redis, in ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is broken")
    given = parser.parse_args(words)
    unknown = set(given.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(BENCHMARKS)}")
    server = Server()
    results = []
    try:
        if not given.json:
            show(HEADER)
        for name in given.names or BENCHMARKS:
            results.append(measure(name, server))
            if not given.json:
                show(row(results[-1]))
    finally:
        server.stop()
    if given.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return int(given.strict and any(result.broken for result in results))


if __name__ == "__main__":
    sys.exit(main())
