"""The flights in Redis: one typed method per script, and the reading of the log.

The only module that sends commands. All methods may be called from any thread.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import os
import re
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from redis.exceptions import NoScriptError

from singleflight_sync import deadline, wire
from singleflight_sync.deadline import to_ms
from singleflight_sync.errors import SingleFlightError, StoreError
from singleflight_sync.log import Entry, Reading, number
from singleflight_sync.wire import ERRORS, Command, UnreachableError, bulk, command, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight_sync.connect import Server
    from singleflight_sync.keys import Names, Namespace

P = ParamSpec("P")
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

BOARDS = 200
"""How many notice boards one script reads: the server does nothing else meanwhile."""

LOG_MARGIN = 10.0
"""How many seconds the log outlives the lease."""


class Answer(enum.IntEnum):
    """What a script answers; mirrors ``lua/log.lua``."""

    OWNER = 1
    WAIT = 2
    ENDED = 3
    LAPSED = 4
    REFUSED = 5
    INIT = 6
    DONE = 7
    LOST = 8
    GONE = 9


class Owned(NamedTuple):
    """The caller owns the flight."""

    token: int
    log_id: bytes
    takeovers: int


class Waiting(NamedTuple):
    """Somebody owns the flight; its token is None while it waits for its number (on a Cluster). Times in seconds."""

    token: int | None
    left: float
    log_id: bytes
    place: int
    forgotten: bool
    owner_id: str
    continues: int | None
    lease: float


class Stored(NamedTuple):
    """The fresh result: its flight's token (None where values carry none), the value, and what stands before it."""

    token: int | None
    prefix: bytes
    value: bytes


class Position(NamedTuple):
    """Where a follower stands: its flight, the log id that it has read to, the flight under which it was counted."""

    token: int | None
    log_id: bytes
    counted: int | None
    dead: int | None = None


class Right(NamedTuple):
    """What an owner shows with each change: its token, the log id of its claim, its lease and log life in ms."""

    token: int
    log_id: bytes
    lease_ms: int
    life_ms: int


class Call(NamedTuple):
    """One of many runs of a script."""

    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    key: str = ""


class Board(NamedTuple):
    """What a script read for people, and the server's time in ms."""

    now_ms: int
    values: list[Any]


class Forgotten(NamedTuple):
    """What `Store.forget` found: a stored value, a kept failure or an open flight, and the token of the latter."""

    stored: bool
    other: bool
    token: int | None


Fate = Entry | Answer
"""What became of a flight that is not open any more: its end, ``LOST`` or ``GONE``; ``DONE`` where it was open."""


class _Script:
    """A script, its preludes put where it names them, in the form that is sent."""

    def __init__(self, name: str) -> None:
        text = _read(name)
        source = re.sub(r"(?m)^-- prelude: (.*)$", lambda line: "\n".join(map(_read, line[1].split())), text).encode()
        self.source = (b"EVAL", source)
        self.digest = (b"EVALSHA", hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
        self.by_source = bulk(*self.source)
        self.by_digest = bulk(*self.digest)


def _read(name: str) -> str:
    return (resources.files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


_script = functools.lru_cache(maxsize=None)(_Script)


@functools.lru_cache(maxsize=4096)
def _packed_keys(*keys: bytes) -> bytes:
    return bulk(b"%d" % len(keys), *keys)


class LeftAloneError(UnreachableError):
    """Raised when Redis was not asked, as it could not be reached a moment ago."""


def _answered(method: Callable[P, T]) -> Callable[P, T]:
    """Make a `StoreError` of an answer of a shape that our scripts never give: something else speaks there."""

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except SingleFlightError:  # a ConfigurationError is a ValueError, too
            raise
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise StoreError(
                f"cannot {method.__name__}: the server answered what no Redis answers: is a proxy in between? ({exc!r})"
            ) from exc

    return checked


class Store:
    """One namespace on one server, as one process sees it."""

    def __init__(self, server: Server, namespace: Namespace, *, bare: bool = False) -> None:
        """``bare``: values stand under the result key without their token, and give way to what others write there."""
        self.server = server
        self.namespace = namespace
        self._bare = b"1" if bare else b"0"
        self._paused_until = 0.0
        self._paused_by: UnreachableError | None = None

    # -- claims

    @_answered
    def claim(
        self,
        names: Names,
        terms: bytes,
        owner_id: bytes,
        nonce: bytes,
        position: Position | None = None,
        *,
        unreadable: bytes | None = None,
        continues: int | None = None,
    ) -> Stored | Owned | Waiting | Entry | Answer:
        """Claim the flight (or, with an empty nonce, only look): a result, the lead, a place in the queue, or an end.

        Returns:
            ``Answer.LAPSED`` to a look where nobody is alive; ``Answer.REFUSED`` where this nonce's flight is
            over; ``Answer.LOST`` where a flight cannot be continued.

        Raises:
            StoreError: Redis refused, or was not reached by one attempt.
        """
        keys = [names.result, names.meta, names.stream]
        if not self.server.is_cluster:
            keys.append(self.namespace.owner_seq)
        args = [nonce, terms, owner_id, names.key.encode(), self._bare]
        if position or unreadable is not None or continues:
            args += _position(position)
            args += [
                b"" if unreadable is None else hashlib.sha1(unreadable, usedforsecurity=False).hexdigest().encode(),
                _text(continues),
            ]
        reply = self._run("claim", names, keys, *args)
        if isinstance(reply, bytes):
            return self._stored(reply)
        if reply[0] == Answer.INIT:
            return self._promoted(names, terms, nonce)
        return _claimed(reply)

    def _promoted(self, names: Names, terms: bytes, nonce: bytes) -> Owned | Answer:
        """The second and third step of a claim on a Cluster."""
        lease, life = terms.split()[:2]
        floor = b"0"
        try:
            while True:
                number = self._run("number", names, [self.namespace.owner_seq], floor)
                reply = self._run(
                    "promote", names, [names.meta, names.stream], nonce, number, lease, life, names.key.encode()
                )
                if reply[0] != Answer.INIT:
                    answer = _claimed(reply)
                    assert isinstance(answer, (Owned, Answer))
                    return answer
                floor = reply[1]
        except BaseException:
            self._give_back(names, nonce)
            raise

    def _give_back(self, names: Names, nonce: bytes) -> None:
        with suppress(StoreError):  # it lives for three seconds at most
            self._run("giveback", names, [names.meta], nonce)

    # -- what an owner does

    @_answered
    def renew(self, names: Names, right: Right) -> tuple[Fate, bool]:
        """Renew the lease; also returns whether the flight is forgotten."""
        reply = self._run(
            "renew",
            names,
            [names.meta, names.stream],
            *_shown(right),
            b"%d" % right.lease_ms,
            b"%d" % right.life_ms,
            names.key.encode(),
        )
        return _fate(reply), reply[0] == Answer.DONE and bool(reply[1])

    def index(self, names: Names, right: Right) -> None:
        """Enter the flight into the index of live flights."""
        self._run("index", names, [self.namespace.live], names.tag.encode(), b"%d" % right.lease_ms)

    @_answered
    def publish(self, names: Names, right: Right, nonce: bytes, value: bytes, ttl: float | None) -> Fate:
        """Publish the value; ``ttl`` in seconds, 0 = for those in the flight only, None (bare ones) = without end."""
        ttl_ms = -1 if ttl is None else to_ms(ttl)
        reply = self._run(
            "publish",
            names,
            [names.meta, names.result, names.stream],
            *_shown(right),
            nonce,
            value,
            b"%d" % ttl_ms,
            b"%d" % right.life_ms,
            self._bare,
            size=len(value),
        )
        return _fate(reply)

    @_answered
    def fail(self, names: Names, right: Right, nonce: bytes, error: bytes, keep: float) -> Fate:
        """End the flight with a failure that newcomers get for ``keep`` seconds."""
        reply = self._run(
            "finish",
            names,
            [names.meta, names.stream],
            *_shown(right),
            nonce,
            b"%d" % right.life_ms,
            b"failed",
            b"%d" % to_ms(keep),
            error,
        )
        return _fate(reply)

    @_answered
    def release(self, names: Names, right: Right, nonce: bytes, *, counted: bool) -> Fate:
        """End the flight without an outcome; ``counted``: as the loss of an owner."""
        reply = self._run(
            "finish",
            names,
            [names.meta, names.stream],
            *_shown(right),
            nonce,
            b"%d" % right.life_ms,
            b"released",
            b"%d" % counted,
        )
        return _fate(reply)

    # -- what anybody does

    @_answered
    def cancel(self, names: Names, token: int | None) -> int | None:
        """End the open flight; returns its token, or None where there was none."""
        reply = self._run("cancel", names, [names.meta, names.stream], _text(token), new_nonce())
        return number(reply)

    @_answered
    def forget(self, every: Sequence[Names], token: int | None) -> list[Forgotten]:
        """Drop the results of some keys and mark their open flights, in one round trip per server."""
        calls = [
            Call((names.meta, names.result, names.stream), (_text(token), self._bare), names.key) for names in every
        ]
        replies = _patiently(lambda: self._run_many("forget", calls))
        return [Forgotten(bool(stored), bool(other), number(marked)) for stored, other, marked in replies]

    def put(self, names: Names, value: bytes, ttl: float) -> None:
        """Store a result of no flight."""
        stored = value if self._bare == b"1" else b"0:" + value
        chunks = command(5, *pack((b"SET", names.result, stored, b"PX", b"%d" % to_ms(ttl))))
        self._send("store", names, names.result, chunks, len(value))

    @_answered
    def fetch(self, names: Names) -> Stored | None:
        """The fresh result."""
        try:
            reply = self._send("get the result", names, names.result, command(2, bulk(b"GET", names.result)))
        except StoreError as exc:
            if wire.is_wrong_type(exc.__cause__):
                return None
            raise
        stored = None if reply is None else self._stored(reply)
        return stored if stored is not None and (stored.token is not None or self._bare == b"1") else None

    @_answered
    def boards(self, tags: Sequence[bytes]) -> list[Board]:
        """The boards of the flights with these tags; those that are over leave the index. One trip per server."""
        meta, live = self.namespace.meta, self.namespace.live
        size = 1 if self.server.is_cluster else BOARDS
        parts = [tags[start : start + size] for start in range(0, len(tags), size)]
        more = () if self.server.is_cluster else (live,)
        calls = [Call((*(meta(tag.decode("utf-8", "replace")) for tag in part), *more), tuple(part)) for part in parts]
        boards, over = [], []
        for part, (now, *texts) in zip(parts, self._run_many("boards", calls), strict=True):
            boards += [Board(int(now), json.loads(text.decode("utf-8", "replace"))) for text in texts if text]
            over += [tag for tag, text in zip(part, texts, strict=True) if not text]
        if over and self.server.is_cluster:
            self._pipeline([(live, (b"ZREM", live, *over))])
        return boards

    @_answered
    def history(self, names: Names, most: int) -> list[Board]:
        """The newest entries of the log, oldest first, without their values."""
        now, *texts = self._run("history", names, [names.stream], b"%d" % most)
        return [Board(int(now), json.loads(text.decode("utf-8", "replace"))) for text in texts]

    @_answered
    def live(self) -> list[bytes]:
        """The tags of the index."""
        key = self.namespace.live
        (tags,) = self._pipeline([(key, (b"ZRANGE", key, b"0", b"-1"))])
        if isinstance(tags, Exception):
            if wire.is_wrong_type(tags):  # planted: the next heartbeat replaces it
                return []
            raise wire.translate(tags, "list the live flights", "") from tags
        return list(tags)

    def follow(self, names: Names, log_id: bytes) -> Reading:
        """Block on the log of a key, behind ``log_id``.

        Raises:
            StoreError: Redis was not reached.
        """
        return Reading(self.server, names, log_id)

    @_answered
    def entries(self, names: Names, log_id: bytes) -> list[Entry]:
        """What stands in the log behind ``log_id``."""
        chunks = command(4, bulk(b"XRANGE", names.stream, b"(" + log_id, b"+"))
        return [Entry.of(each, flat) for each, flat in self._send("follow", names, names.stream, chunks)]

    # -- how it is sent

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
        script = _script(name)
        packed = (_packed_keys(*keys), *pack(args))
        count = 3 + len(keys) + len(args)

        def attempt() -> Any:
            try:
                return self._send(name, names, keys[0], command(count, script.by_digest, *packed), size)
            except _UnknownScriptError:
                return self._send(name, names, keys[0], command(count, script.by_source, *packed), size)

        return _patiently(attempt)

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
        script = _script(name)
        replies = self._pipeline([_called(script.digest, each) for each in calls], name, calls[0].key)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = self._pipeline([_called(script.source, calls[place]) for place in unknown], name, calls[0].key)
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        for each, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                raise wire.translate(reply, _PHRASES.get(name, name), each.key) from reply
        return replies

    def _pipeline(self, commands: Sequence[Command], operation: str = "boards", key: str = "") -> list[Any]:
        """Many commands, each with the key that says where it goes; an error stands in the place of its reply."""
        return self._reach(operation, key, lambda: wire.pipeline(self.server, commands))

    def _stored(self, raw: bytes) -> Stored:
        if self._bare == b"1":
            return Stored(None, b"", raw)
        token, colon, _ = raw[:17].partition(b":")
        if not colon:
            return Stored(None, b"", raw)
        return Stored(number(token), token + colon, raw[len(token) + 1 :])


def _called(script: tuple[bytes, bytes], call: Call) -> Command:
    return call.keys[0], (*script, b"%d" % len(call.keys), *call.keys, *call.args)


class _UnknownScriptError(Exception):
    """The server does not have the script, after a restart or a failover."""


def _patiently(attempt: Callable[[], T]) -> T:
    """Repeat what a server answers that cannot serve for now; who does not answer is not asked again."""
    try:
        return attempt()
    except UnreachableError as exc:
        if not exc.answered:
            raise
    return wire.persist(attempt, PATIENCE)


def new_nonce() -> bytes:
    """A name for one call that may be sent twice: random, never made of host, process or thread."""
    return os.urandom(8).hex().encode()


@functools.lru_cache(maxsize=256)
def terms(lease: float, error_ttl: float, max_takeovers: int, *, failures: bool) -> bytes:
    """The terms of a claim as the script takes them; times in seconds."""
    life_ms = to_ms(max(lease, error_ttl) + LOG_MARGIN)
    return b"%d %d %d %d" % (to_ms(lease), life_ms, max_takeovers, failures)


def _text(token: int | None) -> bytes:
    return b"" if token is None else b"%d" % token


def _position(position: Position | None) -> list[bytes]:
    if position is None:
        return [b"", b"", b"", b""]
    return [_text(position.token), position.log_id, _text(position.counted), _text(position.dead)]


def _shown(right: Right) -> tuple[bytes, bytes]:
    return b"%d" % right.token, right.log_id


def _claimed(reply: list[Any]) -> Owned | Waiting | Entry | Answer:
    answer = Answer(reply[0])
    if answer is Answer.OWNER:
        return Owned(int(reply[1]), reply[2], reply[3])
    if answer is Answer.WAIT:
        _, token, left, log_id, place, forgotten, owner_id, continues, lease = reply
        return Waiting(
            number(token),
            left / 1000,
            log_id,
            place,
            bool(forgotten),
            owner_id.decode("utf-8", "replace"),
            number(continues),
            lease / 1000,
        )
    return _ended(reply) if answer is Answer.ENDED else answer


def _fate(reply: list[Any] | int) -> Fate:
    if isinstance(reply, int):
        return Answer(reply)
    return _ended(reply) if reply[0] == Answer.ENDED else Answer(reply[0])


def _ended(reply: list[Any]) -> Entry:
    return Entry.of(b"", reply[1])
