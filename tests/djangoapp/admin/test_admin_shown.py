"""How keys, owners and times are written for people."""

from __future__ import annotations

import pytest
from django.utils import translation

from django_singleflight import shown
from singleflight_sync import LogEntry

S = shown.STARS
VIEW = " " + "0a" * 20


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("report:42", "report:42"),
        ("token=1", "token=1"),
        ("/a?page=1", "/a?page=1"),
        ("/a?token=1", f"/a?token={S}"),
        ("/a?token=", f"/a?token={S}"),
        ("/a?token", "/a?token"),
        ("/a?b=1&API_KEY=2&c=3", f"/a?b=1&API_KEY={S}&c=3"),
        ("/a?password=1=2&c=3", f"/a?password={S}&c=3"),
        ("/a?token=1;2?3&c=3", f"/a?token={S}&c=3"),
        ("/a?b=1;token=2", f"/a?b=1;token={S}"),
        ("/a?next=/b?token=2", f"/a?next=/b?token={S}"),
        ("/a?%74oken=1", f"/a?%74oken={S}"),
        ("/a?%2574oken=1", f"/a?%2574oken={S}"),
        (f"view:x GET http://h/a?token=1;2{VIEW}", f"view:x GET http://h/a?token={S}{VIEW}"),
        (f"view:x GET http://h/a?token=1 2{VIEW}", f"view:x GET http://h/a?token={S}{VIEW}"),
    ],
)
def test_values_of_secret_looking_parameters_are_starred(key: str, expected: str) -> None:
    assert shown.masked(key) == expected


def test_long_keys_are_masked_in_linear_time() -> None:
    assert len(shown.masked("/a?" + "&;?=" * 100_000)) == 400_003
    assert shown.masked("/a?token=" + " 0a" * 100_000) == f"/a?token={S}"


def test_digests_of_different_names_differ() -> None:
    assert shown.digest("ab", "c") != shown.digest("a", "bc")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (-1, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (7260, "2 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_lengths_of_time_are_short(seconds: float, expected: str) -> None:
    assert shown.seconds(seconds) == expected


def test_numbers_are_written_in_the_language_of_the_page() -> None:
    with translation.override("de"):
        assert shown.seconds(1.5) == "1,5 s"


@pytest.mark.parametrize(
    ("owner", "expected"),
    [("h/1/2/3/4", "h:1"), ("a/b/1/2/3/4", "a/b:1"), ("x", "x"), ("", ""), ("\0/1/2/3/4", "\\x00:1")],
)
def test_an_owner_is_host_and_pid(owner: str, expected: str) -> None:
    assert shown.owner(owner) == expected


def test_an_event_of_another_release_is_called_as_it_calls_itself() -> None:
    event = shown.event(LogEntry(event="<paused>\0", fencing_token=None, age=1.0))
    assert (event.kind, event.label) == ("unknown", "<paused>\\x00")
