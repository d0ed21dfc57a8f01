"""What an owner does: renew, enter the index, publish, fail, release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight_sync.answers import Answer, Owned, new_nonce
from singleflight_sync.log import Entry
from tests.support.keyspace import ENDINGS, Keyspace, end
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from singleflight_sync.answers import Right

    Act = Callable[[Keyspace, Right], Any]

ACTS: dict[str, Act] = {
    "renew": lambda space, right: space.renew(right)[0],
    "publish": lambda space, right: space.publish(right),
    "fail": lambda space, right: space.fail(right),
    "release": lambda space, right: space.release(right),
}
acts = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)


# Renewing


def test_a_renewal_lengthens_lease_and_log(space: Keyspace) -> None:
    right = space.own(lease=3.0)
    space.client.pexpire(space.names.meta, 500)
    space.client.pexpire(space.names.stream, 600)
    board = space.board()
    eventually(lambda: space.now_us() // 1000 > int(board["heartbeatAt"]))
    assert space.renew(right) == (Answer.DONE, False)
    assert 2_500 < space.left(space.names.meta) <= 3_000
    assert 12_500 < space.left(space.names.stream) <= 13_000
    renewed = space.board()
    assert int(renewed["heartbeatAt"]) > int(board["heartbeatAt"])
    assert int(renewed["expireAt"]) == int(renewed["heartbeatAt"]) + 3_000
    assert {**renewed, "heartbeatAt": "", "expireAt": ""} == {**board, "heartbeatAt": "", "expireAt": ""}
    assert space.events() == ["claimed"]


def test_a_renewal_after_the_lease_puts_the_board_back(space: Keyspace) -> None:
    space.own()
    space.lapse()
    right = space.own()
    board = space.board()
    space.lapse()
    assert space.renew(right) == (Answer.DONE, False)
    assert {**space.board(), "heartbeatAt": "", "expireAt": ""} == {**board, "heartbeatAt": "", "expireAt": ""}
    assert 2_500 < space.left(space.names.meta) <= 3_000
    assert space.events() == ["claimed", "claimed"]


def test_a_renewal_after_the_lease_puts_the_mark_back(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    for _ in range(2):
        space.lapse()
        assert space.renew(right) == (Answer.DONE, True)
        assert space.wait().forgotten


def test_a_renewal_learns_of_the_mark(space: Keyspace) -> None:
    right = space.own()
    assert space.renew(right) == (Answer.DONE, False)
    space.forget()
    assert space.renew(right) == (Answer.DONE, True)


# The index


def test_the_index_lists_the_flight_for_its_lease_and_ten_seconds(space: Keyspace) -> None:
    live = space.store.namespace.live
    right = space.own(lease=3.0)
    before = space.now_us() // 1000
    space.index(right)
    ((tag, until),) = space.client.zrange(live, 0, -1, withscores=True)
    assert tag == b"report:42"
    assert before + 3_000 <= until <= space.now_us() // 1000 + 3_000
    assert 12_500 < space.left(live) <= 13_000
    assert space.store.live() == [b"report:42"]


def test_the_life_of_the_index_is_never_shortened(space: Keyspace) -> None:
    live = space.store.namespace.live
    space.index(space.own(lease=60.0))
    assert space.left(live) > 69_000
    space.index(right_of_another_key(space, lease=1.0))
    assert space.left(live) > 69_000


def right_of_another_key(space: Keyspace, lease: float) -> Right:
    other = Keyspace(space.client, key="other")
    right = other.own(lease=lease)
    other.close()
    return right


def test_the_index_is_pruned_of_flights_whose_lease_must_be_over(space: Keyspace) -> None:
    right = space.own()
    now = space.now_us() // 1000
    space.client.zadd(space.store.namespace.live, {"over": now - 1, "alive": now + 60_000})
    space.index(right)
    assert set(space.store.live()) == {b"alive", b"report:42"}


def test_publishing_leaves_the_index_alone(space: Keyspace) -> None:
    right = space.own()
    space.index(right)
    space.publish(right)
    assert space.store.live() == [b"report:42"]


# Publishing


def test_a_published_value_is_stored_behind_its_token_and_rides_in_the_log(space: Keyspace) -> None:
    right, nonce = space.own(), new_nonce()
    assert space.publish(right, b"\0value\r\n", ttl=5.0, nonce=nonce) is Answer.DONE
    assert space.result() == b"%d:\0value\r\n" % right.token
    assert 4_500 < space.left(space.names.result) <= 5_000
    assert 12_500 < space.left(space.names.stream) <= 13_000
    assert space.board() == {}
    claimed, succeeded = space.log()
    assert (succeeded.event, succeeded.token) == (b"succeeded", right.token)
    assert (succeeded.fields[b"value"], succeeded.fields[b"nonce"]) == (b"\0value\r\n", nonce)
    assert claimed.log_id == right.log_id


def test_a_value_without_a_life_is_for_those_in_the_flight_alone(space: Keyspace) -> None:
    right = space.own()
    assert space.publish(right, b"value", ttl=0) is Answer.DONE
    assert space.result() is None
    assert space.look(right.token, right.log_id).fields[b"value"] == b"value"
    assert isinstance(space.claim(), Owned)


@pytest.mark.parametrize(
    ("size", "ttl", "rides"),
    [(16_384, 60.0, True), (16_385, 60.0, False), (16_385, 10.0, False), (16_385, 9.9, True), (16_385, 0.0, True)],
)
def test_a_large_value_is_fetched_if_it_stays_long_enough_to_be_found(
    space: Keyspace, size: int, ttl: float, *, rides: bool
) -> None:
    right = space.own()
    space.publish(right, b"x" * size, ttl=ttl)
    assert (b"value" in space.log()[-1].fields) is rides
    stored = space.store.fetch(space.names)
    assert (None if stored is None else len(stored.value)) == (size if ttl else None)


def test_the_large_value_of_a_forgotten_flight_rides(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    assert space.publish(right, b"x" * 20_000, ttl=60) is Answer.DONE
    assert space.result() is None
    assert len(space.look(right.token, right.log_id).fields[b"value"]) == 20_000


def test_without_tokens_every_value_rides_and_gives_way_to_what_was_written_meanwhile(bare: Keyspace) -> None:
    right = bare.own()
    bare.publish(right, b"x" * 20_000, ttl=60)
    assert bare.result() == b"x" * 20_000
    assert b"value" in bare.log()[-1].fields
    bare.client.delete(bare.names.result)
    right = bare.own()
    bare.client.set(bare.names.result, b"newer", px=60_000)
    assert bare.publish(right, b"older") is Answer.DONE
    assert bare.result() == b"newer"
    assert bare.look(right.token, right.log_id).fields[b"value"] == b"older"


@pytest.mark.lasting_keys("*result*")
def test_without_tokens_a_value_may_stay_for_ever(bare: Keyspace) -> None:
    right = bare.own()
    assert bare.store.publish(bare.names, right, new_nonce(), b"value", None) is Answer.DONE
    assert bare.left(bare.names.result) == -1


def test_a_claim_that_owns_and_is_sent_again_owns_whatever_was_written_meanwhile(bare: Keyspace) -> None:
    nonce = new_nonce()
    right = bare.own(nonce)
    bare.client.set(bare.names.result, b"newer", px=60_000)
    assert bare.own(nonce) == right


def test_a_forgotten_flight_stores_nothing(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    assert space.publish(right) is Answer.DONE
    assert space.result() is None
    assert space.look(right.token, right.log_id).fields[b"value"] == b"value"


def test_a_forgotten_flight_stores_nothing_after_its_lease_either(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    space.lapse()
    assert space.publish(right) is Answer.DONE
    assert space.result() is None


def test_a_flight_that_is_forgotten_after_its_lease_stores_nothing(space: Keyspace) -> None:
    right = space.own()
    space.lapse()
    space.forget()
    assert space.publish(right) is Answer.DONE
    assert space.result() is None


def test_a_forgotten_flight_stores_nothing_after_its_log_was_lost(space: Keyspace) -> None:
    right = space.own()
    space.forget()
    space.client.delete(space.names.stream)
    assert space.publish(right) is Answer.DONE
    assert space.result() is None


# Failing and releasing


def test_a_failure_stands_in_the_log_with_the_time_that_it_is_kept(space: Keyspace) -> None:
    right, nonce = space.own(error_ttl=1.5), new_nonce()
    assert space.fail(right, b"\0oops", keep=1.5, nonce=nonce) is Answer.DONE
    entry = space.log()[-1]
    assert (entry.event, entry.token, entry.number(b"keep")) == (b"failed", right.token, 1_500)
    assert (entry.fields[b"error"], entry.fields[b"nonce"]) == (b"\0oops", nonce)
    assert space.board() == {}
    assert space.left(space.names.stream) > 12_000


@pytest.mark.parametrize("counted", [True, False])
def test_a_release_says_whether_it_counts(space: Keyspace, *, counted: bool) -> None:
    right = space.own()
    assert space.release(right, counted=counted) is Answer.DONE
    entry = space.log()[-1]
    assert (entry.event, entry.token, entry.number(b"counted")) == (b"released", right.token, counted)
    assert space.board() == {}


# A flight that is not its owner's any more


@acts
def test_a_lapsed_flight_that_nobody_took_over_is_still_its_owners(space: Keyspace, act: Act) -> None:
    right = space.own()
    space.lapse()
    assert act(space, right) is Answer.DONE


@acts
def test_a_flight_whose_log_alone_was_lost_is_still_its_owners(space: Keyspace, act: Act) -> None:
    right = space.own()
    space.client.delete(space.names.stream)
    assert act(space, right) is Answer.DONE


@acts
@pytest.mark.parametrize("lapsed", [False, True], ids=["alive", "lapsed"])
def test_after_a_takeover_the_old_owner_changes_nothing(space: Keyspace, act: Act, *, lapsed: bool) -> None:
    old = space.own()
    space.lapse()
    new = space.own()
    if lapsed:
        space.lapse()
    before = space.state()
    assert act(space, old) is Answer.LOST
    assert space.state() == before
    assert act(space, new) is Answer.DONE


@acts
@pytest.mark.parametrize("lost", ["entry", "log"])
def test_the_board_of_another_owner_counts_for_more_than_the_log(space: Keyspace, act: Act, lost: str) -> None:
    old = space.own()
    space.lapse()
    new = space.own()
    if lost == "log":
        space.client.delete(space.names.stream)
    else:
        space.client.xdel(space.names.stream, new.log_id)
    before = space.state()
    assert act(space, old) is Answer.LOST
    assert space.state() == before


@acts
@pytest.mark.parametrize("event", ENDINGS)
def test_an_ended_flight_is_told_its_end_and_nothing_changes(space: Keyspace, act: Act, event: str) -> None:
    right = space.own()
    end(space, right, event)
    before = space.state()
    fate = act(space, right)
    assert isinstance(fate, Entry)
    assert (fate.event, fate.token) == (event.encode(), right.token)
    assert space.state() == before


@acts
@pytest.mark.parametrize("event", ENDINGS)
def test_an_ended_flight_is_told_its_end_while_the_next_one_is_in_the_air(
    space: Keyspace, act: Act, event: str
) -> None:
    right = space.own()
    end(space, right, event)
    space.own()
    before = space.state()
    fate = act(space, right)
    assert isinstance(fate, Entry)
    assert fate.event == event.encode()
    assert space.state() == before


@acts
def test_where_meta_and_log_are_gone_nothing_is_written(space: Keyspace, act: Act) -> None:
    right = space.own()
    space.lose()
    assert act(space, right) is Answer.GONE
    assert space.state() == ({}, [], None, None)


@acts
def test_after_a_loss_of_data_whoever_claims_first_owns_the_key(space: Keyspace, act: Act) -> None:
    right = space.own()
    space.lose()
    space.own()
    before = space.state()
    assert act(space, right) is Answer.LOST
    assert space.state() == before


@acts
def test_the_old_token_is_worth_nothing_once_the_flight_goes_on_under_a_new_one(space: Keyspace, act: Act) -> None:
    old = space.own()
    space.lose()
    space.own(continues=old.token)
    before = space.state()
    assert act(space, old) is Answer.LOST
    assert space.state() == before


# Resends and late copies


@pytest.mark.parametrize("name", ["publish", "fail", "release"])
@pytest.mark.parametrize(
    "moment", ["at once", "after the lease", "after later flights", "while the next is in the air"]
)
def test_an_end_that_is_sent_again_is_done_and_written_once(space: Keyspace, name: str, moment: str) -> None:
    right, nonce = space.own(), new_nonce()
    if moment == "after the lease":
        space.lapse()
    endings: dict[str, Callable[..., Any]] = {"publish": space.publish, "fail": space.fail, "release": space.release}
    ending = endings[name]
    assert ending(right, nonce=nonce) is Answer.DONE
    if moment.startswith(("after later", "while")):
        space.forget()
        next_right = space.own()
    if moment.startswith("after later"):
        space.publish(next_right, b"later")
    before = space.state()
    assert ending(right, nonce=nonce) is Answer.DONE
    assert space.state() == before


def test_another_publication_of_an_ended_flight_is_told_the_first_one(space: Keyspace) -> None:
    right = space.own()
    space.publish(right, b"first")
    fate = space.publish(right, b"second")
    assert isinstance(fate, Entry)
    assert fate.fields[b"value"] == b"first"
    assert space.claim().value == b"first"


def test_a_renewal_that_is_sent_again_or_late_changes_nothing_that_matters(space: Keyspace) -> None:
    right = space.own()
    assert space.renew(right) == space.renew(right) == (Answer.DONE, False)
    space.publish(right)
    before = space.state()
    assert isinstance(space.renew(right)[0], Entry)
    assert space.state() == before
    assert space.events() == ["claimed", "succeeded"]
