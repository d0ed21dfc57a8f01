"""How scripts and commands are sent to one server: again where that is right, and not while it is left alone."""

from __future__ import annotations

import functools
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redis.exceptions import NoScriptError

from singleflight_sync import deadline, wire
from singleflight_sync.wire import ERRORS, Command, UnreachableError, bulk, command, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight_sync.connect import Server
    from singleflight_sync.keys import Names

T = TypeVar("T")

PAUSE = 5.0
"""How many seconds a process leaves an unreachable Redis alone."""

PATIENCE = 2.0
"""How many seconds a command of no flight is repeated while the server answers that it cannot serve for now."""

_PHRASES = {
    "boards": "list the live flights",
    "history": "read the log",
    "index": "list the flight",
    "finish": "end the flight",
    "number": "get a fencing token",
    "promote": "claim",
    "giveback": "give the claim back",
}
"""What a script does, where its name does not say it to everybody."""


class Call(NamedTuple):
    """One of many runs of a script."""

    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    key: str = ""


class Script:
    """A script, its preludes put where it names them, in the form that is sent."""

    def __init__(self, name: str) -> None:
        text = _read(name)
        source = re.sub(r"(?m)^-- prelude: (.*)$", lambda line: "\n".join(map(_read, line[1].split())), text).encode()
        self.source = (b"EVAL", source)
        self.digest = (b"EVALSHA", hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
        self.by_source = bulk(*self.source)
        self.by_digest = bulk(*self.digest)


def _read(name: str) -> str:
    # Not by importlib.resources, which takes a lock that a child forked just then would inherit for ever.
    return (Path(__file__).with_name("lua") / f"{name}.lua").read_text("utf-8")


script = functools.lru_cache(maxsize=None)(Script)


@functools.lru_cache(maxsize=4096)
def _packed_keys(*keys: bytes) -> bytes:
    return bulk(b"%d" % len(keys), *keys)


class LeftAloneError(UnreachableError):
    """Raised when Redis was not asked, as it could not be reached a moment ago."""


class Sender:
    """Sends to one server. Thread-safe."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._paused_until = 0.0
        self._paused_by: UnreachableError | None = None

    def first(self, key: str, attempt: Callable[[], T]) -> T:
        """Ask Redis for something new. A dead one costs about one time-out, and then a pause, not one per call.

        After the pause one caller tries, and the others go on as before until it has an answer.

        Raises:
            StoreError: Redis refused, was not reached by one attempt, or is left alone.
        """
        if self._paused_until:
            if deadline.now() < self._paused_until:
                about = f" for key {key!r}" if key else ""
                cause = self._paused_by
                raise LeftAloneError(
                    f"cannot ask{about}: Redis could not be reached a moment ago, and is left alone for {PAUSE:g} s: "
                    f"{cause}"
                ) from (cause and cause.__cause__)
            self._paused_until = deadline.now() + PAUSE
        try:
            return attempt()
        except UnreachableError as exc:
            if exc.pauses:
                self._paused_until, self._paused_by = deadline.now() + PAUSE, exc
            raise

    def close(self) -> None:
        """Close all connections."""
        self.server.close()

    def _run(self, name: str, names: Names, keys: Sequence[bytes], *args: bytes, size: int = 0) -> Any:
        prepared = script(name)
        packed = (_packed_keys(*keys), *pack(args))
        count = 3 + len(keys) + len(args)

        def attempt() -> Any:
            try:
                return self._send(name, names, keys[0], command(count, prepared.by_digest, *packed), size)
            except _UnknownScriptError:
                return self._send(name, names, keys[0], command(count, prepared.by_source, *packed), size)

        return patiently(attempt)

    def _send(self, operation: str, names: Names, key: bytes, chunks: Sequence[bytes], size: int = 0) -> Any:
        return self._reach(operation, names.key, lambda: wire.exchange(self.server, key, chunks, size))

    def _reach(self, operation: str, key: str, exchange: Callable[[], T]) -> T:
        """Exchange something, in our errors. An answer ends the pause, whatever it says."""
        try:
            reply = exchange()
        except NoScriptError as exc:
            raise _UnknownScriptError from exc
        except ERRORS as exc:
            error = wire.translate(exc, _PHRASES.get(operation, operation), key)
            if isinstance(error, UnreachableError):
                self._refresh()
            else:
                self._paused_until = 0.0
            raise error from exc
        self._paused_until = 0.0
        return reply

    def _refresh(self) -> None:
        with suppress(*ERRORS):  # the next attempt says what is wrong
            self.server.refresh()

    def _run_many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script many times; one round trip per server."""
        prepared = script(name)
        replies = self._pipeline([_called(prepared.digest, each) for each in calls], name, calls[0].key)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = self._pipeline([_called(prepared.source, calls[place]) for place in unknown], name, calls[0].key)
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        for each, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                raise wire.translate(reply, _PHRASES.get(name, name), each.key) from reply
        return replies

    def _pipeline(self, commands: Sequence[Command], operation: str = "boards", key: str = "") -> list[Any]:
        """Many commands, each with the key that says where it goes; an error stands in the place of its reply."""
        return self._reach(operation, key, lambda: wire.pipeline(self.server, commands))


def _called(script: tuple[bytes, bytes], call: Call) -> Command:
    return call.keys[0], (*script, b"%d" % len(call.keys), *call.keys, *call.args)


class _UnknownScriptError(Exception):
    """The server does not have the script, after a restart or a failover."""


def patiently(attempt: Callable[[], T]) -> T:
    """Repeat what a server answers that cannot serve for now; who does not answer is not asked again."""
    try:
        return attempt()
    except UnreachableError as exc:
        if not exc.answered:
            raise
    return wire.persist(attempt, PATIENCE)
