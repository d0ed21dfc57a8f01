"""The follower's life: wait on the log, look again at the lease's end, take the lead in turn.

A follower writes nothing. It waits on one pending read of the log, timed by its own clock, and on the file
descriptor of the owner's process where that runs on this host. What it knows: the flight that it follows, how
long that one's lease lasts, whether it may take its outcome, and its place in the queue.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from singleflight_sync import deadline, log, outcome, presence
from singleflight_sync.answers import Position, Stored, Waiting
from singleflight_sync.log import Entry
from singleflight_sync.outcome import Outcome, Value
from singleflight_sync.wire import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight_sync.keys import Names
    from singleflight_sync.log import Reading
    from singleflight_sync.options import Options
    from singleflight_sync.patience import Patience
    from singleflight_sync.store import Store

PLACE = 0.02
"""Each place in the queue waits this many seconds longer before a takeover, up to ``takeover_jitter``."""
LATE = 0.005
"""The server ends a lease a few milliseconds after the client thinks so."""
RETRY = 0.05


class Follower:
    """Follows the flight of one key. Used by one thread at a time; may be handed to another one."""

    def __init__(self, store: Store, names: Names, options: Options, terms: bytes) -> None:
        """``terms``: those of the claim, should it come to one."""
        self._store = store
        self._names = names
        self._options = options
        self._terms = terms
        self._token: int | None = None  # None: the flight of the next claim is meant
        self._log_id = b"0-0"  # the log is read behind it
        self._counted: int | None = None  # under this token the server has counted us
        self._entitled = True  # False: the flight was forgotten before we came
        self._place = 0
        self._lease = 0.0
        self._lease_until = 0.0
        self._turn_at: float | None = None  # to claim in turn then
        self._behind = False  # the log may hold entries that were not read in time
        self._out_of_touch = False
        self._steady_at = 0.0  # nobody is given up before that, after an outage
        self._dead: int | None = None  # token whose owner's process is gone
        self._watch: presence.Watch | None = None
        self._reading: Reading | None = None

    @property
    def position(self) -> Position:
        """What it tells when it looks or claims."""
        return Position(self._token, self._log_id, self._counted, self._dead)

    @property
    def place(self) -> int:
        """Its place in the queue, from 1."""
        return self._place

    def join(self, answer: Waiting) -> None:
        """Follow the flight that a claim or a look found."""
        self._lease_until = deadline.now() + answer.left + LATE
        self._turn_at = self._dead = None
        if answer.place:
            self._place, self._counted = answer.place, answer.token
        if self._lease and answer.token == self._token:
            return
        if answer.forgotten:
            self._entitled = self._entitled and answer.continues is not None and answer.continues == self._token
        else:
            self._entitled = True
        self._token = answer.token
        self._lease = answer.lease
        if self._reading is None:
            self._log_id = answer.log_id
        self._observe(answer.owner_id)

    def resume(self, position: Position, lease: float) -> None:
        """Follow on from a flight of our own that is lost: from its claim, and looking at once."""
        self._token, self._log_id, self._counted, _ = position
        self._lease = lease
        self._lease_until = deadline.now()
        self._behind = True

    def time_left(self) -> float:
        """Seconds until the lease that it knows of is over, never negative."""
        return max(0.0, self._lease_until - deadline.now())

    def follow(self, patience: Patience, on_forgotten: Callable[[], None]) -> Outcome | None:
        """Wait for the flight's outcome; None: it is this follower's turn to claim.

        Raises:
            WaitTimeoutError, FlightInterrupted: see `Patience.slice`.
            StoreError: Redis could not be reached until the lease was over, or refused.
        """
        while self._turn_at is None or deadline.now() < self._turn_at:
            due = self._lease_until if self._turn_at is None else self._turn_at
            pause = patience.slice(max(0.0, due - deadline.now()))
            assert pause is not None
            result = self._step(pause, on_forgotten)
            if result is not None:
                return result
        return None

    def close(self) -> None:
        """Leave the queue."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def ended(self, entry: Entry) -> Outcome | None:
        """A claim was answered with an end: of the flight that it follows, or a failure that is kept for newcomers."""
        return self._ended(entry) if self._token is not None and entry.token == self._token else outcome.of_end(entry)

    # -- one step

    def _step(self, pause: float, on_forgotten: Callable[[], None]) -> Outcome | None:
        gone = self._token is not None and self._watch is not None and self._watch.gone()
        try:
            if self._behind:
                return self._catch_up(on_forgotten)
            if self._listen(0.0 if gone else pause):
                return self._read(on_forgotten)
        except UnreachableError:
            self._lose_touch()
            time.sleep(min(RETRY, pause))
        if self._turn_at is None and not self._owner_is_gone() and not self.time_left():
            return self._look()
        return None

    def _catch_up(self, on_forgotten: Callable[[], None]) -> Outcome | None:
        """Take what stands in the log before looking: it may hold more than one flight that has ended meanwhile."""
        for entry in self._store.entries(self._names, self._log_id):
            result = self._note(entry, on_forgotten)
            if result is not None:
                return result
            self._log_id = entry.log_id
        self._behind = False
        return None

    def _listen(self, pause: float) -> bool:
        """Wait for entries; True: there are some."""
        if self._reading is None:
            self._reading = self._store.follow(self._names, self._log_id)
            self._in_touch()
        watched = self._watch.fd if self._watch is not None and self._turn_at is None else None
        return self._reading.wait(pause, *([] if watched is None else [watched]))

    def _read(self, on_forgotten: Callable[[], None]) -> Outcome | None:
        """Take the entries that have come, each before the next is counted as read.

        An end stays unread: should this caller be interrupted, its successor finds it.
        """
        reading = self._reading
        assert reading is not None
        try:
            for entry in reading.entries():
                result = self._note(entry, on_forgotten)
                if result is not None:
                    self._reading = None
                    reading.done()
                    return result
                self._log_id = entry.log_id
            reading.ask_again()
        except BaseException:
            self._reading = None
            reading.close()
            raise
        return None

    def _look(self) -> Outcome | None:
        """The lease should be over: was it renewed, has the flight ended, or is nobody there?"""
        answer = self._store.claim(self._names, self._terms, b"", b"", self.position)
        self._in_touch()
        if isinstance(answer, Stored):
            return Value(answer.value)
        if isinstance(answer, Entry):
            return self.ended(answer)
        if isinstance(answer, Waiting):
            self.join(answer)
        else:
            self._turn_at = max(deadline.now(), self._steady_at) + self._delay()
        return None

    def _owner_is_gone(self) -> bool:
        """Whether the kernel says that the owner's process is gone, which makes waiting for the lease needless."""
        if self._token is None or self._watch is None or self._turn_at is not None or not self._watch.gone():
            return False
        self._dead = self._token
        self._turn_at = deadline.now() + self._delay()
        return True

    def _note(self, entry: Entry, on_forgotten: Callable[[], None]) -> Outcome | None:
        if entry.event == log.CLAIMED:
            self._claimed(entry)
        elif entry.token is None or entry.token != self._token:
            return None  # of a flight that is not ours
        elif entry.event == log.FORGOTTEN:
            if self._entitled:  # else we came after it
                on_forgotten()
        elif entry.event in log.ENDS:
            return self._ended(entry)
        return None

    def _claimed(self, entry: Entry) -> None:
        """Somebody took over before our turn came."""
        if entry.token == self._token:
            return
        continues = log.number(entry.fields.get(b"continues"))
        self._entitled = continues is None or (self._entitled and continues == self._token)
        if self._token is None and self._place and self._counted is None:
            self._counted = entry.token  # counted while it waited for its number
        self._token = entry.token
        self._lease = entry.number(b"lease") / 1000
        self._lease_until = deadline.now() + self._lease
        self._turn_at = self._dead = None
        self._observe(entry.fields.get(b"ownerId", b"").decode("utf-8", "replace"))

    def _ended(self, entry: Entry) -> Outcome | None:
        result = outcome.of_end(entry) if self._entitled else None
        if result is None and self._entitled and entry.event == log.SUCCEEDED:
            stored = self._store.fetch(self._names)
            if stored is not None and stored.token == entry.token:
                return Value(stored.value)
            self._turn_at = deadline.now()  # as a newcomer
        elif result is None:
            self._turn_at = deadline.now() + self._delay()
        if result is None:
            self._token = None
            self._observe("")
        return result

    def _observe(self, owner_id: str) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = presence.watch(owner_id)

    def _delay(self) -> float:
        """Seconds before a takeover: the first of the queue claims, which sends the others back to waiting."""
        if self._place <= 1:
            return 0.0
        return random.uniform(0.5, 1.0) * min(self._place * PLACE, self._options.takeover_jitter)  # noqa: S311 - no secret

    # -- outages

    def _lose_touch(self) -> None:
        self._out_of_touch = self._behind = True
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _in_touch(self) -> None:
        """Redis answers again: a living owner gets the time for its next beat."""
        if self._out_of_touch:
            self._out_of_touch = False
            self._steady_at = deadline.now() + max(self._lease / 2, self._options.heartbeat)
            self._lease_until = max(self._lease_until, self._steady_at)
