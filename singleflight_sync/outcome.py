"""What a flight ends with: a value, or a failure. Immutable; each caller makes its own objects of it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from singleflight_sync import failures, log
from singleflight_sync.errors import FlightCancelledError, HardTimeoutError, TakeoverLimitError

if TYPE_CHECKING:
    from singleflight_sync.log import Entry


class Value(NamedTuple):
    """The encoded value; ``known``: the value itself, in a tuple, where it cannot be changed by who shares it."""

    payload: bytes
    known: tuple[object, ...] = ()


class Kind(enum.Enum):
    """How a flight ended without a value."""

    ERROR = enum.auto()
    """The function raised, ran too long, or its value could not be encoded."""
    CANCELLED = enum.auto()
    LIMIT = enum.auto()
    """The flight lost too many owners."""


class Failure(NamedTuple):
    """The end of a flight without a value."""

    kind: Kind
    payload: bytes = b""
    takeovers: int = 0

    def exception(self, key: str) -> Exception:
        """A fresh exception: one shared by several threads would collect the tracebacks of all of them."""
        if self.kind is Kind.CANCELLED:
            return FlightCancelledError(
                f"the flight of key {key!r} was ended by cancel(): ask again to start a new one"
            )
        if self.kind is Kind.LIMIT:
            return TakeoverLimitError(
                f"the flight of key {key!r} lost its owner {self.takeovers + 1} times: its function seems to kill "
                f"the process that runs it. "
                f"Look into the logs of its owners; newcomers get this error for 10 s"
            )
        return failures.rebuild(self.payload, key)


Outcome = Value | Failure


def too_long(key: str, seconds: float | None, *, stalled: bool) -> HardTimeoutError:
    """The error of a flight whose function holds it for too long."""
    what = (
        f"showed no checkpoint for stall_timeout={seconds:g} s: call cancel_token.checkpoint() more often, "
        f"or raise stall_timeout"
        if stalled
        else f"ran past hard_timeout={seconds:g} s: make its function faster, or raise hard_timeout"
    )
    return HardTimeoutError(f"the flight of key {key!r} {what}")


def of_end(entry: Entry) -> Outcome | None:
    """The outcome in the entry of an end; None where it holds none: released, or the value is to be fetched."""
    if entry.event == log.SUCCEEDED:
        value = entry.fields.get(b"value")
        return None if value is None else Value(value)
    if entry.event == log.CANCELLED:
        return Failure(Kind.CANCELLED)
    if entry.event == log.FAILED:
        if b"limit" in entry.fields:
            return Failure(Kind.LIMIT, takeovers=entry.number(b"limit"))
        return Failure(Kind.ERROR, entry.fields.get(b"error", b""))
    return None
