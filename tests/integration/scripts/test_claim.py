"""Claims and looks: a result, the lead, a place in the queue, or an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight_sync.answers import Answer, Owned, Position, Stored, Waiting, new_nonce
from singleflight_sync.log import Entry
from tests.support.keyspace import ENDINGS, end, right_of

if TYPE_CHECKING:
    from tests.support.keyspace import Keyspace

TIMES = ("startedAt", "heartbeatAt", "expireAt")


# What a claim writes


def test_the_keys_have_the_names_of_the_wire(single: Keyspace) -> None:
    right = single.own()
    single.index(right)
    assert set(single.client.keys()) == {
        b"ai:flight:meta:{report:42}",
        b"ai:flight:stream:{report:42}",
        b"ai:flight:owner-seq",
        b"ai:flight:live",
    }
    single.publish(right)
    assert set(single.client.keys()) == {
        b"ai:flight:result:{report:42}",
        b"ai:flight:stream:{report:42}",
        b"ai:flight:owner-seq",
        b"ai:flight:live",
    }


def test_a_claim_posts_the_flight_on_its_board(space: Keyspace) -> None:
    before = space.now_us() // 1000
    nonce = new_nonce()
    right = space.own(nonce, lease=3.0)
    board = space.board()
    told = {name: board.pop(name) for name in TIMES}
    expected = {
        "v": "1",
        "status": "RUNNING",
        "key": "report:42",
        "ownerToken": str(right.token),
        "ownerId": "owner",
        "nonce": nonce.decode(),
        "leaseMs": "3000",
        "followers": "0",
        "takeovers": "0",
    }
    assert expected == {name: board.get(name) for name in expected}
    after = space.now_us() // 1000
    assert before <= int(told["startedAt"]) <= int(told["heartbeatAt"]) <= after
    assert int(told["expireAt"]) == int(told["heartbeatAt"]) + 3000


def test_a_claim_writes_itself_into_the_log(space: Keyspace) -> None:
    right = space.own()
    (entry,) = space.log()
    assert entry.log_id == right.log_id
    assert (entry.event, entry.token) == (b"claimed", right.token)
    assert (entry.fields[b"lease"], entry.fields[b"takeovers"]) == (b"3000", b"0")


def test_a_failure_that_is_to_be_kept_makes_the_log_live_longer(space: Keyspace) -> None:
    space.own(lease=3.0, error_ttl=0.0)
    assert 2_500 < space.left(space.names.meta) <= 3_000
    assert 12_500 < space.left(space.names.stream) <= 13_000
    space.lose()
    space.own(lease=3.0, error_ttl=60.0)
    assert 2_500 < space.left(space.names.meta) <= 3_000
    assert 69_500 < space.left(space.names.stream) <= 70_000


def test_numbers_of_any_size_stand_in_full(space: Keyspace) -> None:
    """Lua prints large numbers in exponent form by itself."""
    right = space.own(lease=1e6, error_ttl=1e6)
    space.renew(right)
    board = space.board()
    numbers = [board[name] for name in (*TIMES, "ownerToken", "leaseMs", "lifeMs", "followers", "takeovers")]
    numbers += [
        value.decode() for name, value in space.log()[0].fields.items() if name in {b"token", b"lease", b"life"}
    ]
    assert [number for number in numbers if not number.isdigit()] == []
    space.publish(right, ttl=1e6)
    assert space.result() == b"%d:value" % right.token
    assert space.client.get(space.store.namespace.owner_seq) == b"%d" % right.token


# A place in the queue


def test_who_comes_while_somebody_is_alive_waits_in_line(space: Keyspace) -> None:
    right = space.own(lease=3.0)
    first, second = space.wait(), space.wait()
    assert (first.place, second.place) == (1, 2)
    assert (first.token, first.log_id, first.owner_id, first.lease) == (right.token, right.log_id, "owner", 3.0)
    assert not first.forgotten
    assert first.continues is None
    assert 2.5 < first.left <= 3.0
    assert space.board()["followers"] == "2"
    assert space.events() == ["claimed"]


def test_waiting_does_not_lengthen_the_lease(space: Keyspace) -> None:
    space.own()
    space.client.pexpire(space.names.meta, 900)
    space.wait()
    assert space.left(space.names.meta) <= 900


def test_a_look_leaves_the_place_as_it_was(space: Keyspace) -> None:
    right = space.own()
    space.wait()
    answer = space.look(right.token, right.log_id, counted=right.token)
    assert isinstance(answer, Waiting)
    assert (answer.token, answer.log_id, answer.place) == (right.token, right.log_id, 0)
    assert space.board()["followers"] == "1"


def test_looks_at_the_end_of_a_lease_neither_prolong_it_nor_leave_a_key_for_ever(single: Keyspace) -> None:
    """The server may say that 0 ms are left of a key that is still there, and followers look just then."""
    for _ in range(5):
        right = single.own(most=100)
        looks = single.client.pipeline(transaction=False)
        looks.time()
        looks.pexpire(single.names.meta, 20)
        for _ in range(1_000):  # several in each millisecond
            looks.time()
            single.look_in(looks, right.token, right.log_id)
        (began, micro), _, *answers = looks.execute()
        single.check()
        waits = [time for time, answer in zip(answers[::2], answers[1::2], strict=True) if answer[0] == Answer.WAIT]
        assert [wait for wait in waits if (wait[0] - began) * 1_000_000 + wait[1] - micro > 22_000] == []
        single.lapse()


def test_a_look_where_nobody_is_alive_says_so_and_claims_nothing(space: Keyspace) -> None:
    assert space.look(None) is Answer.LAPSED
    assert space.state() == ({}, [], None, None)
    right = space.own()
    space.lapse()
    before = space.state()
    assert space.look(right.token, right.log_id) is Answer.LAPSED
    assert space.state() == before


# A result


def test_a_fresh_result_is_the_answer(space: Keyspace) -> None:
    right = space.own()
    space.publish(right, b"value:with:colons")
    before = space.state()
    for answer in (space.claim(), space.look(None)):
        assert isinstance(answer, Stored)
        assert (answer.token, answer.value) == (right.token, b"value:with:colons")
    assert space.state() == before


def test_a_result_that_cannot_be_read_is_replaced_by_the_claim_that_names_it(space: Keyspace) -> None:
    space.publish(space.own(), b"junk")
    junk = space.result()
    right = space.own(unreadable=junk)
    assert space.result() is None
    space.publish(right, b"good")
    assert space.claim(unreadable=junk).value == b"good"


def test_without_tokens_any_bytes_are_a_result(bare: Keyspace) -> None:
    bare.client.set(bare.names.result, b"no token", px=5_000)
    assert (bare.claim().token, bare.claim().value) == (None, b"no token")


def test_an_empty_value_that_cannot_be_read_is_replaced_too(bare: Keyspace) -> None:
    bare.client.set(bare.names.result, b"", px=5_000)
    assert bare.claim().value == b""
    bare.own(unreadable=b"")
    assert bare.result() is None


# A resend


def test_a_claim_that_is_sent_again_owns_the_same_flight_with_a_full_lease(space: Keyspace) -> None:
    nonce = new_nonce()
    right = space.own(nonce)
    space.client.pexpire(space.names.meta, 500)
    space.client.pexpire(space.names.stream, 600)
    assert space.own(nonce) == right
    assert space.events() == ["claimed"]
    assert space.left(space.names.meta) > 2_000
    assert space.left(space.names.stream) > 12_000


def test_a_claim_that_is_sent_again_after_the_lease_owns_the_same_flight(space: Keyspace) -> None:
    nonce = new_nonce()
    right = space.own(nonce)
    board = space.board()
    space.lapse()
    space.client.pexpire(space.names.stream, 600)
    assert space.own(nonce) == right
    assert space.events() == ["claimed"]
    assert space.left(space.names.meta) > 2_000
    assert space.left(space.names.stream) > 12_000
    again = space.board()
    assert again.pop("heartbeatAt") >= board.pop("heartbeatAt")
    assert again.pop("expireAt") >= board.pop("expireAt")
    assert again == board


def test_a_claim_that_is_sent_again_keeps_the_mark_of_its_flight(space: Keyspace) -> None:
    nonce = new_nonce()
    space.own(nonce)
    space.forget()
    space.lapse()
    right = space.own(nonce)
    assert space.renew(right) == (Answer.DONE, True)
    assert space.wait().forgotten


@pytest.mark.parametrize("event", ENDINGS)
def test_a_late_copy_of_a_claim_whose_flight_has_ended_is_refused(space: Keyspace, event: str) -> None:
    nonce = new_nonce()
    end(space, space.own(nonce), event)
    before = space.state()
    assert space.claim(nonce) is Answer.REFUSED
    assert space.state() == before


def test_a_late_copy_of_a_claim_is_refused_after_later_flights_too(space: Keyspace) -> None:
    nonce, lapsed = new_nonce(), new_nonce()
    end(space, space.own(nonce), "succeeded")
    space.own(lapsed)
    space.lapse()
    end(space, space.own(), "released")
    assert space.claim(nonce) is Answer.REFUSED
    assert space.claim(lapsed) is Answer.REFUSED


def test_a_late_copy_of_a_claim_is_refused_after_fifty_later_flights(space: Keyspace) -> None:
    """The nonces are carried along in the log, in a bounded number."""
    nonce = new_nonce()
    end(space, space.own(nonce), "succeeded")
    for _ in range(50):
        end(space, space.own(), "succeeded")
    assert space.claim(nonce) is Answer.REFUSED


def test_a_late_copy_of_a_claim_changes_nothing_for_the_next_owner(space: Keyspace) -> None:
    nonce = new_nonce()
    end(space, space.own(nonce), "released")
    right = space.own()
    assert isinstance(space.claim(nonce), Waiting)
    assert space.renew(right) == (Answer.DONE, False)
    assert space.board()["ownerToken"] == str(right.token)


# An end


@pytest.mark.parametrize("event", ENDINGS)
def test_the_end_of_the_followed_flight_comes_before_result_and_claim(space: Keyspace, event: str) -> None:
    right = space.own()
    follower = space.wait()
    end(space, right, event)
    space.publish(space.own(), b"later")
    position = Position(follower.token, follower.log_id, follower.token)
    for nonce in (b"", new_nonce()):
        answer = space.claim(nonce, position=position)
        assert isinstance(answer, Entry)
        assert (answer.event, answer.token) == (event.encode(), right.token)
    space.forget()
    before = space.state()
    assert space.claim(position=position).token == right.token
    assert space.state() == before


def test_an_end_that_was_read_already_is_not_told_again(space: Keyspace) -> None:
    right = space.own()
    end(space, right, "released")
    answer = space.claim(position=Position(right.token, space.log()[-1].log_id, right.token))
    assert isinstance(answer, Owned)


def test_the_end_is_found_behind_many_other_entries(space: Keyspace) -> None:
    right = space.own()
    for number in range(40):
        space.client.xadd(space.names.stream, {"event": "shiny", "token": right.token, "number": number})
    end(space, right, "succeeded")
    for number in range(40):
        space.client.xadd(space.names.stream, {"event": "shiny", "token": right.token, "number": number})
    assert space.look(right.token, right.log_id).event == b"succeeded"


# A dead owner


def test_a_claim_that_names_the_dead_owners_token_takes_over_at_once(space: Keyspace) -> None:
    right = space.own()
    answer = space.claim(position=Position(right.token, right.log_id, right.token, right.token))
    assert isinstance(answer, Owned)
    assert answer.takeovers == 1
    assert answer.token > right.token
    assert space.renew(right)[0] is Answer.LOST


def test_a_claim_that_names_a_dead_owner_waits_for_the_one_that_came_after(space: Keyspace) -> None:
    dead = space.own()
    position = Position(dead.token, dead.log_id, dead.token, dead.token)
    right = space.own(position=position)
    answer = space.claim(position=position)
    assert isinstance(answer, Waiting)
    assert answer.token == right.token


def test_a_claim_that_names_a_dead_owner_gets_the_end_that_it_left(space: Keyspace) -> None:
    dead = space.own()
    space.publish(dead, ttl=0)
    answer = space.claim(position=Position(dead.token, dead.log_id, dead.token, dead.token))
    assert answer.event == b"succeeded"


def test_a_look_kills_nobody(space: Keyspace) -> None:
    right = space.own()
    answer = space.claim(b"", position=Position(right.token, right.log_id, right.token, right.token))
    assert isinstance(answer, Waiting)
    assert space.renew(right) == (Answer.DONE, False)


def test_a_claim_that_names_a_dead_owner_and_is_sent_again_owns_the_same_flight(space: Keyspace) -> None:
    dead, nonce = space.own(), new_nonce()
    position = Position(dead.token, dead.log_id, dead.token, dead.token)
    right = space.own(nonce, position=position)
    assert space.own(nonce, position=position) == right
    space.lapse()
    assert space.own(nonce, position=position) == right
    assert space.events() == ["claimed", "claimed"]


# What the log holds of others


def test_unknown_entries_and_fields_are_passed_over(space: Keyspace) -> None:
    nonce = new_nonce()
    right = space.own(nonce)
    for fields in (
        {"event": "shiny", "token": right.token},
        {"what": "else"},
        {"event": "ended"},
        {"token": right.token},
    ):
        space.client.xadd(space.names.stream, fields)
    space.client.hset(space.names.meta, "shiny", "1")
    assert space.wait().token == right.token
    assert space.renew(right) == (Answer.DONE, False)
    space.lapse()
    assert space.own(nonce) == right
    assert space.renew(right) == (Answer.DONE, False)
    assert space.publish(right) is Answer.DONE


def test_a_claim_trims_the_log_of_what_is_older_than_its_life(space: Keyspace) -> None:
    end(space, space.own(), "released")
    space.age(12.0)
    end(space, space.own(), "released")
    assert len(space.log()) == 4
    space.age(2.0)
    right = space.own()
    assert [entry.log_id for entry in space.log()][-1] == right.log_id
    assert len(space.log()) == 3


def test_the_current_claim_is_never_trimmed(space: Keyspace) -> None:
    right = space.own()
    space.age(60.0)
    right = right._replace(log_id=space.log()[0].log_id)
    space.renew(right)
    space.wait()
    space.forget()
    space.lapse()
    assert space.renew(right) == (Answer.DONE, True)
    assert space.publish(right) is Answer.DONE
    assert space.events() == ["claimed", "forgotten", "succeeded"]


# After a loss of data


def test_a_flight_goes_on_under_a_new_token_when_meta_and_log_were_lost(space: Keyspace) -> None:
    lost = space.own()
    space.lose()
    right = space.own(continues=lost.token)
    assert right.token > lost.token
    (entry,) = space.log()
    assert (entry.event, entry.fields[b"continues"], entry.fields[b"takeovers"]) == (
        b"claimed",
        b"%d" % lost.token,
        b"0",
    )
    follower = space.wait()
    assert (follower.forgotten, follower.continues, follower.token) == (True, lost.token, right.token)
    assert space.renew(right) == (Answer.DONE, True)
    assert space.publish(right) is Answer.DONE
    assert space.result() is None


def test_what_goes_on_stays_forgotten_after_its_lease(space: Keyspace) -> None:
    right = space.own(continues=5)
    space.lapse()
    assert space.renew(right) == (Answer.DONE, True)
    assert space.wait().continues == 5
    space.lapse()
    assert space.publish(right) is Answer.DONE
    assert space.result() is None


def test_a_flight_goes_on_whatever_result_came_after_the_loss(space: Keyspace) -> None:
    space.client.set(space.names.result, b"1:value", px=5_000)
    assert isinstance(space.claim(continues=5), Owned)


def test_a_claim_to_go_on_that_is_sent_again_owns_the_same_flight(space: Keyspace) -> None:
    nonce = new_nonce()
    right = space.own(nonce, continues=5)
    assert space.own(nonce, continues=5) == right
    space.lapse()
    assert space.own(nonce, continues=5) == right
    assert space.events() == ["claimed"]


@pytest.mark.parametrize("event", ["", "lapsed", *ENDINGS])
def test_nothing_goes_on_where_somebody_else_has_claimed(space: Keyspace, event: str) -> None:
    other = space.own()
    if event == "lapsed":
        space.lapse()
    elif event:
        end(space, other, event)
    before = space.state()
    assert space.claim(continues=5) is Answer.LOST
    assert space.state() == before


def test_a_late_copy_of_a_claim_to_go_on_is_refused_or_lost(space: Keyspace) -> None:
    nonce = new_nonce()
    end(space, space.own(nonce, continues=5), "succeeded")
    before = space.state()
    assert space.claim(nonce, continues=5) in {Answer.LOST, Answer.REFUSED}
    assert space.state() == before


def test_a_board_without_its_log_is_the_flight(space: Keyspace) -> None:
    """The log alone was evicted."""
    nonce = new_nonce()
    right = space.own(nonce)
    space.client.delete(space.names.stream)
    assert space.own(nonce).token == right.token
    assert space.renew(right) == (Answer.DONE, False)
    assert space.publish(right) is Answer.DONE
    assert space.claim().value == b"value"


def test_answers_are_read_with_the_right_of_their_owner(space: Keyspace) -> None:
    answer = space.claim(lease=30.0)
    assert right_of(answer, 30.0).life_ms == 40_000
    assert 39_500 < space.left(space.names.stream) <= 40_000
