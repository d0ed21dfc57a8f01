"""The cancel token: firing, waiting, signs of life, checkpoints."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from singleflight_sync import deadline
from singleflight_sync.cancel import CancelReason, CancelToken
from singleflight_sync.deadline import Deadline
from singleflight_sync.errors import FlightInterrupted

LONG = 30.0


def make(parent: CancelToken | None = None, hard: float | None = None) -> CancelToken:
    return CancelToken("report:42", Deadline(hard), parent)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [1000.0]
    monkeypatch.setattr(deadline, "clock", lambda: times[0])
    return times


def test_reasons_are_named_in_lower_case() -> None:
    assert {reason.name.lower() for reason in CancelReason} == {reason.value for reason in CancelReason}
    assert [reason.name for reason in CancelReason] == [
        "LOST",
        "CANCELLED",
        "HARD_TIMEOUT",
        "STALLED",
        "STORE_UNREACHABLE",
    ]


def test_a_new_token_lets_the_function_run() -> None:
    token = make()
    token.checkpoint()

    assert (token.cancelled, token.reason, token.wait(0)) == (False, None, False)


def test_the_first_reason_stays() -> None:
    token = make()

    assert [token.fire(CancelReason.LOST), token.fire(CancelReason.LOST), token.fire(CancelReason.STALLED)] == [
        True,
        False,
        False,
    ]
    assert (token.cancelled, token.reason) == (True, CancelReason.LOST)


def test_of_many_threads_that_fire_exactly_one_is_the_first() -> None:
    for _ in range(50):
        token, gate = make(), threading.Barrier(4)

        def fire(token: CancelToken = token, gate: threading.Barrier = gate) -> bool:
            gate.wait(LONG)
            return token.fire(CancelReason.LOST)

        with ThreadPoolExecutor(4) as pool:
            firsts = [one.result(LONG) for one in [pool.submit(fire) for _ in range(4)]]

        assert sorted(firsts) == [False, False, False, True]


def test_every_waiter_wakes_when_the_token_fires() -> None:
    for _ in range(50):
        token, gate = make(), threading.Barrier(4)

        def wait(token: CancelToken = token, gate: threading.Barrier = gate) -> bool:
            gate.wait(LONG)
            return token.wait(LONG)

        with ThreadPoolExecutor(3) as pool:
            waits = [pool.submit(wait) for _ in range(3)]
            gate.wait(LONG)
            token.fire(CancelReason.CANCELLED)

            assert [one.result(LONG / 2) for one in waits] == [True, True, True]


def test_waiting_without_limit_ends_when_the_token_fires() -> None:
    token = make()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(token.wait, None)
        token.fire(CancelReason.LOST)

        assert waiting.result(LONG) is True


def test_waiting_on_a_fired_token_returns_at_once() -> None:
    token = make()
    token.fire(CancelReason.LOST)

    assert token.wait(None) is True


def test_a_checkpoint_interrupts_a_cancelled_function_and_says_which() -> None:
    token = make()
    token.fire(CancelReason.STALLED)

    with pytest.raises(FlightInterrupted, match=r"report:42.*stalled") as caught:
        token.checkpoint()

    assert (caught.value.reason, caught.value.token) == (CancelReason.STALLED, token)


@pytest.mark.parametrize("reason", CancelReason)
def test_only_an_unreachable_store_lets_a_checkpoint_pass_unless_told_to_raise(reason: CancelReason) -> None:
    token = make()
    token.fire(reason)

    if reason is CancelReason.STORE_UNREACHABLE:
        token.checkpoint()
        token.raise_on_store_error = True
    with pytest.raises(FlightInterrupted):
        token.checkpoint()


def test_idle_time_counts_from_the_last_sign_of_life(clock: list[float]) -> None:
    token = make()
    clock[0] += 5
    assert token.idle() == 5.0

    token.touch()
    clock[0] += 2
    assert token.idle() == 2.0

    token.checkpoint()
    assert (token.idle(), token.last_seen) == (0.0, 1007.0)


def test_a_checkpoint_that_interrupts_is_a_sign_of_life_too(clock: list[float]) -> None:
    token = make()
    token.fire(CancelReason.LOST)
    clock[0] += 5

    with pytest.raises(FlightInterrupted):
        token.checkpoint()

    assert token.idle() == 0.0


def test_a_sign_of_life_counts_for_all_flights_around(clock: list[float]) -> None:
    outer = make()
    middle = make(outer)
    inner = make(middle)
    clock[0] += 5
    inner.touch()

    assert (inner.idle(), middle.idle(), outer.idle()) == (0.0, 0.0, 0.0)


def test_a_sign_of_life_outside_does_not_count_inside(clock: list[float]) -> None:
    outer = make()
    inner = make(outer)
    clock[0] += 5
    outer.touch()

    assert (outer.idle(), inner.idle()) == (0.0, 5.0)


def test_waiting_counts_as_a_sign_of_life_before_and_after(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    token = make()
    seen: list[float] = []

    def wait(_event: threading.Event, _timeout: float | None = None) -> bool:
        seen.append(token.last_seen)
        clock[0] += 4
        return False

    monkeypatch.setattr(threading.Event, "wait", wait)
    clock[0] += 5
    token.wait(4)

    assert (seen, token.last_seen) == ([1005.0], 1009.0)


def test_the_time_until_the_hard_timeout_is_told(clock: list[float]) -> None:
    token = make(hard=10)
    clock[0] += 4
    assert token.remaining() == 6.0

    clock[0] += 40
    assert token.remaining() == 0.0
    assert make().remaining() is None
