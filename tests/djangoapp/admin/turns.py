"""How often clients waited for an answer."""

from __future__ import annotations

import contextlib
import socket
import threading


class Turns:
    """A relay to a server that counts round trips: requests that follow an answer. For small requests."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()

    def __enter__(self) -> Turns:
        threading.Thread(target=self._accept, name="test-turns", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here = self._listener.accept()[0]
                there = socket.create_connection(("127.0.0.1", self._server))
                for pair in ((here, there, True), (there, here, False)):
                    threading.Thread(target=self._pump, args=pair, name="test-turns", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asks: bool) -> None:  # noqa: FBT001 - of two kinds
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if asks:
                    with self._lock:
                        self.count += 1
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
