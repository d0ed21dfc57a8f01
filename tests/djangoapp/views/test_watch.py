"""The watch alone: what it notes, and that the request is as before afterwards."""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.messages.storage.cookie import CookieStorage
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.http import HttpRequest
from django.middleware.csrf import get_token, rotate_token
from django.test import RequestFactory, override_settings
from django.utils.functional import SimpleLazyObject

from django_singleflight.watch import Seen, Watch, is_watched
from tests.djangoapp.views.site import User

SECRET = "s" * 32
KEY = "k" * 32

_numbers = itertools.count()


def number(_: object) -> str:
    """The id of a parameter without a name."""
    return str(next(_numbers))


def request_with(**fields: Any) -> HttpRequest:
    request = RequestFactory().get(
        "/a?b=c",
        HTTP_COOKIE=f"a=1; csrftoken={SECRET}; sessionid={KEY}",
        HTTP_HOST="a.example",
        HTTP_ACCEPT="x",
        HTTP_X_A="y",
    )
    request.__dict__.update(fields)
    return request


def full() -> HttpRequest:
    session = SessionStore(KEY)
    session._session_cache = {}
    request = request_with(session=session, user=User("ada"), csp_nonce=SimpleLazyObject(lambda: "n"))
    request._messages = CookieStorage(request)
    request.META["CSRF_COOKIE"] = SECRET
    return request


def seen(act: Callable[[Any], object], request: HttpRequest | None = None, covered: tuple[str, ...] = ()) -> Seen:
    request = request or full()
    watch = Watch(request, lambda name: name in {*covered, "QUERY_STRING", "HTTP_HOST", "wsgi.url_scheme"})
    with watch:
        act(request)
    return watch.seen


def looked(act: Callable[[Any], object]) -> set[str]:
    found = seen(act)
    assert not found.changed
    assert not found.whole
    return {*found.looked, *found.names}


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda r: None, set()),
        (lambda r: r.session, set()),
        (lambda r: r.user, set()),
        (lambda r: hasattr(r, "user"), set()),
        (lambda r: {"user": r.user, "session": r.session}, set()),
        (lambda r: r.path + r.get_full_path() + r.build_absolute_uri() + str(r.GET) + r.scheme, set()),
        (lambda r: r.session.get("a"), {"session"}),
        (lambda r: "a" in r.session, {"session"}),
        (lambda r: bool(r.session), {"session"}),
        (lambda r: r.session.session_key, {"session"}),
        (lambda r: isinstance(r.user, User), {"user"}),
        (lambda r: bool(r.user), {"user"}),
        (lambda r: str(r.user), {"user"}),
        (lambda r: repr(r.user), {"user"}),
        (lambda r: f"{r.user}", {"user"}),
        (lambda r: r.user == 1, {"user"}),
        (lambda r: hash(r.user), {"user"}),
        (lambda r: copy.copy(r.user).name, {"user"}),
        (lambda r: copy.deepcopy(r.user).name, {"user"}),
        (lambda r: pickle.dumps(r.user), {"user"}),
        (lambda r: copy.copy(r).user.name, {"user"}),
        (lambda r: len(r._messages), {"messages", "cookies"}),
        (lambda r: r.COOKIES["a"], {"cookies"}),
        (lambda r: r.COOKIES.get("b"), {"cookies"}),
        (lambda r: "a" in r.COOKIES, {"cookies"}),
        (lambda r: len(r.COOKIES), {"cookies"}),
        (lambda r: bool(r.COOKIES), {"cookies"}),
        (lambda r: list(r.COOKIES), {"cookies"}),
        (lambda r: dict(r.COOKIES), {"cookies"}),
        (lambda r: {**r.COOKIES}, {"cookies"}),
        (lambda r: r.COOKIES | {}, {"cookies"}),
        (lambda r: {} | r.COOKIES, {"cookies"}),
        (lambda r: r.COOKIES == {}, {"cookies"}),
        (lambda r: "%(a)s" % r.COOKIES, {"cookies"}),  # noqa: UP031 - one of the ways
        (lambda r: "{a}".format_map(r.COOKIES), {"cookies"}),
        (lambda r: json.dumps(r.COOKIES), {"cookies"}),
        (lambda r: pickle.dumps(r.COOKIES), {"cookies"}),
        (lambda r: copy.copy(r.COOKIES), {"cookies"}),
        (lambda r: copy.deepcopy(r.COOKIES), {"cookies"}),
        (lambda r: str(r.COOKIES), {"cookies"}),
        (lambda r: [*r.COOKIES.values(), *r.COOKIES.keys(), *r.COOKIES.items()], {"cookies"}),
        (lambda r: list(reversed(r.COOKIES)), {"cookies"}),
        (lambda r: dict(**r.COOKIES), {"cookies"}),
        (get_token, {"csrf"}),
        (lambda r: r.META["CSRF_COOKIE"], {"csrf"}),
        (lambda r: r.META.get("HTTP_ACCEPT"), {"HTTP_ACCEPT"}),
        (lambda r: "HTTP_NONE" in r.META, {"HTTP_NONE"}),
        (lambda r: r.environ["HTTP_COOKIE"], {"HTTP_COOKIE"}),
        (lambda r: r.META.setdefault("HTTP_X_A", ""), {"HTTP_X_A"}),
        (lambda r: r.META.pop("HTTP_X_A"), {"HTTP_X_A"}),
        (lambda r: r.META["REMOTE_ADDR"], {"REMOTE_ADDR"}),
        (lambda r: r.headers["accept"], {"HTTP_ACCEPT"}),
        (lambda r: r.headers["X_A"], {"HTTP_X_A"}),
        (lambda r: r.headers.get("Cookie"), {"HTTP_COOKIE"}),
        (lambda r: "x-none" in r.headers, {"HTTP_X_NONE"}),
        (lambda r: r.headers.copy().get("X-A"), {"HTTP_X_A"}),
        (lambda r: r.accepts("text/html"), {"HTTP_ACCEPT"}),
        (lambda r: r.get_port(), {"SERVER_PORT"}),
    ],
    ids=number,
)
def test_a_look_is_noted(act: Callable[[Any], object], expected: set[str]) -> None:
    assert looked(act) == expected


@pytest.mark.parametrize(
    "act",
    [
        lambda r: list(r.META),
        lambda r: len(r.META),
        lambda r: dict(r.META),
        lambda r: {**r.META},
        lambda r: copy.copy(r.META),
        lambda r: r.META.copy(),
        lambda r: r.META.items(),
        lambda r: repr(r.META),
        lambda r: r.META == {},
        lambda r: r.META | {},
        lambda r: dict(r.headers),
        lambda r: list(r.headers),
        lambda r: len(r.headers),
        lambda r: repr(r.headers),
        lambda r: list(r.headers.items()),
        lambda r: r.headers == {},
        lambda r: r.META["wsgi.errors"],  # no text
        lambda r: setattr(r, "META", {}),
    ],
    ids=number,
)
def test_going_through_all_of_it_is_noted(act: Callable[[Any], object]) -> None:
    assert seen(act).whole


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda r: r.session.update({"a": 1}), "session"),
        (lambda r: r.session.pop("a", None), ""),
        (lambda r: setattr(r.session, "modified", True), "session"),
        (lambda r: setattr(r, "session", {}), "session"),
        (lambda r: delattr(r, "session"), "session"),
        (lambda r: r._messages.add(20, "x"), "messages"),
        (lambda r: setattr(r, "_messages", []), "messages"),
        (lambda r: list(r._messages), ""),
        (rotate_token, "csrf"),
        (lambda r: r.META.update(CSRF_COOKIE="x" * 32), "csrf"),
        (lambda r: str(r.csp_nonce), "nonce"),
        (lambda r: r.csp_nonce, ""),
    ],
    ids=number,
)
def test_a_change_is_noted(act: Callable[[Any], object], expected: str) -> None:
    assert seen(act).changed == expected


def test_what_the_key_covers_is_not_noted() -> None:
    assert seen(lambda r: r.META["HTTP_ACCEPT"], covered=("HTTP_ACCEPT",)) == Seen()


def test_messages_that_are_shown_are_a_change() -> None:
    request = full()
    request._messages._loaded_data = ["x"]
    assert seen(lambda r: list(r._messages), request).changed == "messages"
    request = full()
    request._messages._loaded_data = ["x"]
    assert seen(lambda r: len(r._messages), request) == Seen(frozenset({"messages"}))


def test_a_secret_that_the_request_did_not_bring() -> None:
    newcomer = request_with(session=SessionStore())
    newcomer.META["HTTP_COOKIE"] = "a=1"
    assert seen(get_token, newcomer).changed == "csrf"
    made_by_middleware = request_with()
    made_by_middleware.META["CSRF_COOKIE"] = "m" * 32
    assert seen(get_token, made_by_middleware).changed == "csrf"


def test_a_secret_in_the_session() -> None:
    session = SessionStore(KEY)
    session._session_cache = {"_csrftoken": SECRET}
    request = request_with(session=session)
    request.META["CSRF_COOKIE"] = SECRET
    with override_settings(CSRF_USE_SESSIONS=True):
        assert seen(get_token, request) == Seen(frozenset({"csrf"}))
        session._session_key = "another"
        assert seen(get_token, request).changed == "csrf"


def test_who_the_user_was_is_told_only_where_it_was_looked_at() -> None:
    assert not seen(lambda r: None).user
    ada = seen(lambda r: r.user.name)
    assert ada.signed_in
    bob = seen(lambda r: r.user.name, request_with(user=User("bob")))
    nobody = seen(lambda r: r.user.name, request_with(user=User("")))
    assert len({ada.user, bob.user, nobody.user}) == 3
    assert not nobody.signed_in


def test_a_user_whom_the_view_itself_has_signed_in() -> None:
    found = seen(lambda r: setattr(r, "user", User("eve")))
    assert found.signed_in
    assert not found.looked


def test_a_user_who_cannot_be_told_makes_the_answer_unshared() -> None:
    def broken() -> str:
        raise ValueError

    user = SimpleNamespace(is_authenticated=True, get_username=broken)
    assert seen(lambda r: r.user.is_authenticated, request_with(user=user)).whole


def test_what_middleware_has_looked_at_before_does_not_count() -> None:
    request = full()
    assert request.session.get("a") is None
    assert request.headers["Accept"] == "x"
    assert request.accepts("text/html") is False
    assert request.COOKIES["a"] == "1"
    request.session["x"] = 1
    get_token(request)
    assert seen(lambda r: None, request) == Seen()
    assert request.session.modified
    assert request.META["CSRF_COOKIE_NEEDS_UPDATE"]


def test_what_django_has_kept_of_a_header_is_made_anew() -> None:
    request = full()
    assert not request.accepts("text/html")
    assert "HTTP_ACCEPT" in seen(lambda r: r.accepted_types, request).names


def test_users_of_two_kinds_with_the_same_key_are_two() -> None:
    class Customer(User):
        """Of another table."""

    def look(request: Any) -> object:
        return request.user.name

    assert seen(look, request_with(user=User("1"))).user != seen(look, request_with(user=Customer("1"))).user


# Past the request


class Cart:
    """What middleware makes: it holds the session itself."""

    def __init__(self, request: Any) -> None:
        self.session = request.session
        self.messages = request._messages


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda cart: None, Seen()),
        (lambda cart: cart.session.get("a"), Seen(frozenset({"session"}))),
        (lambda cart: cart.session.update({"a": 1}), Seen(frozenset({"session"}), changed="session")),
        (lambda cart: cart.session.cycle_key(), Seen(frozenset({"session"}), changed="session")),
        (lambda cart: cart.messages.add(20, "x"), Seen(changed="messages")),
    ],
    ids=["nothing", "looked", "changed", "another key", "a message"],
)
@pytest.mark.parametrize("used_before", [False, True])
def test_what_middleware_holds_of_the_session_and_of_messages(act: Any, expected: Seen, used_before: bool) -> None:  # noqa: FBT001
    request = full()
    request.cart = Cart(request)
    if used_before:
        request.session["before"] = 1
    assert seen(lambda r: act(r.cart), request) == expected
    assert request.session.modified is (used_before or expected.changed == "session")


def test_a_session_that_is_none_of_djangos_is_taken_for_changed_once_it_is_looked_at() -> None:
    assert seen(lambda r: r.session["a"], request_with(session={"a": 1})).changed == "session"
    assert seen(lambda r: None, request_with(session={"a": 1})) == Seen()


def test_a_lazy_session_is_not_made_before_it_is_looked_at() -> None:
    made: list[SessionStore] = []

    def make() -> SessionStore:
        made.append(full().session)
        return made[-1]

    assert seen(lambda r: None, request_with(session=SimpleLazyObject(make))) == Seen()
    assert made == []
    found = seen(lambda r: r.session.get("a"), request_with(session=SimpleLazyObject(make)))
    assert found == Seen(frozenset({"session"}))
    assert seen(lambda r: r.session.update({"a": 1}), request_with(session=SimpleLazyObject(make))).changed == "session"


# Afterwards


def state(request: HttpRequest) -> dict[str, Any]:
    return {name: value for name, value in vars(request).items() if name not in {"GET", "_messages"}}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    "act",
    [
        lambda r: None,
        lambda r: (r.user.name, r.session.get("a"), dict(r.META), dict(r.headers), r.COOKIES["a"], r.accepts("x")),
    ],
    ids=["looked at nothing", "looked at all"],
)
def test_the_request_is_as_before(act: Callable[[Any], object], prepared: bool) -> None:  # noqa: FBT001
    request = full()
    if prepared:
        request.headers, request.accepted_types, request.COOKIES  # noqa: B018 - Django keeps them
    before, environ = state(request), dict(request.META)
    seen(act, request)
    after = state(request)
    after.pop("COOKIES") if not prepared else None
    assert {name: id(value) for name, value in after.items()} == {name: id(value) for name, value in before.items()}
    assert environ == request.META
    assert request.META is request.environ
    assert not is_watched(request)


def test_the_request_is_as_before_when_the_view_raises() -> None:
    request = full()
    before = request.META, request.session, request.user
    with pytest.raises(ValueError, match="x"), Watch(request, lambda name: True):  # noqa: PT012
        assert is_watched(request)
        raise ValueError("x")
    assert (request.META, request.session, request.user) == before
    assert request.META is before[0]


def test_what_the_view_wrote_stays() -> None:
    request = full()

    def act(r: Any) -> None:
        r.META["X"] = "1"
        r.META.update(Y="2")
        del r.META["HTTP_ACCEPT"]
        r.COOKIES["n"] = "3"
        r.META.pop("HTTP_COOKIE")
        r.session["s"] = 4
        r.user.name = "eve"
        r.new = 5

    environ, cookies = request.META, request.COOKIES
    seen(act, request)
    assert request.META is environ
    assert (environ["X"], environ["Y"], "HTTP_ACCEPT" in environ, "HTTP_COOKIE" in environ) == ("1", "2", False, False)
    assert request.COOKIES is cookies
    assert cookies["n"] == "3"
    assert request.session["s"] == 4
    assert request.session.modified
    assert request.user.name == "eve"
    assert request.new == 5


def test_what_the_view_put_in_the_place_of_something_stays() -> None:
    request = full()
    user = User("eve")
    seen(lambda r: setattr(r, "user", user), request)
    assert request.user is user


def test_the_cookies_are_not_even_in_meta_before_they_are_asked_for() -> None:
    request = full()
    with Watch(request, lambda name: True):
        assert dict.get(request.META, "HTTP_COOKIE") is None
        assert request.META["HTTP_COOKIE"].startswith("a=1")
    assert request.META["HTTP_COOKIE"].startswith("a=1")


def test_a_request_without_anything() -> None:
    request = HttpRequest()
    request.method = "GET"
    assert seen(lambda r: (r.COOKIES.get("a"), r.META.get("HTTP_A")), request) == Seen(
        frozenset({"cookies"}), ("HTTP_A",)
    )
