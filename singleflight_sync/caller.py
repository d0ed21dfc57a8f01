"""One call of ``run``, from the key to its value: in the key's room, at Redis, as owner or follower."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from singleflight_sync import deadline, keeper, outcome
from singleflight_sync.answers import Answer, Owned, Right, Stored, Waiting, new_nonce, terms
from singleflight_sync.cancel import CancelToken
from singleflight_sync.codecs import is_immutable
from singleflight_sync.deadline import Deadline
from singleflight_sync.errors import ConfigurationError, StoreError
from singleflight_sync.events import (
    FlightClaimed,
    FlightFollowed,
    FlightTakenOver,
    ResultHit,
    StoreFailed,
    WaitTimedOut,
)
from singleflight_sync.follower import Follower
from singleflight_sync.heartbeat import Lease
from singleflight_sync.local import Seat
from singleflight_sync.log import Entry
from singleflight_sync.outcome import Failure, Kind, Outcome, Value
from singleflight_sync.owner import Flight, Landed, Owner, Refused, call_directly, check_entrance
from singleflight_sync.patience import Patience
from singleflight_sync.sender import LeftAloneError
from singleflight_sync.wire import persist

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight_sync.answers import Position
    from singleflight_sync.codecs import Codec
    from singleflight_sync.events import FlightEvent
    from singleflight_sync.keys import Names
    from singleflight_sync.local import Rooms
    from singleflight_sync.options import Options
    from singleflight_sync.runtime import Runtime

R = TypeVar("R")

logger = logging.getLogger("singleflight_sync")


class Manner(NamedTuple):
    """What one call wants besides the options."""

    codec: Codec
    ttl: float | None
    """Life of the value in seconds; None = without end."""
    max_waiting: int | None = None
    on_wait: Callable[[], object] | None = None
    """Called once, before this caller begins to wait for somebody else."""


class Caller:
    """One call of ``run``. Used by one thread."""

    __slots__ = (
        "_asked_at",
        "_function",
        "_lease",
        "_manner",
        "_misses",
        "_names",
        "_options",
        "_outer",
        "_owned",
        "_patience",
        "_rooms",
        "_runtime",
        "_terms",
        "_token",
        "_unreadable",
        "_waited",
        "_waits",
    )

    def __init__(
        self, runtime: Runtime, names: Names, function: Callable[[], Any], options: Options, manner: Manner
    ) -> None:
        self._runtime = runtime
        self._names = names
        self._function = function
        self._options = options
        self._manner = manner
        self._waits = False
        self._waited = False
        self._asked_at = 0.0
        self._owned: Owned | None = None
        self._rooms = runtime.shared.rooms
        self._outer = outer = check_entrance(names.key, self._rooms)
        token, key = (None, "") if outer is None else (outer.cancel_token, outer.key)
        self._patience = Patience(names.key, options.wait_timeout, token, key, manner.max_waiting)
        self._lease = _lease(names.key, options)
        self._terms = terms(self._lease, options.error_ttl, options.max_takeovers, failures=options.share_errors)
        self._token: int | None = None
        self._unreadable: bytes | None = None
        self._misses = 0

    def obtain(self) -> Any:
        """The value: computed here, or by somebody else.

        Raises:
            BaseException: what the function raised, here or elsewhere; see the errors of ``run``.
        """
        follower: Follower | None = None
        while True:
            seat: Seat[Outcome, Follower] = Seat()
            try:
                result = self._take_part(seat, follower)
            except BaseException as exc:
                self._leave(seat)
                if exc is self._patience.error:
                    self.tell(WaitTimedOut, waited=deadline.now() - self._patience.began)
                raise
            if isinstance(result, Landed):
                return result.value
            if isinstance(result, Failure):
                if result.kind is not Kind.ERROR or self._options.share_errors:
                    raise result.exception(self._names.key)
                follower = None  # claims in turn
            else:
                follower = self.follower_from(result.position)

    def tell(self, event: type[FlightEvent], **facts: Any) -> None:
        """Report a fact of this call to the group's observers."""
        if self._runtime.observers.active:
            self._runtime.observers.emit(event(self._names.key, self._runtime.name, self._token, **facts))

    def _leave(self, seat: Seat[Outcome, Follower]) -> None:
        """Nobody may be left in a room without a leader, not even by a second interrupt in here."""
        try:
            self._give_back()
        finally:
            try:
                self._rooms.leave(seat)
            finally:
                self._rooms.leave(seat)

    def follower_from(self, position: Position) -> Follower:
        """A follower that goes on from a lost flight of our own."""
        follower = self._follower()
        follower.resume(position, self._lease)
        return follower

    # -- in the room

    def _take_part(self, seat: Seat[Outcome, Follower], follower: Follower | None) -> Landed | Refused | Failure:
        if self._rooms.enter(self._names.key, seat):
            return self._lead(seat, follower)
        if self._options.wait_timeout == 0:
            return self._glance(seat)
        self._patience.check_queue(self._rooms.waiting(seat))
        self._begin_to_wait()
        self.tell(FlightFollowed, place=0)
        result = self._rooms.wait(seat, self._patience)
        return self._lead(seat, seat.state) if result is None else self._taken(result)

    def _glance(self, seat: Seat[Outcome, Follower]) -> Landed:
        """``wait_timeout=0``, and somebody is at it: a fresh result, or nothing."""
        self._rooms.leave(seat)
        store, names = self._runtime.store, self._names
        try:
            stored = None if store is None else store.first(names.key, lambda: store.fetch(names))
        except StoreError:
            if self._options.on_store_error == "raise":
                raise
            stored = None
        if stored is None:
            raise self._patience.over()
        try:
            return Landed(self._manner.codec.loads(stored.value))
        except Exception as exc:
            raise self._patience.over() from exc

    def _taken(self, result: Outcome) -> Landed | Failure:
        """Make this caller's own object of an outcome."""
        if isinstance(result, Failure):
            return result
        if result.known:
            return Landed(result.known[0])
        try:
            return Landed(self._manner.codec.loads(result.payload))
        except Exception as exc:  # noqa: BLE001 - whatever a codec of the user's raises
            logger.warning(
                "the outcome of key %r cannot be read here, and its function runs once more: %s", self._names.key, exc
            )
            return self._called_directly()

    def _called_directly(self) -> Landed:
        return Landed(call_directly(self._function, self._names.key))

    def _lead(self, seat: Seat[Outcome, Follower], follower: Follower | None) -> Landed | Refused | Failure:
        """Hold the room's conversation with Redis. However that ends, the room is settled or somebody else leads it."""
        try:
            result: Landed | Owned | Outcome | StoreError | None = self._converse(seat, follower)
        except StoreError as exc:
            result = exc
        # Out here, as an error of the function is none of the conversation.
        if isinstance(result, StoreError):
            return self._without_store(seat, result)
        if isinstance(result, Owned):
            return self._own(seat, result)
        if result is None:
            self._rooms.leave(seat)
            return self._called_directly()
        return result if isinstance(result, Landed) else self._landed(seat, result)

    def _landed(self, seat: Seat[Outcome, Follower], result: Outcome) -> Landed | Failure:
        """Settle the room with what a follower heard; a value that needs no copies is decoded once for all."""
        if isinstance(result, Failure):
            self._rooms.settle(seat, result)
            return self._done(seat, result)
        self._rooms.close(seat)  # decoding may take its time
        try:
            value = self._manner.codec.loads(result.payload)
        except Exception:  # noqa: BLE001 - whatever a codec of the user's raises; each of the room sees for itself
            self._rooms.settle(seat, result)
            return self._taken(self._done(seat, result))
        self._rooms.settle(seat, Value(b"", (value,)) if is_immutable(value) else result)
        return self._done(seat, Landed(value))

    def _converse(self, seat: Seat[Outcome, Follower], follower: Follower | None) -> Landed | Owned | Outcome | None:
        """Claim, and follow as long as somebody else owns the flight.

        Returns:
            None where the results that stand there cannot be read, again and again.
        """
        while True:
            seat.state = follower  # goes to the next in the room, should we leave
            if follower is not None:
                result = follower.follow(self._patience, lambda: self._rooms.close(seat))
                if result is not None:
                    return result  # the follower stays at hand until the room is settled
            answer = self._claim(follower)
            if isinstance(answer, Owned):
                self._owned = answer
                self._waited = follower is not None
                return self._done(seat, answer)
            if isinstance(answer, Stored):
                landed = self._read(seat, answer)
                if landed is not None or self._misses > 1:  # somebody with another codec is at it
                    return self._done(seat, landed)
            elif isinstance(answer, Entry):
                result = outcome.of_end(answer) if follower is None else follower.ended(answer)
                if result is not None:
                    return result  # the follower stays at hand until the room is settled
            elif isinstance(answer, Waiting):
                follower = self._joined(seat, follower, answer)
            # else this nonce's flight is over: once more, under a new one

    def _done(self, seat: Seat[Outcome, Follower], result: R) -> R:
        follower, seat.state = seat.state, None
        if follower is not None:
            follower.close()
        return result

    def _joined(self, seat: Seat[Outcome, Follower], follower: Follower | None, answer: Waiting) -> Follower:
        if self._options.wait_timeout == 0:
            raise self._patience.over()
        check_entrance(self._names.key, self._rooms, answer.token)
        if follower is None:
            self._patience.check_queue(answer.place)
            seat.state = follower = self._follower()
        follower.join(answer)
        self._begin_to_wait()
        self._token = answer.token
        self.tell(FlightFollowed, place=follower.place)
        return follower

    def _begin_to_wait(self) -> None:
        if self._manner.on_wait is not None and not self._waits:
            self._waits = True
            try:
                self._manner.on_wait()
            except Exception:
                logger.exception("on_wait of key %r failed", self._names.key)

    def _claim(self, follower: Follower | None) -> Stored | Owned | Waiting | Entry | Answer:
        store = self._runtime.store
        if store is None:
            return Owned(0, b"", 0)
        self._asked_at = deadline.now()
        position = None if follower is None else follower.position
        nonce = new_nonce()

        def attempt() -> Stored | Owned | Waiting | Entry | Answer:
            return store.claim(
                self._names, self._terms, self._runtime.owner_id, nonce, position, unreadable=self._unreadable
            )

        if follower is None:
            return store.first(self._names.key, attempt)
        return persist(attempt, self._patience.at_most(follower.time_left()))

    def _read(self, seat: Seat[Outcome, Follower], stored: Stored) -> Landed | None:
        """A fresh result; None: it cannot be read, which makes it a miss that the next claim replaces."""
        self._rooms.close(seat)  # who comes from now on asks Redis, which may have been told to forget it
        try:
            value = self._manner.codec.loads(stored.value)
        except Exception as exc:  # noqa: BLE001 - whatever a codec of the user's raises
            logger.warning("the result of key %r cannot be read, and is replaced: %s", self._names.key, exc)
            self._unreadable = stored.prefix + stored.value
            self._misses += 1
            return None
        self._token = stored.token
        self._rooms.settle(seat, Value(stored.value, (value,) if is_immutable(value) else ()))
        self.tell(ResultHit)
        return Landed(value)

    # -- as owner

    def _own(self, seat: Seat[Outcome, Follower], owned: Owned, *, alone: bool = False) -> Landed | Refused:
        options, outer = self._options, self._outer
        hard = Deadline(options.hard_timeout)
        token = CancelToken(self._names.key, hard, None if outer is None else outer.cancel_token)
        token.raise_on_store_error = options.on_store_error == "raise"
        aboard = _Aboard(self, self._rooms, seat)
        store = None if alone else self._runtime.store
        lease = Lease(
            store, self._names, self._runtime.owner_id, owned, options, self._lease, self._asked_at, token, hard, aboard
        )
        flight = Flight(self._names.key, lease, self._rooms, outer)
        self._owned = None
        try:
            self._runtime.shared.leases.add(lease)
            self._runtime.own.add(lease)
            keeper.keeper().watch(lease)
            self._tell_of_claim(owned)
            owner = Owner(flight, lease, aboard, options, self._manner.codec, self._manner.ttl, self.tell)
            result = owner.fly(self._function)
        except BaseException:
            lease.release(counted=True)  # where the outcome is not told already
            raise
        finally:
            lease.stop()
            keeper.keeper().leave(lease)
            self._runtime.shared.leases.discard(lease)
            self._runtime.own.discard(lease)
            self._patience.resume(lease.age())
        if isinstance(result, Failure):  # of this very flight, whatever ``share_errors`` says of others
            raise result.exception(self._names.key)
        return result

    def _tell_of_claim(self, owned: Owned) -> None:
        self._token = owned.token or None
        self.tell(FlightClaimed, takeovers=owned.takeovers)
        if self._waited and owned.takeovers:
            self.tell(FlightTakenOver, takeovers=owned.takeovers, waited=deadline.now() - self._patience.began)

    def _give_back(self) -> None:
        """Interrupted between the claim's answer and the flight: nobody has to wait for the end of its lease."""
        owned, store = self._owned, self._runtime.store
        if owned is not None and store is not None:
            life = int(self._terms.split()[1])
            with suppress(StoreError):
                right = Right(owned.token, owned.log_id, 0, life)
                store.release(self._names, right, new_nonce(), counted=False)

    def _without_store(self, seat: Seat[Outcome, Follower], exc: StoreError) -> Landed | Refused:
        """Redis is unreachable or refuses: the group's policy decides."""
        self.tell(StoreFailed, operation="claim", error=str(exc))
        if seat.state is not None:
            seat.state.close()
            seat.state = None
        if self._options.on_store_error == "raise":
            raise exc
        level = logging.DEBUG if isinstance(exc, LeftAloneError) else logging.WARNING  # once per pause is enough
        logger.log(level, "key %r is computed without Redis: %s", self._names.key, exc)
        self._asked_at = deadline.now()
        return self._own(seat, Owned(0, b"", 0), alone=True)

    def _follower(self) -> Follower:
        assert self._runtime.store is not None
        return Follower(self._runtime.store, self._names, self._options, self._terms)


def _lease(key: str, options: Options) -> float:
    """The seconds of lease to ask for: as long as the flight may last where no thread can renew it."""
    if keeper.keeper().ready(options.heartbeat):
        return options.lease
    if options.hard_timeout is None:
        raise ConfigurationError(
            f"no heartbeat thread can run here, so that key {key!r} needs a hard_timeout: set one, or enable threads"
        )
    keeper.warn_once()
    return max(options.lease, options.hard_timeout)


class _Aboard:
    """The callers of this process that are in an owned flight: see `heartbeat.Aboard`."""

    __slots__ = ("_caller", "_pid", "_rooms", "_seat")

    def __init__(self, caller: Caller, rooms: Rooms[Outcome, Follower], seat: Seat[Outcome, Follower]) -> None:
        self._caller = caller
        self._rooms = rooms
        self._seat = seat
        self._pid = os.getpid()

    def settle(self, result: Outcome) -> None:
        if self._pid == os.getpid():  # in a forked child the rooms' lock may be held for ever
            self._rooms.settle(self._seat, result)

    def vacate(self) -> None:
        self._rooms.leave(self._seat)

    def lost(self, position: Position) -> None:
        self._seat.state = self._caller.follower_from(position)
        self._rooms.leave(self._seat)

    def forgotten(self) -> None:
        self._rooms.close(self._seat)
