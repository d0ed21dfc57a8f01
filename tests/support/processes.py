"""Functions in processes of their own, with messages, barriers and signals; always reaped.

A function is named as ``package.module:function`` and called as ``function(channel, **arguments)``,
see ``child.Channel``. Arguments, messages and the returned value are what JSON can carry.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class ChildError(AssertionError):
    """Raised when a child failed, ended or was silent where a message was expected."""


class Child:
    """One child process.

    Args:
        function: ``package.module:function``.
        arguments: keyword arguments of the function.
        python: the interpreter, and options of it.
        environment: variables to add to the environment.
    """

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        *,
        python: tuple[str, ...] = (sys.executable,),
        environment: dict[str, str] | None = None,
    ) -> None:
        words = [str(os.getpid()), function, json.dumps(arguments)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._buffer = b""
        self.process = subprocess.Popen(
            [*python, "-m", "tests.support.child", *words],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def receive(self, *, within: float = 20.0) -> Any:
        """The next message of the child; its failure, end or silence is a ``ChildError``."""
        line = self._read_line(time.monotonic() + within)
        if line is None:
            raise ChildError(f"the child said nothing for {within} s\n{self.errors()}")
        if not line:
            raise ChildError(f"the child ended, status {self.process.wait(5)}\n{self.errors()}")
        message = json.loads(line)
        if isinstance(message, dict) and "raised" in message:
            raise ChildError(message["text"])
        return message

    def result(self, *, within: float = 20.0) -> Any:
        """What the function returned, all messages before it skipped."""
        deadline = time.monotonic() + within
        while True:
            message = self.receive(within=max(0.0, deadline - time.monotonic()))
            if isinstance(message, dict) and "returned" in message:
                return message["returned"]

    def release(self, message: Any = None) -> None:
        """Let the child go on from its barrier (``channel.wait``)."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel has stopped it."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self, *, within: float = 20.0) -> int:
        """Wait for the end; return the exit status."""
        return self.process.wait(within)

    def errors(self) -> str:
        """What the child has written to stderr (and printed)."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def close(self) -> None:
        """End the child, whatever it does, and reap it."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream
            stream.close()

    def _read_line(self, deadline: float) -> bytes | None:
        assert self.process.stdout
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                return None
            data = os.read(self.process.stdout.fileno(), 65_536)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
