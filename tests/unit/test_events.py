"""Events and those who observe them."""

from __future__ import annotations

import dataclasses
import inspect
import logging

import pytest

from singleflight_sync import events
from singleflight_sync.events import FlightEvent, Observers, ResultHit

EVENTS = [kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, FlightEvent)]
HIT = ResultHit("report:42", "default", 7)


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_is_frozen_and_slotted(kind: type[FlightEvent]) -> None:
    fields = [one.name for one in dataclasses.fields(kind)]
    event = kind(*range(len(fields)))

    assert fields[:3] == ["key", "group", "fencing_token"]
    assert not hasattr(event, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.key = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", EVENTS)
def test_every_field_of_an_event_is_documented(kind: type[FlightEvent]) -> None:
    own = {one.name for one in dataclasses.fields(kind)}
    if kind is not FlightEvent:
        own -= {one.name for one in dataclasses.fields(FlightEvent)}

    assert all(f"        {name}: " in (kind.__doc__ or "") or f"    {name}: " in (kind.__doc__ or "") for name in own)


def test_nobody_listens_at_first() -> None:
    observers = Observers()
    observers.emit(HIT)

    assert observers.active is False


def test_every_callback_hears_every_event_until_it_unsubscribes() -> None:
    observers = Observers()
    first: list[FlightEvent] = []
    second: list[FlightEvent] = []
    leave = observers.subscribe(first.append)
    observers.subscribe(second.append)

    observers.emit(HIT)
    leave()
    observers.emit(HIT)

    assert (first, second, observers.active) == ([HIT], [HIT, HIT], True)


def test_the_last_one_to_leave_ends_the_activity_and_may_leave_twice() -> None:
    observers = Observers()
    leave = observers.subscribe(print)
    leave()
    leave()

    assert observers.active is False


def test_leaving_twice_does_not_end_the_second_subscription_of_the_same_callback() -> None:
    observers = Observers()
    heard: list[FlightEvent] = []
    callback = heard.append
    leave = observers.subscribe(callback)
    observers.subscribe(callback)
    leave()
    leave()
    observers.emit(HIT)

    assert heard == [HIT]


def test_a_failing_callback_hurts_nobody_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers()
    heard: list[FlightEvent] = []

    def fail(_event: FlightEvent) -> None:
        raise ValueError("callback broke")

    observers.subscribe(fail)
    observers.subscribe(heard.append)
    with caplog.at_level(logging.DEBUG, "singleflight_sync"):
        observers.emit(HIT)
        observers.emit(HIT)

    assert heard == [HIT, HIT]
    assert [record.name for record in caplog.records] == ["singleflight_sync"]
    assert "callback broke" in caplog.text


def test_two_failing_callbacks_are_logged_each(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers()
    observers.subscribe(lambda _event: 1 / 0)
    observers.subscribe(lambda _event: 1 / 0)
    observers.emit(HIT)

    assert len(caplog.records) == 2


def test_an_interrupt_in_a_callback_is_not_swallowed() -> None:
    observers = Observers()

    def interrupt(_event: FlightEvent) -> None:
        raise KeyboardInterrupt

    observers.subscribe(interrupt)

    with pytest.raises(KeyboardInterrupt):
        observers.emit(HIT)


def test_a_callback_may_unsubscribe_while_it_is_called() -> None:
    observers = Observers()
    heard: list[FlightEvent] = []

    def once(event: FlightEvent) -> None:
        heard.append(event)
        leave()

    leave = observers.subscribe(once)
    observers.emit(HIT)
    observers.emit(HIT)

    assert heard == [HIT]
