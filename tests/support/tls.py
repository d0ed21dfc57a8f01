"""TLS in front of a server that has none, with a certificate of its own."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

from tests.support import parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

CHUNK = 65_536


def certificate(directory: Path) -> tuple[Path, Path]:
    """A new self-signed certificate for this machine, and its key."""
    if not shutil.which("openssl"):
        parts.missing("no openssl: install the system package")
    paths = directory / "cert.pem", directory / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(words, check=True, capture_output=True)
    return paths


@contextlib.contextmanager
def tls_in_front_of(server: Server, paths: tuple[Path, Path]) -> Iterator[int]:
    """Take TLS connections and hand on what is inside; yields the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, server.port), name="test-tls", daemon=True).start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            raw, _ = listener.accept()
            threading.Thread(target=_serve, args=(raw, context, port), name="test-tls", daemon=True).start()


def _serve(raw: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.callback(raw.close)
        inside = stack.enter_context(context.wrap_socket(raw, server_side=True))
        server = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        while True:
            ready = [inside] if inside.pending() else select.select([inside, server], [], [])[0]
            for side, other in ((inside, server), (server, inside)):
                if side in ready:
                    data = side.recv(CHUNK)
                    if not data:
                        return
                    other.sendall(data)
