"""A proxy that can answer in the server's place, and places where nobody answers at all."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.proxy import Link
    from tests.support.resp import Request
    from tests.support.servers import Server


class Liar(Proxy):
    """Answers every request with ``answer`` (a line of the protocol) as long as that is not empty."""

    def __init__(self, server: Server, answer: bytes = b"") -> None:
        self.answer = answer
        super().__init__(server)

    def treat(self, link: Link, request: Request) -> None:
        """Answer, or hand on."""
        if not self.answer:
            super().treat(link, request)
            return
        with self._lock:
            self.commands[request.name] += 1
        with contextlib.suppress(OSError):
            link.client.sendall(self.answer + b"\r\n")


@contextlib.contextmanager
def nowhere() -> Iterator[int]:
    """A port of this machine that drops what is sent there, like a firewall: connections are never made."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # fill the queue of the kernel, which then drops
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
