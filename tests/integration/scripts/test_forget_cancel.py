"""What anybody may do to a key: forget and cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight_sync.answers import Answer, Owned, Waiting, new_nonce
from singleflight_sync.log import Entry
from tests.support.keyspace import ENDINGS, end

if TYPE_CHECKING:
    from tests.support.keyspace import Keyspace

NOTHING = (False, False, None)


# Forget


def test_where_nothing_is_nothing_is_forgotten(space: Keyspace) -> None:
    assert tuple(space.forget()) == NOTHING
    assert space.state() == ({}, [], None, None)


def test_a_result_is_dropped(space: Keyspace) -> None:
    space.publish(space.own())
    assert tuple(space.forget()) == (True, False, None)
    assert space.result() is None
    assert space.events() == ["claimed", "succeeded"]
    assert isinstance(space.claim(), Owned)


def test_an_open_flight_is_marked_on_its_board_and_in_the_log(space: Keyspace) -> None:
    right = space.own()
    space.client.pexpire(space.names.stream, 5_000)
    assert tuple(space.forget()) == (False, True, right.token)
    assert space.board()["forgotten"] == "1"
    assert [(entry.event, entry.token) for entry in space.log()][1:] == [(b"forgotten", right.token)]
    assert space.left(space.names.stream) > 12_000
    assert space.wait().forgotten


def test_a_lapsed_flight_is_marked_in_the_log(space: Keyspace) -> None:
    right = space.own()
    space.lapse()
    assert tuple(space.forget()) == (False, True, right.token)
    assert space.board() == {}
    assert space.renew(right) == (Answer.DONE, True)


def test_result_and_open_flight_are_forgotten_together(space: Keyspace) -> None:
    right = space.own()
    space.client.set(space.names.result, b"1:older", px=5_000)
    assert tuple(space.forget()) == (True, True, right.token)
    assert space.result() is None


@pytest.mark.parametrize("lapsed", [False, True], ids=["alive", "lapsed"])
def test_a_second_forget_writes_nothing_more(space: Keyspace, *, lapsed: bool) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    space.forget()
    before = space.state()
    assert tuple(space.forget()) == (False, True, right.token)
    assert space.state() == before


@pytest.mark.parametrize("event", ENDINGS)
def test_an_ended_flight_is_not_marked(space: Keyspace, event: str) -> None:
    end(space, space.own(), event)
    before = space.state()
    assert tuple(space.forget()) == NOTHING
    assert space.state() == before


def test_the_mark_does_not_pass_to_the_next_owner(space: Keyspace) -> None:
    """Whose function begins after the forget."""
    space.own()
    space.forget()
    space.lapse()
    right = space.own()
    assert not space.wait().forgotten
    space.publish(right)
    assert space.claim().token == right.token


def test_with_a_token_that_flight_alone_is_forgotten(space: Keyspace) -> None:
    right = space.own()
    assert tuple(space.forget(right.token - 1)) == NOTHING
    assert space.renew(right) == (Answer.DONE, False)
    assert tuple(space.forget(right.token)) == (False, True, right.token)
    assert space.renew(right) == (Answer.DONE, True)


def test_with_a_token_that_flights_result_alone_is_dropped(space: Keyspace) -> None:
    right = space.own()
    space.publish(right)
    assert tuple(space.forget(right.token - 1)) == NOTHING
    assert space.claim().token == right.token
    assert tuple(space.forget(right.token)) == (True, False, None)
    assert space.result() is None


def test_a_token_is_compared_as_a_whole(space: Keyspace) -> None:
    space.client.set(space.names.result, b"123:value", px=5_000)
    assert tuple(space.forget(12)) == NOTHING
    assert tuple(space.forget(1234)) == NOTHING
    assert tuple(space.forget(123)) == (True, False, None)


def test_without_tokens_a_result_is_dropped_with_its_open_flight(bare: Keyspace) -> None:
    right = bare.own()
    bare.client.set(bare.names.result, b"value", px=5_000)
    assert tuple(bare.forget(right.token + 1)) == NOTHING
    assert tuple(bare.forget(right.token)) == (True, True, right.token)
    bare.publish(right)
    assert bare.result() is None


def test_those_who_come_after_a_forget_claim_at_the_flights_end(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    assert space.wait().forgotten
    space.publish(right)
    assert isinstance(space.claim(), Owned)


# Cancel


def test_where_no_flight_is_open_nothing_is_cancelled(space: Keyspace) -> None:
    assert space.cancel() is None
    assert space.state() == ({}, [], None, None)


@pytest.mark.parametrize("lapsed", [False, True], ids=["alive", "lapsed"])
def test_an_open_flight_ends_at_once(space: Keyspace, *, lapsed: bool) -> None:
    right = space.own()
    if lapsed:
        space.lapse()
    space.client.pexpire(space.names.stream, 5_000)
    assert space.cancel() == right.token
    assert space.board() == {}
    assert [(entry.event, entry.token) for entry in space.log()][1:] == [(b"cancelled", right.token)]
    assert space.left(space.names.stream) > 12_000
    fate, _ = space.renew(right)
    assert isinstance(fate, Entry)
    assert fate.event == b"cancelled"
    assert space.publish(right) == fate
    assert space.result() is None


@pytest.mark.parametrize("event", ENDINGS)
def test_an_ended_flight_cannot_be_cancelled(space: Keyspace, event: str) -> None:
    right = space.own()
    end(space, right, event)
    before = space.state()
    assert space.cancel() is None
    assert space.cancel(right.token) is None
    assert space.state() == before


def test_with_a_token_that_flight_alone_is_cancelled(space: Keyspace) -> None:
    old = space.own()
    space.lapse()
    right = space.own()
    assert space.cancel(old.token) is None
    assert space.renew(right) == (Answer.DONE, False)
    assert space.cancel(right.token) == right.token


def test_who_comes_after_a_cancel_starts_a_new_flight(space: Keyspace) -> None:
    space.own()
    space.cancel()
    answer = space.claim()
    assert isinstance(answer, Owned)
    assert answer.takeovers == 0


def test_a_forgotten_flight_can_be_cancelled(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    assert space.cancel() == right.token


@pytest.mark.parametrize("token", [False, True], ids=["whichever", "with a token"])
@pytest.mark.parametrize("lapsed", [False, True], ids=["alive", "lapsed"])
def test_a_cancel_that_is_sent_again_ends_no_later_flight(space: Keyspace, *, token: bool, lapsed: bool) -> None:
    right, nonce = space.own(), new_nonce()
    if lapsed:
        space.lapse()
    meant = b"%d" % right.token if token else b""
    assert space.run("cancel", meant, nonce) == b"%d" % right.token
    before = space.state()
    assert space.run("cancel", meant, nonce) == b"%d" % right.token
    assert space.state() == before
    later = space.own()
    assert space.run("cancel", meant, nonce) == b"%d" % right.token
    assert space.renew(later) == (Answer.DONE, False)


def test_a_flight_that_goes_on_after_a_loss_can_be_cancelled(space: Keyspace) -> None:
    right = space.own(continues=5)
    assert space.cancel() == right.token
    assert isinstance(space.claim(), Owned)


def test_a_flight_whose_log_alone_was_lost_can_be_forgotten_and_cancelled(space: Keyspace) -> None:
    right = space.own()
    space.client.delete(space.names.stream)
    assert tuple(space.forget()) == (False, True, right.token)
    assert isinstance(space.claim(), Waiting)
    assert space.cancel() == right.token
    assert space.renew(right)[0].event == b"cancelled"  # type: ignore[union-attr]
