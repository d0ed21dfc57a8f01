"""What people see of a live flight."""

from __future__ import annotations

from dataclasses import dataclass


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
    def of_board(cls, board: dict[bytes, bytes], left_ms: int, now_ms: int, group: str) -> FlightInfo | None:
        """Read a notice board of this release or another one; None if it is none."""

        def text(name: bytes) -> str:
            return board.get(name, b"").decode("utf-8", "replace")

        def whole(name: bytes, default: int = 0) -> int:
            value = board.get(name, b"")
            return int(value) if value.isdigit() else default

        if not board.get(b"status") or not board.get(b"key"):
            return None
        started = whole(b"startedAt", now_ms)
        return cls(
            key=text(b"key"),
            group=group,
            status=text(b"status"),
            fencing_token=whole(b"ownerToken") or None,
            owner_id=text(b"ownerId"),
            age=max(0, now_ms - started) / 1000,
            heartbeat_age=max(0, now_ms - whole(b"heartbeatAt", started)) / 1000,
            lease=whole(b"leaseMs") / 1000,
            lease_left=max(0, left_ms) / 1000,
            followers=whole(b"followers"),
            takeovers=whole(b"takeovers"),
            forgotten=board.get(b"forgotten") == b"1",
        )
