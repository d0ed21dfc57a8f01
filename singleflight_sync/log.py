"""A key's log: its entries, and the pending read on which a follower waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import MovedError

from singleflight_sync import wire
from singleflight_sync.errors import StoreError
from singleflight_sync.wire import ERRORS, bulk, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight_sync.connect import Server
    from singleflight_sync.keys import Names
    from singleflight_sync.pool import Link, Pool

CLAIMED = b"claimed"
SUCCEEDED = b"succeeded"
FAILED = b"failed"
CANCELLED = b"cancelled"
RELEASED = b"released"
FORGOTTEN = b"forgotten"
ENDS = frozenset({SUCCEEDED, FAILED, CANCELLED, RELEASED})


def number(text: bytes | None) -> int | None:
    """A whole number as Redis holds it, None for anything else."""
    return int(text) if text and text.isdigit() else None


class Entry(NamedTuple):
    """One entry of the log; its id is empty where it came with a script's answer."""

    log_id: bytes
    fields: dict[bytes, bytes]

    @classmethod
    def of(cls, log_id: bytes, flat: Sequence[bytes]) -> Entry:
        """From the flat list of names and values that Redis sends."""
        return cls(log_id, dict(zip(flat[::2], flat[1::2], strict=False)))

    @property
    def event(self) -> bytes:
        """What happened."""
        return self.fields.get(b"event", b"")

    @property
    def token(self) -> int | None:
        """The fencing token of its flight."""
        return number(self.fields.get(b"token"))

    def number(self, name: bytes) -> int:
        """A whole number among its fields, 0 without one."""
        return number(self.fields.get(name)) or 0


class Reading:
    """One pending read of a log, on a connection of its own. Used by one thread at a time.

    The read has no end at the server, whose timer is up to 100 ms late: how long to wait is the client's
    affair, and after a look elsewhere it goes on waiting on the same read. It reads behind a given id, so
    that no entry is missed.
    """

    def __init__(self, server: Server, names: Names, log_id: bytes) -> None:
        """Begin to read behind ``log_id``.

        Raises:
            StoreError: Redis was not reached.
        """
        self._server = server
        self._names = names
        self._link: Link | None = None
        self._pool: Pool | None = None
        self.log_id = log_id
        self._ask()

    def wait(self, timeout: float | None, *others: int) -> bool:
        """Wait for entries (True), for ``timeout`` seconds, or until a file descriptor of ``others`` is ready."""
        return self._link is None or self._link.wait(timeout, *others)

    def entries(self) -> list[Entry]:
        """The entries that have come; asks for the next ones.

        Raises:
            StoreError: the connection is gone; begin anew behind ``log_id``.
        """
        try:
            reply = self._link.receive() if self._link else None
        except MovedError as exc:
            self._server.moved(self._names.stream, (exc.host, exc.port))
            reply = None
        except ERRORS as exc:
            self.close()
            raise wire.translate(exc, "follow the flight", self._names.key) from exc
        except BaseException:
            self.close()
            raise
        try:
            entries = [Entry.of(log_id, flat) for log_id, flat in reply[0][1]] if reply else []
        except (LookupError, ValueError, TypeError) as exc:
            self.close()
            raise StoreError(
                f"cannot follow key {self._names.key!r}: the server answered what no Redis answers ({exc!r})"
            ) from exc
        if entries:
            self.log_id = entries[-1].log_id
        else:
            self.close()
        return entries

    def ask_again(self) -> None:
        """Go on reading, after `entries`.

        Raises:
            StoreError: Redis was not reached.
        """
        self._ask()

    def done(self) -> None:
        """Give the connection back: its read was answered and nothing is pending."""
        link, self._link = self._link, None
        if link is not None and self._pool is not None:
            self._pool.give(link)

    def close(self) -> None:
        """Leave; a connection with a pending read is of no more use."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self) -> None:
        stream = self._names.stream
        packed = command(6, bulk(b"XREAD", b"BLOCK", b"0", b"STREAMS", stream, self.log_id))
        try:
            if self._link is None:
                self._pool = self._server.pool(stream)
                self._link = self._pool.take()
            self._link.send(packed)
        except ERRORS as exc:
            self.close()
            raise wire.translate(exc, "follow the flight", self._names.key) from exc
        except BaseException:
            self.close()
            raise
