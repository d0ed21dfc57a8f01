"""The verdict alone: facts in, who may share out."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.http import HttpResponse, StreamingHttpResponse

from django_singleflight.sharing import REASONS, Answer, Verdict, answer_of, judge, judge_error, sentence
from django_singleflight.watch import Seen


def nothing(_: str) -> bool:
    return False


def verdict(seen: Seen | None = None, *, identified: bool = True, covers: Any = nothing, **answer: Any) -> Verdict:
    return judge(seen or Seen(), Answer(**answer), identified=identified, largest=1000, covers=covers)


def directives(*names: str) -> frozenset[str]:
    return frozenset(names)


EVERYBODY = Verdict()
THE_SAME = Verdict(personal=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, EVERYBODY),
        *(({"seen": Seen(frozenset({what}))}, THE_SAME) for what in ("session", "user", "cookies", "messages", "csrf")),
        *(
            ({"seen": Seen(changed=what)}, Verdict(what, kept=True))
            for what in ("session", "messages", "csrf", "nonce")
        ),
        ({"seen": Seen(whole=True)}, Verdict("environ", kept=True)),
        ({"seen": Seen(signed_in=True, looked=frozenset({"user"}))}, THE_SAME),
        ({"seen": Seen(signed_in=True), "identified": False}, Verdict("user", kept=True)),
        ({"sets_cookies": True}, Verdict("cookies", kept=True)),
        ({"directives": directives("no-store")}, Verdict("no-store", kept=True)),
        ({"directives": directives("no-cache")}, Verdict(personal=True, brief=True)),
        ({"directives": directives("no-cache"), "identified": False}, Verdict(personal=True, brief=True)),
        ({"directives": directives("private")}, Verdict(personal=True, brief=True)),
        ({"directives": directives("private"), "identified": False}, Verdict("private", kept=True)),
        ({"directives": directives("public", "max-age")}, EVERYBODY),
        ({"size": 1000}, EVERYBODY),
        ({"size": 1001}, Verdict("size", kept=True)),
        ({"vary_all": True}, Verdict("vary", kept=True)),
        ({"kind": "streaming"}, Verdict("streaming", kept=True)),
        ({"kind": "response"}, Verdict("response")),
        *(({"status": code}, EVERYBODY) for code in (200, 201, 204, 301, 302, 307, 308)),
        *(({"status": code}, Verdict("status", kept=True)) for code in (100, 103, 206, 304)),
        *(({"status": code}, Verdict("status")) for code in (400, 401, 403, 404, 410, 418, 429, 451, 499)),
        *(({"status": code}, Verdict(brief=True)) for code in (500, 502, 503, 599)),
        ({"status": 500, "sets_cookies": True}, Verdict("cookies")),
        ({"status": 500, "seen": Seen(frozenset({"user"}))}, Verdict(personal=True, brief=True)),
        ({"vary": ("HTTP_ACCEPT",)}, Verdict(names=("HTTP_ACCEPT",))),
        ({"seen": Seen(names=("REMOTE_ADDR",)), "vary": ("HTTP_A",)}, Verdict(names=("HTTP_A", "REMOTE_ADDR"))),
        ({"vary": ("HTTP_A", "HTTP_B"), "covers": "HTTP_A".__eq__}, Verdict(names=("HTTP_B",))),
    ],
)
def test_a_response(given: dict[str, Any], expected: Verdict) -> None:
    assert verdict(**given) == expected


@pytest.mark.parametrize(
    ("seen", "is_4xx", "identified", "expected"),
    [
        (Seen(), False, True, Verdict(brief=True)),
        (Seen(), True, True, Verdict("exception")),
        (Seen(frozenset({"session"})), False, True, Verdict(personal=True, brief=True)),
        (Seen(changed="session"), False, True, Verdict("session")),
        (Seen(whole=True), False, True, Verdict("environ")),
        (Seen(signed_in=True), False, False, Verdict("user")),
        (Seen(names=("HTTP_A",)), False, True, Verdict(brief=True, names=("HTTP_A",))),
    ],
)
def test_an_exception(seen: Seen, is_4xx: bool, identified: bool, expected: Verdict) -> None:  # noqa: FBT001 - a table
    assert judge_error(seen, identified=identified, is_4xx=is_4xx) == expected


def test_what_the_view_did_is_told_before_what_it_answered() -> None:
    assert verdict(Seen(changed="csrf"), sets_cookies=True).reason == "csrf"


@pytest.mark.parametrize(
    ("given", "looked", "text"),
    [
        (Verdict(), (), ""),
        (Verdict("csrf"), (), "not shared, the template used a CSRF token that the request did not bring"),
        (THE_SAME, ("user", "session"), "shared only with requests that look the same (session, user)"),
        (Verdict(names=("HTTP_A", "HTTP_B")), (), "shared only where HTTP_A, HTTP_B are equal"),
    ],
)
def test_what_the_log_says(given: Verdict, looked: Any, text: str) -> None:
    assert sentence(given, looked) == text


def test_every_reason_has_a_sentence_and_is_a_token() -> None:
    reasons = {verdict(Seen(changed=what)).reason for what in ("session", "messages", "csrf", "nonce")}
    assert reasons <= set(REASONS)
    assert all(re.fullmatch("[a-z-]+", reason) for reason in REASONS)


# The facts of a response


def facts(**headers: str) -> Answer:
    return answer_of(HttpResponse("abc", headers={name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("no-store", {"no-store"}),
        ("NO-STORE", {"no-store"}),
        (" max-age = 5 ,\tPrivate ", {"max-age", "private"}),
        ('private="a, b", no-cache', {"private", 'b"', "no-cache"}),
        (",, ,", set()),
        ("", set()),
    ],
)
def test_cache_control(header: str, expected: set[str]) -> None:
    assert facts(Cache_Control=header).directives == expected


@pytest.mark.parametrize(
    ("header", "names", "everything"),
    [
        ("Accept-Language", ("HTTP_ACCEPT_LANGUAGE",), False),
        ("Accept , \t Cookie,,", ("HTTP_ACCEPT", "HTTP_COOKIE"), False),
        ("*", (), True),
        ("Cookie, *", ("HTTP_COOKIE",), True),
        (" * ", (), True),
        ("content-type", ("CONTENT_TYPE",), False),
    ],
)
def test_vary(header: str, names: tuple[str, ...], everything: bool) -> None:  # noqa: FBT001 - a table
    assert (facts(Vary=header).vary, facts(Vary=header).vary_all) == (names, everything)


@pytest.mark.parametrize("filler", [" ", ",", " ,", "a=b", "\t \t", '"', "x, "])
def test_long_headers_are_read_in_linear_time(filler: str) -> None:
    response = HttpResponse()
    value = filler * (2_000_000 // len(filler))
    response.headers._store["vary"] = ("Vary", value)
    response.headers._store["cache-control"] = ("Cache-Control", value)
    began = time.process_time()
    answer_of(response)
    assert time.process_time() - began < 20  # an hour, if it were quadratic


def test_cookies_and_their_header() -> None:
    assert not facts().sets_cookies
    assert facts(set_cookie="a=b").sets_cookies
    response = HttpResponse()
    response.delete_cookie("a")
    assert answer_of(response).sets_cookies


def test_what_is_no_page() -> None:
    assert answer_of(StreamingHttpResponse(iter([]))).kind == "streaming"
    assert answer_of(None).kind == answer_of("text").kind == "response"
    assert (facts().kind, facts().size, facts().status) == ("page", 3, 200)
