"""Fencing tokens: never twice, never back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from singleflight_sync.answers import Answer
from tests.support.keyspace import Keyspace

FAR = 8_000_000_000_000_000  # microseconds: in the year 2223


def test_a_token_is_never_behind_the_servers_clock(space: Keyspace) -> None:
    before = space.now_us()
    right = space.own()
    assert before <= right.token <= space.now_us()
    assert space.client.get(space.store.namespace.owner_seq) == b"%d" % right.token


def test_tokens_grow_over_all_keys(space: Keyspace) -> None:
    others = [Keyspace(space.client, key=f"key:{number}") for number in range(10)]
    tokens = []
    for other in [*others, *reversed(others)]:
        other.cancel()
        tokens.append(other.own().token)
    for other in others:
        other.close()
    assert all(earlier < later for earlier, later in pairwise(tokens))


def test_no_token_is_issued_twice_to_claims_at_the_same_moment(space: Keyspace) -> None:
    def claims(thread: int) -> list[int]:
        tokens = []
        for number in range(20):
            other = Keyspace(space.client, key=f"key:{thread}:{number}")
            tokens.append(other.own().token)
            other.close()
        return tokens

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(claims, range(4)))
    for tokens in runs:
        assert all(earlier < later for earlier, later in pairwise(tokens))
    assert len({token for tokens in runs for token in tokens}) == 80


def test_tokens_grow_through_a_loss_of_all_data(space: Keyspace) -> None:
    tokens = []
    for _ in range(5):
        tokens.append(space.own().token)
        space.lose()
    assert all(earlier < later for earlier, later in pairwise(tokens))


def test_tokens_grow_when_the_dispenser_alone_was_lost(space: Keyspace) -> None:
    first = space.own()
    space.lapse()
    space.client.delete(space.store.namespace.owner_seq)
    assert space.own().token > first.token


def test_a_dispenser_ahead_of_the_clock_goes_on_from_where_it_is(space: Keyspace) -> None:
    """The clock was set back, or the primary before had another one."""
    space.client.set(space.store.namespace.owner_seq, FAR)
    first = space.own()
    space.lapse()
    second = space.own()
    assert (first.token, second.token) == (FAR + 1, FAR + 2)
    assert space.renew(second) == (Answer.DONE, False)
    space.publish(second)
    assert space.claim().token == FAR + 2


def test_a_dispenser_behind_the_log_skips_the_tokens_of_the_log(space: Keyspace) -> None:
    """A replica that was behind became the primary, with a clock that is behind, too."""
    space.client.set(space.store.namespace.owner_seq, FAR)
    first = space.own()
    space.lapse()
    space.client.set(space.store.namespace.owner_seq, 7)
    second = space.own()
    assert second.token > first.token
    assert space.renew(second) == (Answer.DONE, False)


@pytest.mark.parametrize(
    "garbage", ["", "abc", "-5", "0x7fffffff", "1e15", "inf", "nan", "1e400", "9007199254740993", "9" * 400]
)
def test_what_is_no_number_of_ours_does_not_disturb_the_dispenser(space: Keyspace, garbage: str) -> None:
    space.client.set(space.store.namespace.owner_seq, garbage)
    before = space.now_us()
    tokens = []
    for _ in range(3):
        tokens.append(space.own().token)
        space.cancel()
    assert all(earlier < later for earlier, later in pairwise([before, *tokens]))
    assert space.client.get(space.store.namespace.owner_seq) == b"%d" % tokens[-1]
