"""Errors: bases, pickling, attributes."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading

import pytest

from singleflight_sync import errors
from singleflight_sync.cancel import CancelReason

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]

SECOND_BASES = {
    errors.ConfigurationError: ValueError,
    errors.WaitTimeoutError: TimeoutError,
    errors.HardTimeoutError: TimeoutError,
    errors.ReentrantFlightError: RuntimeError,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_pickle_with_its_message(kind: type[BaseException]) -> None:
    copied = pickle.loads(pickle.dumps(kind("key 'k': do this")))

    assert type(copied) is kind
    assert str(copied) == "key 'k': do this"


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_says_when_it_is_raised(kind: type[BaseException]) -> None:
    root = kind is errors.SingleFlightError

    assert root or (kind.__doc__ or "").startswith("Raised when ")


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind is not errors.FlightInterrupted])
def test_every_error_has_the_one_root(kind: type[BaseException]) -> None:
    assert issubclass(kind, errors.SingleFlightError)


@pytest.mark.parametrize(("kind", "base"), SECOND_BASES.items())
def test_errors_are_caught_by_their_standard_base(kind: type[BaseException], base: type[BaseException]) -> None:
    assert issubclass(kind, base)


def test_an_interrupt_is_no_exception_that_user_code_catches() -> None:
    assert not issubclass(errors.FlightInterrupted, Exception)


def test_an_owner_failure_keeps_type_and_traceback_in_pickle() -> None:
    copied = pickle.loads(pickle.dumps(errors.OwnerFailedError("m", "app.Error", "Traceback ...")))

    assert (copied.type_name, copied.traceback_text) == ("app.Error", "Traceback ...")


def test_an_owner_failure_without_details_has_empty_ones() -> None:
    error = errors.OwnerFailedError("m")

    assert (error.type_name, error.traceback_text) == ("", "")


def test_a_codec_error_keeps_a_value_that_pickles() -> None:
    assert pickle.loads(pickle.dumps(errors.CodecError("m", {"a": 1}))).value == {"a": 1}


def test_a_codec_error_drops_a_value_that_does_not_pickle_and_keeps_the_rest() -> None:
    error = errors.CodecError("m", threading.Lock())
    error.__notes__ = ["a note"]  # type: ignore[attr-defined]

    copied = pickle.loads(pickle.dumps(error))

    assert (str(copied), copied.value, copied.__notes__) == ("m", None, ["a note"])
    assert error.value is not None


def test_an_interrupt_keeps_its_reason_in_pickle_and_leaves_its_token_behind() -> None:
    interrupt = errors.FlightInterrupted("m", CancelReason.LOST)
    interrupt.token = threading.Lock()

    copied = pickle.loads(pickle.dumps(interrupt))

    assert (str(copied), copied.reason, copied.token) == ("m", CancelReason.LOST, None)


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_copied(kind: type[BaseException]) -> None:
    assert str(copy.copy(kind("m"))) == "m"
