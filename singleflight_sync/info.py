"""What people see of a live flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_DIGITS = 17


@dataclass(frozen=True, slots=True)
class FlightInfo:
    """A live flight at one moment. Times in seconds, by the server's clock.

    Attributes:
        key: What the callers asked for.
        group: Name of the group that lists it.
        status: ``INIT`` (claimed, no fencing token yet: on a Cluster, for a moment) or ``RUNNING``.
        fencing_token: The flight's identity; None while ``INIT``.
        owner_id: Host, pid, start time, PID namespace and boot of the owner's process, between slashes.
        age: Since the claim.
        heartbeat_age: Since the last renewal.
        lease: Length of the lease.
        lease_left: Until the lease is over, if it is not renewed.
        followers: Processes that have joined so far; nobody counts down.
        takeovers: How many owners the key has lost before this one.
        forgotten: Whether its result will not be stored.
    """

    key: str
    group: str
    status: str
    fencing_token: int | None
    owner_id: str
    age: float
    heartbeat_age: float
    lease: float
    lease_left: float
    followers: int
    takeovers: int
    forgotten: bool

    @classmethod
    def of_board(cls, values: list[Any], now_ms: int, group: str) -> FlightInfo:
        """From what ``lua/boards.lua`` read; a field of another release or none has a value that says least."""
        key, status, token, owner, started, beat, lease, followers, takeovers, forgotten, left_ms = values
        began = _whole(started, now_ms)
        return cls(
            key=str(key),
            group=group,
            status=str(status),
            fencing_token=_whole(token) or None,
            owner_id=owner or "",
            age=max(0, now_ms - began) / 1000,
            heartbeat_age=max(0, now_ms - _whole(beat, began)) / 1000,
            lease=_whole(lease) / 1000,
            lease_left=left_ms / 1000,
            followers=_whole(followers),
            takeovers=_whole(takeovers),
            forgotten=forgotten == "1",
        )


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a key's log, without its value.

    Attributes:
        event: ``claimed``, ``succeeded``, ``failed``, ``cancelled``, ``released`` or ``forgotten``.
        fencing_token: The flight; None where the entry names none.
        age: Seconds since, by the server's clock.
        owner_id: Of ``claimed``, as in `FlightInfo`; else ``""``.
        takeovers: Of ``claimed``: how many owners the key had lost before.
        continues: Of ``claimed``: the flight that it continues after Redis lost its data; else None.
    """

    event: str
    fencing_token: int | None
    age: float
    owner_id: str = ""
    takeovers: int = 0
    continues: int | None = None

    @classmethod
    def of_entry(cls, values: list[Any], now_ms: int) -> LogEntry:
        """From what ``lua/history.lua`` read."""
        time_ms, event, token, owner, takeovers, continues = values
        age = max(0, now_ms - int(time_ms)) / 1000
        return cls(event or "", _whole(token) or None, age, owner or "", _whole(takeovers), _whole(continues) or None)


def _whole(text: object, default: int = 0) -> int:
    """A whole number as Redis holds it; what was planted is none."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < _DIGITS else default
