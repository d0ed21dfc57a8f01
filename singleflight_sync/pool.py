"""Connections to one server, with time-outs of ours, on a stack without a limit.

So a heartbeat or a publication never queues behind a blocked follower for one.
"""

from __future__ import annotations

import select
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis

from singleflight_sync import deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONNECT_TIMEOUT = 1.0
ANSWER_TIMEOUT = 2.0
UPLOAD_BYTES_PER_SECOND = 256 * 1024
"""The slowest link on which a large value is still waited for."""

LONGEST_POLL_MS = 2**31 - 1
IDLE = 60.0
"""A connection that nobody took for so many seconds is closed."""

LATELY = 5.0
"""A connection that answered within this many seconds is taken for a good one."""


class Link:
    """One connection. Used by one thread at a time."""

    __slots__ = ("_connection", "fresh", "used_at")

    def __init__(self, connection: Any) -> None:
        connection.connect()
        self._connection = connection
        self.fresh = True
        self.used_at = deadline.now()

    def send(self, chunks: Iterable[bytes], size: int = 0) -> None:
        """Send a packed command; one of many ``size`` bytes may take its time on a slow link."""
        if size < UPLOAD_BYTES_PER_SECOND:
            self._connection.send_packed_command(chunks, check_health=False)
        else:
            self._upload(chunks, ANSWER_TIMEOUT + size / UPLOAD_BYTES_PER_SECOND)

    def _upload(self, chunks: Iterable[bytes], timeout: float) -> None:
        sock = self._connection._sock
        sock.settimeout(timeout)  # bounds the whole of a ``sendall``
        try:
            for chunk in chunks:
                sock.sendall(chunk)
        except TimeoutError as exc:
            raise redis.TimeoutError(f"the value could not be sent within {timeout:.0f} s") from exc
        except OSError as exc:
            # A server that finds a value too large says so and closes: its word is still in our buffer.
            self.receive()
            raise redis.ConnectionError(str(exc)) from exc
        finally:
            sock.settimeout(ANSWER_TIMEOUT)

    def receive(self, size: int = 0) -> Any:
        """Wait for the next reply; for that to ``size`` bytes as long as they may still be on their way.

        Raises:
            redis.RedisError: What the client or the server says.
        """
        if size < UPLOAD_BYTES_PER_SECOND:
            return self._connection.read_response(disable_decoding=True)
        sock = self._connection._sock
        sock.settimeout(ANSWER_TIMEOUT + size / UPLOAD_BYTES_PER_SECOND)
        try:
            return self._connection.read_response(disable_decoding=True)
        finally:
            sock.settimeout(ANSWER_TIMEOUT)

    def wait(self, timeout: float | None, *others: int) -> bool:
        """Wait for a reply (True), for ``timeout`` seconds, or until a file descriptor of ``others`` is ready."""
        sock = self._connection._sock
        if sock is None:
            return True  # what reads next learns that the connection is gone
        if getattr(sock, "pending", int)():  # decrypted already, so that the kernel has nothing to tell
            return True
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        for descriptor in others:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if timeout is None else min(deadline.to_ms(timeout), LONGEST_POLL_MS))
        return any(descriptor == sock.fileno() for descriptor, _ in ready)

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


class Pool:
    """The idle connections to one server. Thread-safe: a list's `append` and `pop` are atomic."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Link] = deque()
        self._open = True

    def take(self) -> Link:
        """An idle connection, else a new one (one attempt)."""
        try:
            return self._idle.pop()
        except IndexError:
            return Link(self._make())

    def give(self, link: Link) -> None:
        """Take back a connection on which no reply is pending."""
        link.fresh = False
        link.used_at = deadline.now()
        self._idle.append(link)
        if not self._open:
            self.drain()
            return
        with suppress(IndexError):  # the stack's bottom may be left over from a burst
            if link.used_at - self._idle[0].used_at > IDLE:
                self._close_one(self._idle.popleft)

    def drain(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._close_one(self._idle.pop)

    @staticmethod
    def _close_one(take: Callable[[], Link]) -> None:
        with suppress(IndexError):  # another thread was faster
            take().close()

    def close(self) -> None:
        """Closes what is idle now, and later what is still in use."""
        self._open = False
        self.drain()
