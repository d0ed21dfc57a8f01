"""Sharing inside one process: the threads that ask for one key share one conversation with Redis.

A room is the conversation about one key. The caller that opens it leads; who comes while it is open takes a
seat and waits. The leader settles the room with an outcome, or hands the lead over. A room lives as long as
its flight, not as its leader's call: the heartbeat may settle it, too. As in Go's ``x/sync/singleflight``,
identity is checked before a room leaves the table, so that a room that was closed early never removes its
successor.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from singleflight_sync.errors import ReentrantFlightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight_sync.patience import Patience


class Closable(Protocol):
    """Holds something that must be given back."""

    def close(self) -> None:
        """Give it back."""


Out = TypeVar("Out")
"""What a room is settled with."""
State = TypeVar("State", bound=Closable)
"""What a leader hands to its successor."""


class Seat(Generic[Out, State]):
    """One caller's place in a room."""

    __slots__ = ("room", "state", "thread", "turn")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.room: Room[Out, State] | None = None
        self.turn: threading.Event | None = None  # of a caller that waits: set for an outcome or the lead
        # Where the conversation stands, for the successor. Written by who leads for this seat: its caller, or the
        # heartbeat that ends its flight.
        self.state: State | None = None


class Room(Generic[Out, State]):
    """One key's conversation. Guarded by the table's lock.

    Who was woken reads it without, and so does `wake`: nobody enters a room that is settled, and `leave` wakes again.
    """

    __slots__ = ("key", "leader", "outcome", "settled", "waiting")

    def __init__(self, key: str, leader: Seat[Out, State]) -> None:
        self.key = key
        self.leader: Seat[Out, State] | None = leader
        self.outcome: Out | None = None  # set once, before `settled`
        self.settled = False
        self.waiting: list[Seat[Out, State]] = []

    def wake(self) -> None:
        """Wake whoever has something to do: all, or the leader. Harmless where they are awake."""
        for seat in self.waiting.copy() if self.settled else [self.leader]:
            if seat is not None and seat.turn is not None:
                seat.turn.set()
        if self.settled:  # a seat names its room: in a ring the outcome would live until the next garbage collection
            self.leader, self.waiting = None, []


class Rooms(Generic[Out, State]):
    """The open rooms of one process for one namespace on one server. Thread-safe.

    A caller may be interrupted anywhere in here (Ctrl-C): `leave`, which it calls then, finishes what was begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[str, Room[Out, State]] = {}  # guarded by _lock

    def enter(self, key: str, seat: Seat[Out, State]) -> bool:
        """Take the seat in the key's room; True: this caller opened it and leads.

        Raises:
            ReentrantFlightError: this very thread leads the room, and would wait for itself.
        """
        with self._lock:
            room = self._rooms.get(key)
            if room is None:
                seat.room = room = Room(key, seat)
                self._rooms[key] = room
                return True
            if room.leader is not None and room.leader.thread == seat.thread:
                raise ReentrantFlightError(
                    f"key {key!r} was asked for by code that its own flight calls (an observer, a log handler), "
                    f"and would wait for itself: do not ask for it there"
                )
            seat.room = room
            seat.turn = threading.Event()
            room.waiting.append(seat)
            return False

    def is_open(self, key: str) -> bool:
        """Whether a caller of this key would find a room."""
        return key in self._rooms

    def waiting(self, seat: Seat[Out, State]) -> int:
        """How many callers wait in the seat's room: those in a seat, and a leader that follows."""
        with self._lock:
            room = seat.room
            if room is None:
                return 0
            return len(room.waiting) + (room.leader is not None and room.leader.state is not None)

    def wait(self, seat: Seat[Out, State], patience: Patience) -> Out | None:
        """Wait for the room's outcome; None: this caller leads now, with the seat's ``state``.

        Who does not go on after an error has to `leave`.

        Raises:
            WaitTimeoutError, FlightInterrupted: see `Patience.slice`.
        """
        assert seat.turn is not None
        assert seat.room is not None
        while not seat.turn.wait(patience.slice()):
            pass
        return seat.room.outcome if seat.room.settled else None

    def settle(self, seat: Seat[Out, State], outcome: Out) -> None:
        """Give everybody in the room the outcome, and close it. Nothing where this seat does not lead (any more)."""
        with self._lock:
            room = seat.room
            if room is None or room.leader is not seat or room.settled:
                return
            room.outcome = outcome
            room.settled = True
            self._remove(room)
        room.wake()

    def leave(self, seat: Seat[Out, State]) -> None:
        """Leave without an outcome.

        A leader's state goes to the next in the room, who leads then; where there is none, the room is closed.
        """
        state = None
        with self._lock:
            room = seat.room
            if room is None:
                return
            if seat in room.waiting:
                room.waiting.remove(seat)
            if room.settled:
                self._remove(room)
            elif room.leader is seat:
                state, seat.state = seat.state, None
                if room.waiting:
                    # In this order, so that an interrupt between two lines loses nobody.
                    room.waiting[0].state, state = state, None
                    room.leader = room.waiting[0]
                    del room.waiting[0]
                else:
                    self._remove(room)
                    room.leader = None
        room.wake()
        if state is not None:
            state.close()

    def close(self, seat: Seat[Out, State]) -> None:
        """Let later callers open a room of their own; those inside stay."""
        with self._lock:
            if seat.room is not None:
                self._remove(seat.room)

    def close_keys(self, keys: Sequence[str]) -> None:
        """Do the same by key; without any, to all rooms."""
        with self._lock:
            for key in keys or list(self._rooms):
                self._rooms.pop(key, None)

    def _remove(self, room: Room[Out, State]) -> None:
        if self._rooms.get(room.key) is room:
            del self._rooms[room.key]
