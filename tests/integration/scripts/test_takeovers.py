"""Takeovers and failures that are kept: what the log carries from one flight to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight_sync.answers import Answer, Owned, Waiting, new_nonce
from singleflight_sync.log import Entry
from tests.support.keyspace import end

if TYPE_CHECKING:
    from singleflight_sync.answers import Right
    from tests.support.keyspace import Keyspace


def takeovers(space: Keyspace, most: int = 3) -> int:
    """Claim, and become the owner; how many takeovers were counted."""
    answer = space.claim(most=most)
    assert isinstance(answer, Owned), answer
    assert space.board()["takeovers"] == str(answer.takeovers)
    assert space.log()[-1].number(b"takeovers") == answer.takeovers
    return answer.takeovers


def exhaust(space: Keyspace, most: int = 2) -> Right:
    """Lose as many owners as may be lost; the last of them."""
    for _ in range(most + 1):
        right = space.own(most=most)
        space.lapse()
    return right


# Counting


def test_each_lapsed_owner_is_counted(space: Keyspace) -> None:
    counts = []
    for _ in range(4):
        counts.append(takeovers(space))
        space.lapse()
    assert counts == [0, 1, 2, 3]


def test_an_interrupted_owner_is_counted_and_a_closed_one_is_not(space: Keyspace) -> None:
    takeovers(space)
    space.lapse()
    space.release(space.own(), counted=True)
    right = space.own()
    assert space.board()["takeovers"] == "2"
    space.release(right, counted=False)
    assert takeovers(space) == 2


@pytest.mark.parametrize("event", ["succeeded", "failed", "cancelled"])
def test_an_end_with_an_outcome_begins_to_count_anew(space: Keyspace, event: str) -> None:
    space.own()
    space.lapse()
    right = space.own()
    assert space.board()["takeovers"] == "1"
    end(space, right, event)
    assert takeovers(space) == 0
    space.lapse()
    assert takeovers(space) == 1


def test_the_count_survives_a_lapse_of_the_owner_itself(space: Keyspace) -> None:
    space.own()
    space.lapse()
    nonce = new_nonce()
    right = space.own(nonce)
    space.lapse()
    space.renew(right)
    assert space.board()["takeovers"] == "1"
    space.lapse()
    assert space.claim(nonce).takeovers == 1


def test_the_count_is_known_to_the_follower_who_claims_for_a_dead_owner(space: Keyspace) -> None:
    space.own()
    space.lapse()
    assert takeovers(space) == 1
    space.client.delete(space.names.meta)
    assert takeovers(space) == 2


# The limit


def test_when_the_last_owner_allowed_is_gone_the_flight_fails(space: Keyspace) -> None:
    right = exhaust(space, most=2)
    answer = space.claim(most=2)
    assert isinstance(answer, Entry)
    assert (answer.event, answer.token, answer.number(b"limit")) == (b"failed", right.token, 2)
    assert space.events() == ["claimed", "claimed", "claimed", "failed"]
    assert space.board() == {}


def test_without_any_takeover_allowed_the_first_loss_fails_the_flight(space: Keyspace) -> None:
    exhaust(space, most=0)
    assert space.claim(most=0).event == b"failed"


def test_newcomers_get_the_limits_failure_for_ten_seconds(space: Keyspace) -> None:
    exhaust(space)
    first = space.claim(most=2)
    before = space.state()
    for newcomer in (space.claim(), space.claim(failures=False), space.claim(most=100)):
        assert newcomer == first
    assert space.state() == before
    assert space.left(space.names.stream) > 10_000
    space.age(9.0)
    assert space.claim() == first
    space.age(1.5)
    assert takeovers(space) == 0


def test_a_claim_at_the_limit_that_is_sent_again_writes_nothing_more(space: Keyspace) -> None:
    exhaust(space)
    nonce = new_nonce()
    answer = space.claim(nonce, most=2)
    assert space.claim(nonce, most=2) == answer
    assert space.events().count("failed") == 1


def test_the_owner_that_comes_back_after_the_limit_is_told_its_end(space: Keyspace) -> None:
    right = exhaust(space)
    limit = space.claim(most=2)
    before = space.state()
    assert space.renew(right) == (limit, False)
    assert space.publish(right) == limit
    assert space.fail(right) == limit
    assert space.release(right) == limit
    assert space.state() == before


def test_the_limits_failure_is_forgotten_like_any_other(space: Keyspace) -> None:
    exhaust(space)
    space.claim(most=2)
    assert tuple(space.forget()) == (False, True, None)
    assert takeovers(space, most=2) == 0


def test_newcomers_get_the_limits_failure_of_a_forgotten_flight_too(space: Keyspace) -> None:
    right = exhaust(space)
    space.forget()
    answers = [space.claim(most=2) for _ in range(3)]
    assert [answer.token for answer in answers] == [right.token] * 3


def test_who_looks_learns_the_limit_as_the_end_of_the_flight_it_follows(space: Keyspace) -> None:
    right = exhaust(space)
    limit = space.claim(most=2)
    assert space.look(right.token, right.log_id) == limit


# Kept failures


def test_a_failure_is_shared_and_not_kept(space: Keyspace) -> None:
    right = space.own()
    space.fail(right, b"oops")
    assert space.look(right.token, right.log_id).fields[b"error"] == b"oops"
    assert space.result() is None
    assert isinstance(space.claim(), Owned)


def test_a_kept_failure_is_what_newcomers_get(space: Keyspace) -> None:
    right = space.own(error_ttl=60)
    space.fail(right, b"oops", keep=60)
    assert 69_000 < space.left(space.names.stream) <= 70_000
    assert space.result() is None
    before = space.state()
    answer = space.claim(error_ttl=60)
    assert (answer.event, answer.token, answer.fields[b"error"]) == (b"failed", right.token, b"oops")
    assert space.state() == before
    space.age(59)
    assert space.claim().event == b"failed"
    space.age(2)
    assert isinstance(space.claim(), Owned)


def test_a_kept_failure_is_not_for_those_who_take_none(space: Keyspace) -> None:
    space.fail(space.own(error_ttl=60), keep=60)
    right = space.own(failures=False)
    follower = space.wait()
    assert follower.token == right.token


def test_a_kept_failure_can_be_forgotten(space: Keyspace) -> None:
    space.fail(space.own(error_ttl=60), keep=60)
    assert tuple(space.forget()) == (False, True, None)
    assert tuple(space.forget()) == (False, False, None)
    assert isinstance(space.claim(), Owned)


def test_a_kept_failure_is_forgotten_by_its_own_token_alone(space: Keyspace) -> None:
    right = space.own(error_ttl=60)
    space.fail(right, keep=60)
    assert tuple(space.forget(right.token + 1)) == (False, False, None)
    assert space.claim().event == b"failed"
    assert tuple(space.forget(right.token)) == (False, True, None)
    assert isinstance(space.claim(), Owned)


def test_the_failure_of_a_forgotten_flight_is_not_kept(space: Keyspace) -> None:
    right = space.own(error_ttl=60)
    follower = space.wait()
    space.forget()
    space.fail(right, b"oops", keep=60)
    assert space.look(follower.token, follower.log_id).fields[b"error"] == b"oops"
    assert isinstance(space.claim(), Owned)


def test_the_failure_of_a_flight_that_goes_on_after_a_loss_is_not_kept(space: Keyspace) -> None:
    space.fail(space.own(continues=5, error_ttl=60), keep=60)
    assert isinstance(space.claim(), Owned)


def test_a_late_copy_of_the_failing_flights_claim_is_refused(space: Keyspace) -> None:
    nonce = new_nonce()
    space.fail(space.own(nonce, error_ttl=60), keep=60)
    assert space.claim(nonce) is Answer.REFUSED


def test_a_newer_flight_hides_a_kept_failure(space: Keyspace) -> None:
    space.fail(space.own(error_ttl=60), keep=60)
    right = space.own(failures=False)
    assert isinstance(space.claim(), Waiting)
    space.publish(right, ttl=0)
    assert isinstance(space.claim(), Owned)
