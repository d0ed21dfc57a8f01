"""The lease: an owner's right to its flight, and the loop that keeps it alive.

Beats and publishing take one lock of the flight, so that no publication goes out under a token that a beat is
just replacing, and no beat changes a flight whose end is being written.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Protocol

from singleflight_sync import deadline, failures, log, outcome, wire
from singleflight_sync.answers import LOG_MARGIN, Answer, Fate, Owned, Position, Right, new_nonce, terms
from singleflight_sync.cancel import CancelReason
from singleflight_sync.deadline import to_ms
from singleflight_sync.errors import StoreError
from singleflight_sync.log import Entry
from singleflight_sync.outcome import Failure, Kind, Outcome
from singleflight_sync.wire import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight_sync.cancel import CancelToken
    from singleflight_sync.deadline import Deadline
    from singleflight_sync.keys import Names
    from singleflight_sync.options import Options
    from singleflight_sync.store import Store

logger = logging.getLogger("singleflight_sync")

RETRY = 0.1
"""A beat that found Redis unreachable is repeated after this many seconds."""


class Aboard(Protocol):
    """The callers of the own process that are in the flight."""

    def settle(self, result: Outcome) -> None:
        """All of them get this outcome."""

    def lost(self, position: Position) -> None:
        """Somebody else owns the flight now: whoever waits follows on from there, without the owner."""

    def forgotten(self) -> None:
        """Who comes from now on is not in the flight."""

    def vacate(self) -> None:
        """The flight is given up: the next of them claims in turn."""


class Lease:
    """The right of one owner to one flight. Thread-safe."""

    def __init__(
        self,
        store: Store | None,
        names: Names,
        owner_id: bytes,
        owned: Owned,
        options: Options,
        lease: float,
        asked_at: float,
        token: CancelToken,
        hard: Deadline,
        aboard: Aboard,
    ) -> None:
        """``store`` is None for a flight inside this process; ``lease`` (seconds) is long where nobody can beat.

        ``asked_at``: the monotonic time before the claim was sent, from which its lease counts on this side.
        """
        self.store = store
        self.names = names
        self.owner_id = owner_id
        self.heartbeat = options.heartbeat
        self.cancel_token = token
        self._options = options
        self._lease = lease
        self._aboard = aboard
        self._pid = os.getpid()  # looked at before _lock is taken: in a forked child it may be held for ever
        self._began = deadline.now()
        self._hard = hard
        self._lock = threading.Lock()
        # All below is guarded by _lock; `right` may be read without it, being replaced as a whole.
        life = max(lease, options.error_ttl) + LOG_MARGIN
        self.right = Right(owned.token, owned.log_id, to_ms(lease), to_ms(life))
        self._renewed_at = asked_at
        self._next_beat = self._began + options.heartbeat
        self._publishing = False
        self._forgotten = False
        self._end: Failure | Answer | None = None  # how it ended; DONE: by its owner, or given up by it
        self._continuing = b""  # nonce of a claim after a loss of data that has no answer yet
        self._stopped: threading.Event | None = None

    @property
    def end(self) -> Failure | Answer:
        """How the flight ended, if not by its owner; ``DONE`` as long as it goes on."""
        return self._end or Answer.DONE

    def age(self) -> float:
        """Seconds since the claim."""
        return deadline.now() - self._began

    @property
    def position(self) -> Position:
        """From where the flight is followed once it is lost."""
        return Position(self.right.token, self.right.log_id, self.right.token)

    def is_forked(self) -> bool:
        """Whether this is a child of the owner's process, which owns nothing."""
        return self._pid != os.getpid()

    def described(self) -> str:
        """Names owner and flight, for people."""
        return f"owner {self.owner_id.decode()}, fencing token {self.right.token}"

    def lease_left(self) -> float:
        """Seconds until the lease is over as far as this side knows, never negative."""
        return max(0.0, self._renewed_at + self._lease - deadline.now())

    # -- the heartbeat

    def start_heartbeat(self) -> bool:
        """Start the thread that keeps the lease; False where it cannot be started."""
        with self._lock:
            if self._end is not None:
                return True
            self._stopped = threading.Event()
        try:
            threading.Thread(target=self._keep_alive, name="singleflight-heartbeat", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _keep_alive(self) -> None:
        assert self._stopped is not None
        self._enter_index()
        while True:
            try:
                pause = self.tend()
            except Exception:
                logger.exception("heartbeat of key %r failed, and goes on", self.names.key)
                pause = RETRY
            if pause is None or self._stopped.wait(pause):
                return

    def tend(self) -> float | None:
        """Do what is due: end a flight that ran too long, or renew.

        Returns:
            The seconds until the next time; None: the flight is over.
        """
        if self.is_forked():
            return None
        with self._lock:
            if self._end is not None:
                return None
            late = None if self._publishing else self._late()
            if late is not None:
                self._end_late(late)
            elif deadline.now() >= self._next_beat:
                self._beat()
            return self._pause()

    def _late(self) -> CancelReason | None:
        if self._hard.expired:
            return CancelReason.HARD_TIMEOUT
        stall = self._options.stall_timeout
        if stall is not None and self.cancel_token.idle() >= stall:
            return CancelReason.STALLED
        return None

    def _pause(self) -> float | None:
        if self._end is not None:
            return None
        if self._publishing:
            return max(0.0, self._next_beat - deadline.now())
        moments = [self._next_beat]
        if self._hard.at is not None:
            moments.append(self._hard.at)
        if self._options.stall_timeout is not None:
            moments.append(self.cancel_token.last_seen + self._options.stall_timeout)
        return max(0.0, min(moments) - deadline.now())

    def _beat(self) -> None:
        sent = deadline.now()
        self._next_beat = sent + self.heartbeat
        if self.store is None:
            return
        try:
            if self._continuing:
                self._continue()
                return
            fate, forgotten = self.store.renew(self.names, self.right)
        except StoreError as exc:
            self._missed(exc)
            return
        if fate is Answer.DONE:
            self._renewed_at = sent
            self.cancel_token.reached()
            if forgotten:
                self._forget()
            self._enter_index()
        elif not self._publishing:  # the publication hears of it itself
            self._fell(fate)

    def _missed(self, exc: StoreError) -> None:
        """One missed beat is not a death: ask again soon, and give up hope only when the lease is over."""
        if self.lease_left():
            self._next_beat = deadline.now() + min(RETRY, self.heartbeat)
        elif self.cancel_token.fire(CancelReason.STORE_UNREACHABLE):
            logger.warning("flight of key %r: no beat got through within its lease: %s", self.names.key, exc)

    def _enter_index(self) -> None:
        if self.store is not None:
            try:
                self.store.index(self.names, self.right)
            except StoreError as exc:
                logger.debug("flight of key %r is not listed: %s", self.names.key, exc)

    def _fell(self, fate: Fate) -> None:
        if isinstance(fate, Entry) and fate.event == log.CANCELLED:
            self._finish(Failure(Kind.CANCELLED), CancelReason.CANCELLED)
        elif fate is Answer.GONE and deadline.now() - self._renewed_at < self._lease + LOG_MARGIN:
            self._continuing = new_nonce()
            try:
                self._continue()
            except StoreError as exc:
                self._missed(exc)
        else:
            self._lose()

    def _continue(self) -> None:
        """Redis lost its data, a `forget` perhaps among them: claim anew, and keep nothing of what comes out."""
        assert self.store is not None
        sent = deadline.now()
        asked = terms(self._lease, self._options.error_ttl, self._options.max_takeovers, failures=True)
        answer = self.store.claim(self.names, asked, self.owner_id, self._continuing, continues=self.right.token)
        self._continuing = b""
        if not isinstance(answer, Owned):
            self._lose()
            return
        logger.warning("flight of key %r goes on under a new fencing token, after Redis lost its data", self.names.key)
        self.right = self.right._replace(token=answer.token, log_id=answer.log_id)
        self._renewed_at = sent
        self._forget()
        self._enter_index()

    def _forget(self) -> None:
        if not self._forgotten:
            self._forgotten = True
            self._aboard.forgotten()

    # -- ends that are not the owner's

    def _finish(self, failure: Failure, reason: CancelReason) -> None:
        self._stop(failure)
        self.cancel_token.fire(reason)
        self._aboard.settle(failure)

    def _lose(self) -> None:
        self._stop(Answer.LOST)
        self.cancel_token.fire(CancelReason.LOST)
        self._aboard.lost(self.position)

    def _stop(self, end: Failure | Answer) -> None:
        self._end = end
        if self._stopped is not None:
            self._stopped.set()

    def _end_late(self, reason: CancelReason) -> None:
        """The work is bound to the lease: a stuck function must not hold the key for ever."""
        stalled = reason is CancelReason.STALLED
        seconds = self._options.stall_timeout if stalled else self._options.hard_timeout
        error = outcome.too_long(self.names.key, seconds, stalled=stalled)
        failure = Failure(Kind.ERROR, failures.describe(error, flight=self.described()))
        fate: Fate = Answer.DONE
        if self.store is not None:
            store, nonce, right = self.store, new_nonce(), self.right
            try:
                fate = store.fail(self.names, right, nonce, failure.payload, self._options.error_ttl)
            except StoreError as exc:
                self._finish(failure, reason)
                logger.warning("flight of key %r ran too long, and Redis cannot be told: %s", self.names.key, exc)
                return
        if fate is Answer.LOST:
            self._lose()
        elif isinstance(fate, Entry) and fate.event == log.CANCELLED:
            self._finish(Failure(Kind.CANCELLED), CancelReason.CANCELLED)
        else:
            self._finish(failure, reason)

    def cancelled(self, token: int) -> None:
        """``cancel`` was called in this process and has ended the flight of this token."""
        with self._lock:
            if self._end is None and self.right.token == token:
                self._finish(Failure(Kind.CANCELLED), CancelReason.CANCELLED)

    def forgotten(self, token: int) -> None:
        """``forget`` was called in this process and has marked the flight of this token."""
        with self._lock:
            if self._end is None and self.right.token == token:
                self._forget()

    # -- ends that are the owner's

    def publish(self, value: bytes, ttl: float | None) -> Fate | Failure:
        """Publish the value, for as long as the lease may still be ours.

        Returns:
            ``DONE``, or what became of the flight instead.

        Raises:
            StoreError: Redis refused the value, or was not reached.
        """
        nonce = new_nonce()
        return self._conclude(lambda store, right: store.publish(self.names, right, nonce, value, ttl))

    def fail(self, error: bytes) -> Fate | Failure:
        """Publish a failure; otherwise as `publish`."""
        nonce = new_nonce()
        return self._conclude(lambda store, right: store.fail(self.names, right, nonce, error, self._options.error_ttl))

    def release(self, *, counted: bool) -> bool:
        """End the flight without an outcome. What Redis cannot be told, the end of the lease says.

        Returns:
            Whether it had not ended before.
        """
        if self.is_forked():
            return False
        with self._lock:
            if self._end is not None:
                return False
            self._stop(Answer.DONE)
            store, right = self.store, self.right
        if store is not None:
            try:
                store.release(self.names, right, new_nonce(), counted=counted)
            except StoreError as exc:
                logger.warning(
                    "flight of key %r could not be released and ends with its lease: %s", self.names.key, exc
                )
        return True

    def stop(self) -> None:
        """The owner's call is over: however it ended, nothing beats for it any more."""
        if self.is_forked():
            return
        with self._lock:
            if self._end is None:
                self._stop(Answer.DONE)

    def _report_silence(self) -> None:
        late = deadline.now() - self._next_beat
        if self.store is not None and late > self.heartbeat and self._lease == self._options.lease:
            logger.warning(
                "flight of key %r had no heartbeat for %.1f s: its function, or the server that runs it, keeps other "
                "threads from running. Its lease may have lapsed meanwhile",
                self.names.key,
                late + self.heartbeat,
            )

    def give_up(self) -> None:
        """The group is closed: whoever waits claims in turn, and the function's caller keeps its own value."""
        if self.release(counted=False):
            self._aboard.vacate()

    def _conclude(self, send: Callable[[Store, Right], Fate]) -> Fate | Failure:
        if self.is_forked():
            return Answer.DONE
        with self._lock:
            if self._continuing and self._end is None:
                self._continue()
            if self._end is not None:
                return self._end
            self._report_silence()
            self._publishing = True
            self._next_beat = deadline.now() + self.heartbeat  # beats go on during a long upload only
            store, right = self.store, self.right
        try:
            fate = Answer.DONE if store is None else wire.persist(lambda: send(store, right), self.lease_left())
        except BaseException as exc:
            if not isinstance(exc, UnreachableError):
                # Redis refuses the value, or we are interrupted: nothing is shared, and those who wait claim in turn.
                self.release(counted=not isinstance(exc, StoreError))
            raise
        finally:
            # Without the lock, for which a beat may make us wait: while we publish, beats change no more than a time.
            self._stop(Answer.DONE)
        return fate
