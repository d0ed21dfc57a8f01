"""The keys of flights: what is asked, and for whom."""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.core.exceptions import DisallowedHost
from django.test import RequestFactory, override_settings
from django.utils import timezone, translation

from django_singleflight import keys
from django_singleflight.audience import audience
from django_singleflight.keys import Learnt, OpaqueArgumentError, Question
from singleflight_sync import ConfigurationError

SHARED = {"shared": True}


def question(path: str = "/a?b=c", *args: Any, words: dict[str, Any] | None = None, **environ: Any) -> Question:
    view, kwargs, method = environ.pop("view", "v"), environ.pop("kwargs", {}), environ.pop("method", "GET")
    request = RequestFactory().generic(method, path, **environ)
    request.META.pop("HTTP_COOKIE") if request.META.get("HTTP_COOKIE") == "" else None
    return Question(view, audience(**(words or {})), request, args, kwargs)


def key(*args: Any, **given: Any) -> str:
    return question(*args, **given).key()


WHAT: list[dict[str, Any]] = [
    {"path": "/b?b=c"},
    {"path": "/a?b=d"},
    {"path": "/a"},
    {"path": "/a?b=c&"},
    {"path": "/A?b=c"},
    {"view": "w"},
    {"method": "HEAD"},
    {"wsgi.url_scheme": "https"},
    {"SERVER_PORT": "81"},
    {"HTTP_HOST": "example.com"},
    {"SCRIPT_NAME": "/a", "path": "/?b=c"},
    {"kwargs": {"x": 1}},
    {"CONTENT_TYPE": "x"},
    *(
        {f"HTTP_{name}": "x"}
        for name in ("RANGE", "IF_MATCH", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE", "IF_RANGE")
    ),
]
WHOM: list[dict[str, Any]] = [
    {"HTTP_COOKIE": "a=b"},
    {"HTTP_COOKIE": "a=c"},
    {"HTTP_ACCEPT": ""},
    {"HTTP_ACCEPT": "x"},
    {"HTTP_X_API_KEY": "x"},
    {"HTTP_USER_AGENT": "x"},
    {"HTTP_X_FORWARDED_FOR": "x"},
    {"HTTP_X_FORWARDED_HOST": "x"},
    {"SSL_CLIENT_S_DN": "x"},
]
ALWAYS_WHOM: list[dict[str, Any]] = [
    {"HTTP_AUTHORIZATION": "x"},
    {"HTTP_AUTHORIZATION": ""},
    {"REMOTE_USER": "x"},
    {"REMOTE_USER": ""},
]


def all_keys(variants: list[dict[str, Any]], **words: Any) -> list[str]:
    return [key(words=words, **{"path": "/a?b=c", **each}) for each in [{}, *variants]]


def test_equal_requests_have_equal_keys() -> None:
    assert key() == key()
    assert key(words=SHARED) == key(words=SHARED)


@pytest.mark.parametrize("shared", [False, True])
def test_whatever_is_asked_differently_has_another_key(shared: bool) -> None:  # noqa: FBT001
    variants = [*WHAT, *ALWAYS_WHOM]
    assert len({*all_keys(variants, shared=shared)}) == len(variants) + 1


def test_who_looks_different_has_another_key() -> None:
    assert len({*all_keys(WHOM)}) == len(WHOM) + 1


def test_the_page_is_the_same_for_everybody_where_it_is_said_so() -> None:
    assert len({*all_keys(WHOM, shared=True)}) == 1


def test_language_and_time_zone_are_in_the_key() -> None:
    made = {key(words=SHARED)}
    with translation.override("de"):
        made.add(key(words=SHARED))
    with translation.override(None):
        made.add(key(words=SHARED))
    with timezone.override("Asia/Tokyo"):
        made.add(key(words=SHARED))
    assert len(made) == 4


@pytest.mark.parametrize("name", keys.IDENTIFIES_NOBODY)
def test_headers_of_the_connection_and_of_tracing_are_not_in_the_key(name: str) -> None:
    assert key(**{keys.wsgi_name(name): "x"}) == key()


def test_a_setting_adds_to_these() -> None:
    with override_settings(SINGLEFLIGHT={"IGNORED_HEADERS": ["X-Ray"]}):
        assert key(HTTP_X_RAY="1") == key()
    assert key(HTTP_X_RAY="1") != key()


def test_the_host_is_checked_before_any_key() -> None:
    with override_settings(ALLOWED_HOSTS=["a.example"]), pytest.raises(DisallowedHost):
        key(HTTP_HOST="b.example")


def test_a_path_that_middleware_has_rewritten_is_another_one() -> None:
    request = RequestFactory().get("/a?b=c")
    request.path_info = "/other"
    assert Question("v", audience(shared=True), request, (), {}).key() != key(words=SHARED)


def test_proxies_in_front() -> None:
    with override_settings(USE_X_FORWARDED_HOST=True, SECURE_PROXY_SSL_HEADER=("HTTP_X_SCHEME", "https")):
        made = all_keys(
            [
                {"HTTP_X_FORWARDED_HOST": "a"},
                {"HTTP_HOST": "b", "HTTP_X_FORWARDED_HOST": "a"},
                {"HTTP_X_SCHEME": "https"},
            ],
            shared=True,
        )
        assert len({*made}) == 4
        assert question(words=SHARED).covers("HTTP_X_SCHEME", Learnt())


# vary_on


def test_vary_on_adds_headers_and_callables() -> None:
    words = {**SHARED, "vary_on": ["X-Tenant", lambda request: request.GET.get("plan"), "accept"]}
    variants: list[dict[str, Any]] = [
        {"HTTP_X_TENANT": "x"},
        {"HTTP_X_TENANT": ""},
        {"HTTP_ACCEPT": "x"},
        {"path": "/a?b=c&plan=x"},
    ]
    assert len({*all_keys(variants, **words)}) == len(variants) + 1


def test_the_parts_of_vary_on_are_told_apart_by_their_types_and_places() -> None:
    values: list[Any] = [None, "", "1", 1, True, "None", 0, False]
    made = {key(words={**SHARED, "vary_on": lambda request, value=value: value}) for value in values}
    assert len(made) == len(values)
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), (None, "abc"), ("abc", None)]
    made = {key(words={**SHARED, "vary_on": [lambda r, v=v: v for v in pair]}) for pair in pairs}
    assert len(made) == len(pairs)


@pytest.mark.parametrize("value", [b"x", 1.5, ["x"], object()])
def test_a_callable_that_returns_something_else_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"vary_on=.* returned a .*: it must return a str, an int or None"):
        key(words={"vary_on": lambda request: value})


@pytest.mark.parametrize(
    "words",
    [
        {"vary_on": b"X"},
        {"vary_on": 5},
        {"vary_on": {"X": 1}},
        {"vary_on": [5]},
        {"vary_on": [None]},
        {"vary_on": ""},
        {"vary_on": [" "]},
        {"shared": "yes"},
        {"shared": 1},
        {"key": "text"},
        {"key": 5},
    ],
)
def test_words_that_cannot_be_used_are_refused_at_decoration(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(words))):
        audience(**words)


# key


def by_name(request: Any, name: str = "", **_: Any) -> str:
    return f"name {name}"


def test_a_key_of_its_own_replaces_path_query_and_arguments_and_nothing_else() -> None:
    words = {**SHARED, "key": by_name}
    assert key("/a?b=c", words=words, kwargs={"name": "x", "page": object()}) == key(
        "/other", words=words, kwargs={"name": "x"}
    )
    rest = [each for each in WHAT if "path" not in each and "kwargs" not in each]
    variants = [*rest, *ALWAYS_WHOM, {"kwargs": {"name": "y"}}]
    assert len({*all_keys(variants, **words)}) == len(variants) + 1


def test_a_key_of_its_own_never_makes_a_view_public() -> None:
    assert len({*all_keys(WHOM, key=by_name)}) == len(WHOM) + 1


def test_a_key_is_no_path() -> None:
    assert key(words={"key": lambda request: "/a?b=c"}) != key()


@pytest.mark.parametrize("value", [None, b"x", 5, ["x"]])
def test_a_key_that_is_no_text_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"key=.* returned a .*: it must return a str"):
        key(words={"key": lambda request: value})


# Arguments


def test_arguments_are_told_apart_by_their_types() -> None:
    values: list[Any] = [
        *(1, True, 1.0, "1", b"1", None, "None", (1,), [1], ("1",), (1, 1), ((1,), 1), (1, (1,))),
        *(uuid.UUID(int=1), dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - any will do
    ]
    assert len({key("/", value, words=SHARED) for value in values}) == len(values)
    assert key("/", 1, words=SHARED) != key("/", kwargs={"x": 1}, words=SHARED)


@pytest.mark.parametrize("value", [object(), {"a": 1}, [object()], type("S", (str,), {})("x")])
def test_other_arguments_cannot_stand_in_a_key(value: Any) -> None:
    with pytest.raises(OpaqueArgumentError, match="pass key="):
        key("/", value)


# What is learnt


def test_learnt_names_are_in_the_key() -> None:
    learnt = Learnt(("HTTP_ACCEPT", "REMOTE_ADDR"))
    made = [
        question(words=SHARED, **environ).key(learnt)
        for environ in ({}, {"HTTP_ACCEPT": ""}, {"HTTP_ACCEPT": "x"}, {"REMOTE_ADDR": "1.2.3.4"}, {"HTTP_X": "x"})
    ]
    assert len({*made}) == 4
    assert made[0] == made[4] != key(words=SHARED)


def test_a_personal_page_is_asked_for_as_without_shared() -> None:
    made = [question(words=SHARED, **environ).key(Learnt(personal=True)) for environ in [{}, *WHOM]]
    assert len({*made}) == len(WHOM) + 1


def test_who_looks_the_same_has_the_same_digest() -> None:
    assert question().whom == question("/other", words=SHARED).whom
    assert len({question(**each).whom for each in [{}, *WHOM, *ALWAYS_WHOM]}) == len(WHOM) + len(ALWAYS_WHOM) + 1
    assert question(words={"vary_on": lambda r: 1}).whom != question(words={"vary_on": lambda r: 2}).whom


@pytest.mark.parametrize(
    ("name", "bare", "shared"),
    [
        *(
            (name, True, True)
            for name in ("QUERY_STRING", "PATH_INFO", "HTTP_HOST", "HTTP_RANGE", "wsgi.input", "CONTENT_TYPE")
        ),
        *((name, True, True) for name in ("REMOTE_USER", "HTTP_AUTHORIZATION", "HTTP_X_TENANT")),
        *((name, True, False) for name in ("HTTP_COOKIE", "HTTP_ACCEPT", "SSL_CLIENT_S_DN")),
        *((name, False, False) for name in ("REMOTE_ADDR", "REMOTE_HOST", "HTTP_X_REQUEST_ID", "SERVER_ADDR", "x.y")),
    ],
)
def test_what_a_key_covers(name: str, bare: bool, shared: bool) -> None:  # noqa: FBT001 - a table
    words = {"vary_on": "X-Tenant"}
    assert question(words=words).covers(name, Learnt()) is bare
    assert question(words={**words, **SHARED}).covers(name, Learnt()) is shared
    assert question(words={**words, **SHARED}).covers(name, Learnt(personal=True)) is bare
    assert question(words=SHARED).covers(name, Learnt((name,)))


@pytest.mark.parametrize(
    ("environ", "words", "expected"),
    [
        ({}, {}, False),
        ({"HTTP_COOKIE": "a=b"}, {}, True),
        ({"HTTP_AUTHORIZATION": "x"}, {}, True),
        ({"HTTP_AUTHORIZATION": ""}, {}, False),
        ({"REMOTE_USER": "x"}, {}, True),
        ({"HTTP_X": "x"}, {}, False),
        ({"HTTP_X": "x"}, {"vary_on": "X"}, True),
        ({}, {"vary_on": "X"}, False),
        ({}, {"vary_on": lambda request: None}, False),
        ({}, {"vary_on": lambda request: 0}, True),
    ],
)
def test_whether_something_tells_visitors_apart(environ: Any, words: Any, expected: bool) -> None:  # noqa: FBT001
    assert question(words=words, **environ).identified is expected


def test_the_name_of_the_server_is_the_host_where_no_host_was_asked_for() -> None:
    assert question(words=SHARED).covers("SERVER_NAME", Learnt())
    assert not question(words=SHARED, HTTP_HOST="a.example").covers("SERVER_NAME", Learnt())


# For people


def test_a_key_can_be_read_and_shows_no_secret() -> None:
    made = key("/report?id=7", view="reports.views.sales", HTTP_COOKIE="sessionid=hush", HTTP_AUTHORIZATION="hush")
    assert made.startswith("view:reports.views.sales GET http://testserver/report?id=7 ")
    assert "hush" not in made


def test_a_long_query_is_cut_for_people_and_counts_whole() -> None:
    long = "/a?" + "x" * 8000
    assert len(key(long)) < 700
    assert len({key(f"{long}1"), key(f"{long}2")}) == 2


def test_the_secret_key_is_in_the_digest() -> None:
    before = key()
    with override_settings(SECRET_KEY="another"):
        assert key() != before
