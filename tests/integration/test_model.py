"""The scripts against a model in Python: whatever happens to one key, in whatever order, and whatever is sent twice."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from singleflight_sync.answers import Answer, Owned, Position, Right, Stored, Waiting, claimed, new_nonce
from singleflight_sync.log import Entry
from tests.support.keyspace import Keyspace, right_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import Server

EXAMPLES = int(os.environ.get("SINGLEFLIGHT_MODEL_EXAMPLES", "100"))
LEASE = 60.0  # nothing lapses by itself
MOST = 2  # takeovers
NO_RIGHT = Right(0, b"", 0, 0)
ENDS = frozenset({"succeeded", "failed", "cancelled", "released"})

# A failure is shrunk to the shortest way to it, which takes its time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

some_flight = st.integers(0, 3)  # the latest, the one before, ...
yes_or_no = st.booleans()


@dataclass
class Flight:
    """One flight as the model knows it."""

    nonce: bytes
    takeovers: int = 0
    known: frozenset[bytes] = frozenset()  # nonces of the flights before it
    begun: int = 0  # how many times the key had been forgotten when its function began
    forgotten: bool = False
    continues: int | None = None
    right: Right = NO_RIGHT

    @property
    def token(self) -> int:
        return self.right.token


@dataclass
class Model:
    """What must be true of the key."""

    stored: tuple[int, bytes] | None = None
    alive: Flight | None = None  # on the board
    waiting: Flight | None = None  # on the board, without a number yet
    last: Flight | None = None  # the last one that the log knows
    log: list[tuple[str, int]] = field(default_factory=list)
    nonces: dict[tuple[str, int], bytes] = field(default_factory=dict)  # of the ends in the log
    kept: bool = False  # the last flight's failure is for newcomers, too
    counted: bool = False  # the last flight's release counts as the loss of an owner
    followers: int = 0
    forgets: int = 0

    def end_of(self, flight: Flight) -> str | None:
        """The first end of a flight in the log."""
        return next((event for event, token in self.log if token == flight.token and event in ENDS), None)

    def open(self) -> Flight | None:
        """The open flight, lapsed or not."""
        if self.alive:
            return self.alive
        return self.last if self.last and self.end_of(self.last) is None else None

    def fate(self, flight: Flight) -> str | Answer:
        """What became of a flight that is not open."""
        if end := self.end_of(flight):
            return end
        nothing = not (self.alive or self.waiting or self.last)
        return Answer.GONE if nothing else Answer.LOST

    def clear_board(self) -> None:
        self.alive = self.waiting = None
        self.followers = 0

    def end(self, flight: Flight, event: str, nonce: bytes) -> None:
        self.clear_board()
        self.log.append((event, flight.token))
        self.nonces.setdefault((event, flight.token), nonce)

    def next_takeovers(self) -> int:
        """How many owners the next one has lost before it."""
        assert self.last
        newest = next(
            (event for event, token in reversed(self.log) if token == self.last.token and event in ENDS), None
        )
        if newest is None or (newest == "released" and self.counted):
            return self.last.takeovers + 1
        return self.last.takeovers if newest == "released" else 0


class KeyMachine(RuleBasedStateMachine):
    """One key, some owners, and everything that can happen to them. A claim is one step."""

    space: Keyspace  # set by `check`

    @initialize()
    def begin(self) -> None:
        self.space.lose()
        self.model = Model()
        self.flights: list[Flight] = []  # all that were ever owned, oldest first
        self.highest = 0  # token
        self.published: dict[int, bytes] = {}  # the accepted publication of each token
        self.sent: list[Callable[[], None]] = []

    # Claims

    @rule()
    def claim(self) -> None:
        self.send(self._claim, new_nonce(), None)

    @precondition(lambda self: self.flights)
    @rule(place=some_flight)
    def claim_for_a_dead_owner(self, place: int) -> None:
        self.send(self._claim, new_nonce(), self.flight(place))

    def _claim(self, nonce: bytes, dead: Flight | None) -> None:
        position = Position(dead.token, dead.right.log_id, dead.token, dead.token) if dead else None
        expected = self._expected(nonce, dead)
        answer = self.space.claim(nonce, lease=LEASE, error_ttl=LEASE, most=MOST, position=position)
        self._answered(expected, answer)

    def _answered(self, expected: Any, answer: Any) -> None:
        if isinstance(expected, Flight):
            self._owned(expected, answer)
        elif isinstance(expected, Waiting):
            assert isinstance(answer, Waiting)
            assert (answer.token, answer.place) == (expected.token, expected.place)
            assert answer.forgotten == bool(self.model.alive and self.model.alive.forgotten)
        else:
            assert self.told(answer) == expected

    def _expected(self, nonce: bytes, followed: Flight | None) -> Any:
        """What a claim is answered: the flight that it owns, a place in the queue, or what else is `told`."""
        model = self.model
        if followed and (end := model.end_of(followed)):
            return end
        if model.stored:
            return model.stored
        if followed and model.alive is not None and model.alive is followed:
            model.clear_board()
        if model.alive or model.waiting:
            return self._beside(nonce)
        return self._anew(nonce)

    def _beside(self, nonce: bytes) -> Any:
        """Somebody is alive."""
        model = self.model
        if model.alive and model.alive.nonce == nonce:
            return model.alive
        if model.waiting and model.waiting.nonce == nonce:
            return Answer.INIT
        model.followers += 1
        token = model.alive.token if model.alive else None
        return Waiting(token, 0, b"", model.followers, False, "", None, 0)

    def _anew(self, nonce: bytes) -> Any:
        """Nobody is alive."""
        model, last = self.model, self.model.last
        if last is None:
            return Flight(nonce, begun=model.forgets)
        end = model.end_of(last)
        if last.nonce == nonce and end is None:
            return last
        known = last.known | {last.nonce}
        if nonce in known:
            return Answer.REFUSED
        if model.kept:
            return "failed"
        takeovers = model.next_takeovers()
        if takeovers > MOST:
            model.log.append(("failed", last.token))
            model.nonces.setdefault(("failed", last.token), b"")
            model.kept = True
            return "failed"
        return Flight(nonce, takeovers, known, begun=model.forgets)

    def _owned(self, flight: Flight, answer: Any) -> None:
        model = self.model
        assert isinstance(answer, Owned), answer
        assert answer.takeovers == flight.takeovers
        if flight.token:
            assert right_of(answer, LEASE, LEASE) == flight.right
        else:
            assert answer.token > self.highest, "tokens grow"
            self.highest = answer.token
            flight.right = right_of(answer, LEASE, LEASE)
            self.flights.append(flight)
            model.log.append(("claimed", flight.token))
            model.last, model.kept, model.counted = flight, False, False
        if model.alive is not flight:
            model.clear_board()
        model.alive = flight

    @rule(place=some_flight)
    @precondition(lambda self: self.flights)
    def look(self, place: int) -> None:
        flight, model = self.flight(place), self.model
        expected: Any = model.end_of(flight) or model.stored or Answer.LAPSED
        answer = self.space.look(flight.token, flight.right.log_id, counted=flight.token)
        if isinstance(expected, Answer) and (model.alive or model.waiting):
            assert isinstance(answer, Waiting)
            assert answer.token == (model.alive.token if model.alive else None)
            stays = model.alive is flight
            model.followers += not stays
            assert answer.place == (0 if stays else model.followers)
        else:
            assert self.told(answer) == expected

    # Owners

    @precondition(lambda self: self.flights)
    @rule(place=some_flight)
    def renew(self, place: int) -> None:
        self.send(self._renew, self.flight(place))

    def _renew(self, flight: Flight) -> None:
        model = self.model
        fate, forgotten = self.space.renew(flight.right)
        if model.open() is flight:
            assert (fate, forgotten) == (Answer.DONE, flight.forgotten)
            if not model.alive:
                model.clear_board()
                model.alive = flight
        else:
            assert (self.told(fate), forgotten) == (model.fate(flight), False)

    @precondition(lambda self: self.flights)
    @rule(place=some_flight, stored=yes_or_no)
    def publish(self, place: int, *, stored: bool) -> None:
        self.send(self._publish, self.flight(place), new_nonce(), stored=stored)

    def _publish(self, flight: Flight, nonce: bytes, *, stored: bool) -> None:
        model, value = self.model, b"%d" % flight.begun
        was_open = model.open() is flight
        fate = self.space.publish(flight.right, value, ttl=LEASE if stored else 0, nonce=nonce)
        if was_open:
            assert fate is Answer.DONE
            assert self.published.setdefault(flight.token, nonce) == nonce, "one publication of each token"
            assert not [each for each in self.flights if each.token > flight.token], "nobody has replaced the owner"
            model.end(flight, "succeeded", nonce)
            if stored and not flight.forgotten:
                model.stored = (flight.token, value)
        else:
            self._ended_before(flight, "succeeded", nonce, fate)

    @precondition(lambda self: self.flights)
    @rule(place=some_flight, kept=yes_or_no)
    def fail(self, place: int, *, kept: bool) -> None:
        self.send(self._fail, self.flight(place), new_nonce(), kept=kept)

    def _fail(self, flight: Flight, nonce: bytes, *, kept: bool) -> None:
        model = self.model
        was_open = model.open() is flight
        fate = self.space.fail(flight.right, keep=LEASE if kept else 0, nonce=nonce)
        if was_open:
            assert fate is Answer.DONE
            model.end(flight, "failed", nonce)
            model.kept = kept and not flight.forgotten and model.last is flight
        else:
            self._ended_before(flight, "failed", nonce, fate)

    @precondition(lambda self: self.flights)
    @rule(place=some_flight, counted=yes_or_no)
    def release(self, place: int, *, counted: bool) -> None:
        self.send(self._release, self.flight(place), new_nonce(), counted=counted)

    def _release(self, flight: Flight, nonce: bytes, *, counted: bool) -> None:
        model = self.model
        was_open = model.open() is flight
        fate = self.space.release(flight.right, counted=counted, nonce=nonce)
        if was_open:
            assert fate is Answer.DONE
            model.end(flight, "released", nonce)
            model.counted = counted
        else:
            self._ended_before(flight, "released", nonce, fate)

    def _ended_before(self, flight: Flight, event: str, nonce: bytes, fate: Any) -> None:
        expected = self.model.fate(flight)
        if expected == event and self.model.nonces[event, flight.token] == nonce:
            expected = Answer.DONE
        assert self.told(fate) == expected

    @precondition(lambda self: self.flights)
    @rule(place=some_flight)
    def go_on(self, place: int) -> None:
        """After a loss of data; where there was none it is refused."""
        self.send(self._go_on, self.flight(place), new_nonce())

    def _go_on(self, lost: Flight, nonce: bytes) -> None:
        model, last = self.model, self.model.last
        answer = self.space.claim(nonce, lease=LEASE, error_ttl=LEASE, most=MOST, continues=lost.token)
        if model.alive and model.alive.nonce == nonce:
            self._owned(model.alive, answer)
        elif model.alive or model.waiting:
            assert answer is Answer.LOST
        elif last and last.nonce == nonce and model.end_of(last) is None:
            self._owned(last, answer)
        elif last:
            assert answer is Answer.LOST
        else:
            self._owned(Flight(nonce, begun=lost.begun, forgotten=True, continues=lost.token), answer)

    # Anybody

    @rule()
    def cancel(self) -> None:
        self.send(self._cancel, None, new_nonce())

    @precondition(lambda self: self.flights)
    @rule(place=some_flight)
    def cancel_one(self, place: int) -> None:
        self.send(self._cancel, self.flight(place), new_nonce())

    def _cancel(self, meant: Flight | None, nonce: bytes) -> None:
        model = self.model
        reply = self.space.run("cancel", b"%d" % meant.token if meant else b"", nonce)
        done = next((token for (_, token), each in model.nonces.items() if each == nonce), None)
        flight = model.open()
        if done is not None:
            assert reply == b"%d" % done
        elif flight is None or model.waiting or (meant and meant is not flight):
            assert reply is None
        else:
            assert reply == b"%d" % flight.token
            model.end(flight, "cancelled", nonce)

    @rule()
    def forget(self) -> None:
        self.send(self._forget, None)

    @precondition(lambda self: self.flights)
    @rule(place=some_flight)
    def forget_one(self, place: int) -> None:
        self.send(self._forget, self.flight(place))

    def _forget(self, meant: Flight | None) -> None:
        model = self.model
        stored = model.stored is not None and (meant is None or meant.token == model.stored[0])
        flight = model.open()
        if meant and meant is not flight:
            flight = None
        kept = model.kept and model.last is not None and (meant is None or meant is model.last)
        expected = (stored, flight is not None or kept, flight.token if flight else None)
        assert tuple(self.space.forget(meant.token if meant else None)) == expected
        if stored:
            model.stored = None
        if flight and not flight.forgotten:
            flight.forgotten = True
            model.log.append(("forgotten", flight.token))
        elif kept and model.last:
            model.kept = False
            model.log.append(("forgotten", model.last.token))
        if meant is None:
            model.forgets += 1

    # What happens to them

    @rule()
    def lapse(self) -> None:
        self.space.lapse()
        self.model.clear_board()

    @rule()
    def lose_everything(self) -> None:
        self.space.lose()
        self.model = Model(forgets=self.model.forgets)

    @rule()
    def lose_the_log(self) -> None:
        self.space.client.delete(self.space.names.stream)
        self.model.log, self.model.nonces, self.model.last, self.model.kept = [], {}, None, False

    @rule()
    def lose_the_dispenser(self) -> None:
        self.space.client.delete(self.space.store.namespace.owner_seq)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 7))
    def send_again(self, back: int) -> None:
        """An earlier call, under its own nonce."""
        self.sent[-1 - back % len(self.sent)]()

    # What must be true at all times

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        space, model = self.space, self.model
        board = space.board()
        told = (board.get("status"), board.get("ownerToken"), board.get("nonce"))
        if model.alive:
            assert told == ("RUNNING", str(model.alive.token), model.alive.nonce.decode())
            assert board["followers"] == str(model.followers)
            assert ("forgotten" in board) == model.alive.forgotten
        elif model.waiting:
            assert told == ("INIT", None, model.waiting.nonce.decode())
        else:
            assert board == {}
        assert [(entry.event.decode(), entry.token) for entry in space.log()] == model.log
        assert space.result() == (b"%d:%b" % model.stored if model.stored else None)

    @invariant()
    def nothing_stale_is_stored(self) -> None:
        """The value says how often the key had been forgotten when its function began."""
        result = self.space.result()
        if result is not None:
            assert int(result.partition(b":")[2]) == self.model.forgets

    @invariant()
    def every_key_has_an_end_of_its_life(self) -> None:
        self.space.check()

    # Inner works

    def flight(self, place: int) -> Flight:
        """The latest flight, the one before it, ..."""
        return self.flights[-1 - place % len(self.flights)]

    def send(self, call: Callable[..., None], *args: Any, **named: bool) -> None:
        """Make a call, and remember it for `send_again`."""
        self.sent.append(partial(call, *args, **named))
        call(*args, **named)

    def told(self, answer: Any) -> Any:
        """An answer as the model says it."""
        if isinstance(answer, Entry):
            return answer.event.decode()
        return (answer.token, answer.value) if isinstance(answer, Stored) else answer


class SteppedMachine(KeyMachine):
    """A claim may also be three steps, as on a Cluster, and anything happens between them."""

    numbers: list[int]  # issued for the claim that waits

    @rule()
    def claim_without_a_number(self) -> None:
        self.send(self._init, new_nonce())

    def _init(self, nonce: bytes) -> None:
        model, expected = self.model, self._expected(nonce, None)
        reply = self.space.init(nonce, lease=LEASE, error_ttl=LEASE, most=MOST)
        if isinstance(expected, Flight) and not expected.token:
            assert reply == [Answer.INIT]
            self.space.client.pexpire(self.space.names.meta, int(LEASE * 1_000))  # nothing lapses by itself
            model.clear_board()
            model.waiting = expected
            self.numbers = []
        elif expected is Answer.INIT:
            assert reply == [Answer.INIT]
        else:
            self._answered(expected, self.space.store._stored(reply) if isinstance(reply, bytes) else claimed(reply))

    @precondition(lambda self: self.model.waiting)
    @rule()
    def number(self) -> None:
        number = self.space.number(self.model.last.token if self.model.last else 0)
        assert number > self.highest
        self.highest = number
        self.numbers.append(number)

    @precondition(lambda self: self.model.waiting and self.numbers)
    @rule(back=st.integers(0, 1))
    def promote(self, back: int) -> None:
        self.send(self._promote, self.model.waiting, self.numbers[-1 - back % len(self.numbers)])

    def _promote(self, flight: Flight, number: int) -> None:
        model = self.model
        mine = model.alive or (None if model.waiting else model.open())
        reply = self.space.promote(flight.nonce, number, lease=LEASE, error_ttl=LEASE)
        if mine and mine.nonce == flight.nonce:
            self._owned(mine, claimed(reply))
        elif model.waiting is None or model.waiting.nonce != flight.nonce:
            assert reply == [Answer.REFUSED]
        elif model.last and model.last.token >= number:
            assert reply == [Answer.INIT, b"%d" % model.last.token]
        else:
            self._promoted(model.waiting, reply)

    def _promoted(self, flight: Flight, reply: list[Any]) -> None:
        followers, highest = self.model.followers, self.highest
        flight.begun = self.model.forgets  # its function begins now
        self.highest = self.model.last.token if self.model.last else 0
        self._owned(flight, claimed(reply))
        self.highest = max(highest, self.highest)
        self.model.followers = followers

    @rule()
    def lose_everything(self) -> None:
        """Copies of steps from before are left out: with them a claim is made a second time, under its first number."""
        super().lose_everything()
        self.sent = []

    @rule()
    def lose_the_log(self) -> None:
        """The same."""
        super().lose_the_log()
        self.sent = []


def check(machine: type[KeyMachine], server: Server, *, steps: int) -> None:
    """Run a machine on one key of the server."""
    space = Keyspace(server.client())
    machine.space = space
    every = settings(
        max_examples=EXAMPLES,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=every)
    finally:
        space.lose()
        space.close()


def test_one_key_behaves_as_the_model_says(server: Server) -> None:
    check(KeyMachine, server, steps=40)


def test_one_key_behaves_as_the_model_says_when_a_claim_is_three_steps(server: Server) -> None:
    check(SteppedMachine, server, steps=40)
