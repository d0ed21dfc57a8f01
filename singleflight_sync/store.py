"""The flights in Redis: one typed method per script, and the reading of the log. All may be called from any thread."""

from __future__ import annotations

import functools
import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from singleflight_sync import wire
from singleflight_sync.answers import (
    Answer,
    Board,
    Fate,
    Forgotten,
    Owned,
    Position,
    Right,
    Stored,
    Waiting,
    claimed,
    fate,
    new_nonce,
)
from singleflight_sync.deadline import to_ms
from singleflight_sync.errors import SingleFlightError, StoreError
from singleflight_sync.log import Entry, Reading, number
from singleflight_sync.sender import Call, Sender, patiently
from singleflight_sync.wire import bulk, command, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight_sync.connect import Server
    from singleflight_sync.keys import Names, Namespace

P = ParamSpec("P")
T = TypeVar("T")

BOARDS = 200
"""How many notice boards one script reads: the server does nothing else meanwhile."""


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


class Store(Sender):
    """One namespace on one server, as one process sees it."""

    def __init__(self, server: Server, namespace: Namespace, *, bare: bool = False) -> None:
        """``bare``: values stand under the result key without their token, and give way to what others write there."""
        super().__init__(server)
        self.namespace = namespace
        self._bare = b"1" if bare else b"0"

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
        return claimed(reply)

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
                    answer = claimed(reply)
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
        return fate(reply), reply[0] == Answer.DONE and bool(reply[1])

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
        return fate(reply)

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
        return fate(reply)

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
        return fate(reply)

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
        replies = patiently(lambda: self._run_many("forget", calls))
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
    def boards(self, tags: Sequence[bytes], key: str = "") -> list[Board]:
        """The boards of the flights with these tags; those that are over leave the index. One trip per server."""
        meta, live = self.namespace.meta, self.namespace.live
        size = 1 if self.server.is_cluster else BOARDS
        parts = [tags[start : start + size] for start in range(0, len(tags), size)]
        more = () if self.server.is_cluster else (live,)
        calls = [
            Call((*(meta(tag.decode("utf-8", "replace")) for tag in part), *more), tuple(part), key) for part in parts
        ]
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

    def _stored(self, raw: bytes) -> Stored:
        if self._bare == b"1":
            return Stored(None, b"", raw)
        token, colon, _ = raw[:17].partition(b":")
        if not colon:
            return Stored(None, b"", raw)
        return Stored(number(token), token + colon, raw[len(token) + 1 :])


def _text(token: int | None) -> bytes:
    return b"" if token is None else b"%d" % token


def _position(position: Position | None) -> list[bytes]:
    if position is None:
        return [b"", b"", b"", b""]
    return [_text(position.token), position.log_id, _text(position.counted), _text(position.dead)]


def _shown(right: Right) -> tuple[bytes, bytes]:
    return b"%d" % right.token, right.log_id
