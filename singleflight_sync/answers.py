"""What is said to the scripts and what they answer, as types."""

from __future__ import annotations

import enum
import functools
import os
from typing import Any, NamedTuple

from singleflight_sync.deadline import to_ms
from singleflight_sync.log import Entry, number

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


def new_nonce() -> bytes:
    """A name for one call that may be sent twice: random, never made of host, process or thread."""
    return os.urandom(8).hex().encode()


@functools.lru_cache(maxsize=256)
def terms(lease: float, error_ttl: float, max_takeovers: int, *, failures: bool) -> bytes:
    """The terms of a claim as the script takes them; times in seconds."""
    life_ms = to_ms(max(lease, error_ttl) + LOG_MARGIN)
    return b"%d %d %d %d" % (to_ms(lease), life_ms, max_takeovers, failures)


def claimed(reply: list[Any]) -> Owned | Waiting | Entry | Answer:
    """What a claim or a look was answered."""
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


def fate(reply: list[Any] | int) -> Fate:
    """What an owner was answered."""
    if isinstance(reply, int):
        return Answer(reply)
    return _ended(reply) if reply[0] == Answer.ENDED else Answer(reply[0])


def _ended(reply: list[Any]) -> Entry:
    return Entry.of(b"", reply[1])
