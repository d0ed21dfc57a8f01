"""A link of small bandwidth, and what a process needed at most."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers import Server

SLICES_PER_SECOND = 50
BUFFER = 16_384  # of the kernel: what is on its way must not hide in there


class SlowLink:
    """Forwards to ``server``, in each direction at most ``rate`` bytes per second and connection."""

    def __init__(self, server: Server, rate: int) -> None:
        self.rate = rate
        self.sent = self.received = 0  # bytes that clients have sent and got so far, one more or less
        self._flowing = threading.Event()
        self._flowing.set()
        self._server = server
        self._sockets: list[socket.socket] = []  # appended to by one thread
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)  # inherited by what is accepted
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="test-slow", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                server = socket.create_connection(("127.0.0.1", self._server.port))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    words = (source, target, source is client)
                    threading.Thread(target=self._pump, args=words, name="test-slow", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, outward: bool) -> None:  # noqa: FBT001 - of a thread
        with contextlib.suppress(OSError):
            while data := source.recv(max(1, self.rate // SLICES_PER_SECOND)):
                time.sleep(len(data) / self.rate)
                self._flowing.wait()
                target.sendall(data)
                if outward:
                    self.sent += len(data)
                else:
                    self.received += len(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def hang(self) -> None:
        """Let nothing through any more."""
        self._flowing.clear()

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def peak_memory() -> int:
    """The most bytes that this process has had in memory since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def forget_peak() -> int:
    """Begin to measure anew; returns the bytes in memory now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()
