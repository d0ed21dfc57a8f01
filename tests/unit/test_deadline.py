"""Deadlines on a swapped clock, and the conversion to milliseconds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_sync import deadline
from singleflight_sync.deadline import Deadline, now, to_ms


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadline, "clock", clock)
    return clock


def test_now_reads_the_clock_of_the_module(clock: Clock) -> None:
    clock.time = 7.5

    assert now() == 7.5


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [
        (0, 0),
        (0.0, 0),
        (-1.0, 0),
        (1e-9, 1),
        (1e-12, 1),
        (0.0004, 1),
        (0.001, 1),
        (0.0011, 2),
        (2.007, 2007),
        (1.1, 1100),
        (3, 3000),
    ],
)
def test_milliseconds_round_up_and_keep_what_is_whole(seconds: float, ms: int) -> None:
    assert to_ms(seconds) == ms


@given(st.integers(min_value=0, max_value=10**9))
def test_whole_milliseconds_stay_what_they_are(ms: int) -> None:
    assert to_ms(ms / 1000) == ms


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_milliseconds_are_never_less_than_the_time_and_at_most_one_more(seconds: float) -> None:
    ms = to_ms(seconds)

    assert ms >= 1
    assert seconds * 1000 - 1e-5 <= ms <= math.ceil(seconds * 1000) or ms == 1


def test_a_deadline_counts_down_and_never_below_zero(clock: Clock) -> None:
    deadline_ = Deadline(3.0)
    clock.time += 1.0
    assert deadline_.remaining() == 2.0
    assert not deadline_.expired
    assert deadline_.at == 1003.0

    clock.time += 5.0
    assert deadline_.remaining() == 0.0
    assert deadline_.expired


def test_a_deadline_is_expired_at_its_very_moment(clock: Clock) -> None:
    deadline_ = Deadline(3.0)
    clock.time += 3.0

    assert deadline_.expired


def test_a_deadline_of_no_time_is_expired_at_once(clock: Clock) -> None:
    assert Deadline(0).expired


def test_a_deadline_can_be_moved_later(clock: Clock) -> None:
    deadline_ = Deadline(3.0)
    deadline_.extend(2.0)
    clock.time += 4.0

    assert deadline_.remaining() == 1.0


def test_no_limit_never_expires_and_stays_so(clock: Clock) -> None:
    deadline_ = Deadline(None)
    deadline_.extend(2.0)
    clock.time = math.inf

    assert (deadline_.at, deadline_.remaining(), deadline_.expired) == (None, None, False)
