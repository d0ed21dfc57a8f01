"""Options: defaults, checks, changes, their cache."""

from __future__ import annotations

import gc
import math
import typing
import weakref
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from singleflight_sync.errors import ConfigurationError
from singleflight_sync.options import OPTION_NAMES, Options, RunOptions

TIMES = ["ttl", "error_ttl", "lease", "heartbeat", "wait_timeout", "hard_timeout", "stall_timeout", "takeover_jitter"]
DEFAULTS = {
    "ttl": 5.0,
    "error_ttl": 0.0,
    "lease": 3.0,
    "heartbeat": 1.0,
    "wait_timeout": 60.0,
    "hard_timeout": 300.0,
    "stall_timeout": None,
    "takeover_jitter": 0.5,
    "max_takeovers": 3,
    "share_errors": True,
    "max_bytes": 67_108_864,
    "enabled": True,
    "on_store_error": "run",
}


def test_the_defaults_are_the_documented_ones() -> None:
    options = Options.build()

    assert {name: getattr(options, name) for name in OPTION_NAMES} == DEFAULTS


def test_the_typed_keywords_are_the_options() -> None:
    assert typing.get_type_hints(RunOptions).keys() == OPTION_NAMES


@pytest.mark.parametrize("name", TIMES)
def test_a_time_may_be_a_whole_number_a_float_or_a_timedelta(name: str) -> None:
    others = {"heartbeat": 0.1} if name == "lease" else {"lease": 100}

    for value in (2, 2.0, timedelta(seconds=2)):
        stored = getattr(Options.build(**{**others, name: value}), name)
        assert (type(stored), stored) == (float, 2.0)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf, -1, -0.001, "5", b"6", Decimal(5), 1e10])
def test_what_is_no_time_is_refused_with_name_value_and_remedy(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match="seconds") as caught:
        Options.build(**{name: value})

    assert str(caught.value).startswith(f"{name}={value!r} ")


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [timedelta(seconds=-1), timedelta(days=20_000)])
def test_a_timedelta_out_of_range_is_refused(name: str, value: timedelta) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Options.build(**{name: value})


def test_a_huge_number_is_refused_and_does_not_overflow() -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        Options.build(ttl=10**400)


@pytest.mark.parametrize("name", TIMES)
def test_none_means_no_limit_where_a_limit_is_meant(name: str) -> None:
    if name in {"wait_timeout", "hard_timeout", "stall_timeout"}:
        assert getattr(Options.build(**{name: None}), name) is None
    else:
        with pytest.raises(ConfigurationError, match=f"{name}=None"):
            Options.build(**{name: None})


@pytest.mark.parametrize("name", TIMES)
def test_zero_is_refused_where_it_has_no_meaning(name: str) -> None:
    if name in {"ttl", "error_ttl", "wait_timeout", "takeover_jitter"}:
        assert getattr(Options.build(**{name: 0}), name) == 0.0
    else:
        with pytest.raises(ConfigurationError, match="more than 0"):
            Options.build(**{name: 0})


def test_a_lease_shorter_than_two_beats_is_refused_naming_both() -> None:
    with pytest.raises(ConfigurationError, match=r"lease=1\.9.*heartbeat=1\.0"):
        Options.build(lease=1.9)

    assert Options.build(lease=2).lease == 2.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_takeovers", -1),
        ("max_takeovers", True),
        ("max_takeovers", 1.0),
        ("max_takeovers", None),
        ("max_takeovers", 2**53 + 1),
        ("max_bytes", 0),
        ("max_bytes", "1"),
        ("share_errors", 1),
        ("share_errors", None),
        ("enabled", 1),
        ("enabled", None),
        ("enabled", "yes"),
        ("on_store_error", "ignore"),
        ("on_store_error", None),
        ("on_store_error", ["run"]),
    ],
)
def test_other_options_are_checked_too(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Options.build(**{name: value})

    assert str(caught.value).startswith(f"{name}={value!r} must be ")


def test_no_takeover_at_all_is_allowed() -> None:
    assert Options.build(max_takeovers=0).max_takeovers == 0


def test_a_mistyped_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'lease'"):
        Options.build(leese=3)


def test_a_name_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"the options are .*wait_timeout"):
        Options.build(colour=3)


def test_the_private_cache_is_no_option() -> None:
    with pytest.raises(ConfigurationError, match="_variants"):
        Options.build(_variants={})


@pytest.mark.parametrize("make", [Options.build, Options.build().changed])
def test_timeout_is_refused_with_what_is_meant(make: Any) -> None:
    with pytest.raises(TypeError, match=r"wait_timeout.*ttl"):
        make(timeout=3)


def test_options_cannot_be_assigned_to() -> None:
    with pytest.raises(AttributeError):
        Options.build().ttl = 3.0  # type: ignore[misc]


def test_no_change_is_the_same_object() -> None:
    options = Options.build(ttl=1)

    assert options.changed() is options


def test_a_change_keeps_the_rest_and_leaves_the_original() -> None:
    options = Options.build(ttl=1, wait_timeout=2)
    changed = options.changed(ttl=9)

    assert (changed.ttl, changed.wait_timeout, options.ttl) == (9.0, 2.0, 1.0)


def test_the_same_change_twice_is_one_object() -> None:
    options = Options.build()

    assert options.changed(ttl=9, wait_timeout=1) is options.changed(ttl=9, wait_timeout=1)


def test_changes_of_two_options_are_not_mixed_up() -> None:
    options = Options.build()

    assert options.changed(ttl=9) != options.changed(error_ttl=9)
    assert options.changed(ttl=9, error_ttl=7) != options.changed(ttl=7, error_ttl=9)


def test_a_change_is_checked_against_the_whole() -> None:
    with pytest.raises(ConfigurationError, match=r"lease=3\.0 is shorter"):
        Options.build().changed(heartbeat=2)
    with pytest.raises(ConfigurationError, match="did you mean"):
        Options.build().changed(wait_timout=2)


@pytest.mark.parametrize(("good", "bad"), [(1, True), (1.0, True), (0, False)])
def test_a_remembered_number_does_not_admit_its_equal_bool(good: float, bad: object) -> None:
    options = Options.build()
    options.changed(ttl=good)

    with pytest.raises(ConfigurationError, match="ttl="):
        options.changed(ttl=bad)


def test_a_remembered_bool_does_not_admit_its_equal_number() -> None:
    options = Options.build()
    options.changed(share_errors=True)

    with pytest.raises(ConfigurationError, match="share_errors=1"):
        options.changed(share_errors=1)


def test_an_unhashable_value_is_refused_like_any_other() -> None:
    with pytest.raises(ConfigurationError, match="ttl="):
        Options.build().changed(ttl=[])


def test_changes_are_not_remembered_without_bound() -> None:
    options = Options.build()
    for ttl in range(1000):
        options.changed(ttl=ttl)

    assert len(options._variants) <= 128


def test_a_callable_of_one_call_is_not_kept_alive() -> None:
    def switch() -> bool:
        return True

    options = Options.build()
    options.changed(enabled=switch)
    gone = weakref.ref(switch)
    del switch
    gc.collect()

    assert gone() is None


def test_enabled_is_a_bool_or_asked_at_each_use() -> None:
    answers = iter([True, False])
    options = Options.build(enabled=lambda: next(answers))

    assert Options.build().is_enabled() is True
    assert Options.build(enabled=False).is_enabled() is False
    assert [options.is_enabled(), options.is_enabled()] == [True, False]
