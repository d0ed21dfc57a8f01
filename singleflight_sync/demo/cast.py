"""The processes of the demo: started, heard, killed, stopped, and always reaped."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEARD_WITHIN = 20.0  # seconds
_ROOT = str(Path(__file__).parents[2])


class BrokenOffError(Exception):
    """Raised when the story cannot go on; says why."""


@dataclass(frozen=True)
class Line:
    """What one process said; ``at`` in seconds of the monotonic clock, which all processes share."""

    who: Actor
    what: str
    at: float
    facts: dict[str, Any]


class Actor:
    """One process."""

    def __init__(self, name: str, setting: dict[str, Any], heard: queue.SimpleQueue[Line]) -> None:
        self.name = name
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "singleflight_sync.demo.caller", str(os.getpid())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is the story's alone
        )
        self._heard = heard
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self.tell({"name": name, **setting})  # not on the command line, where everybody could read a password

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, order: dict[str, Any]) -> None:
        """Send one line; a process that is gone is noticed by its silence."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel has done it."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> int:
        """SIGKILL, and reap; returns the exit status."""
        self._process.kill()
        status = self._process.wait()
        self._reader.join()
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        return status

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            facts = json.loads(line)
            self._heard.put(Line(self, facts.pop("what"), facts.pop("at"), facts))
        self._heard.put(Line(self, "gone", 0.0, {}))


@dataclass
class Cast:
    """All of them. A context manager."""

    size: int
    setting: dict[str, Any]
    actors: list[Actor] = field(default_factory=list)
    _heard: queue.SimpleQueue[Line] = field(default_factory=queue.SimpleQueue)

    def __enter__(self) -> Cast:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            actor.kill()

    def fill(self) -> None:
        """Start processes where some are missing."""
        present = {actor.name for actor in self.actors}
        for name in (f"process {number}" for number in range(1, self.size + 1)):
            if name not in present:
                self.actors.append(Actor(name, self.setting, self._heard))
        self.actors.sort(key=lambda actor: actor.name)

    def lose(self, actor: Actor) -> int:
        """Kill one; returns its exit status."""
        self.actors.remove(actor)
        return actor.kill()

    def tell(self, order: dict[str, Any]) -> None:
        """Tell all of them."""
        for actor in self.actors:
            actor.tell(order)

    def hear(self) -> Line:
        """The next line of any of them.

        Raises:
            BrokenOffError: nobody says anything, or one is gone that should not be.
        """
        while True:
            try:
                line = self._heard.get(timeout=HEARD_WITHIN)
            except queue.Empty:
                raise BrokenOffError(f"nothing was heard of the processes for {HEARD_WITHIN:.0f} s") from None
            if line.who not in self.actors:
                continue  # the last words of a killed one
            if line.what == "gone":
                raise BrokenOffError(f"{line.who.name} (pid {line.who.pid}) ended by itself")
            return line
