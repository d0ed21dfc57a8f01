"""The table: what the view does, and who may share; each row with who looks the same and with who does not."""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import django
import pytest
from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied, RequestAborted, SuspiciousOperation
from django.http import (
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotModified,
    StreamingHttpResponse,
    UnreadablePostError,
)
from django.http.multipartparser import MultiPartParserError
from django.middleware.csrf import get_token, rotate_token
from django.template import engines
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.utils.functional import SimpleLazyObject

from django_singleflight.decorators import single_flight
from tests.djangoapp.views.site import MIDDLEWARE, Page, Visitor, texts
from tests.support import parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.djangoapp.views.site import Site

SHARED, ITSELF = 1, 2
"""How often the view runs for two visitors."""


class Row(NamedTuple):
    """A row of the table. ``twins`` and ``others``: what two who look the same, and two who do not, cost."""

    name: str
    body: Callable[[HttpRequest], Any]
    twins: int
    others: int
    stays: bool = True  # with a ``ttl``, those who come later get it too


def ok(text: str = "ok", **headers: str) -> HttpResponse:
    return HttpResponse(text, headers={name.replace("_", "-"): value for name, value in headers.items()})


def with_cookie(**_: Any) -> HttpResponse:
    response = ok()
    response.set_cookie("a", "b")
    return response


def render(source: str, request: HttpRequest) -> HttpResponse:
    return HttpResponse(engines["django"].from_string(source).render({}, request))


def deferred(source: str, request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string(source))


def after(*acts: Any) -> HttpResponse:
    return ok()


def raising(error: Exception) -> Callable[[HttpRequest], Any]:
    def body(request: HttpRequest) -> Any:
        raise error

    return body


def changes(request: HttpRequest) -> HttpResponse:
    request.session["x"] = 1
    return ok()


def status(code: int) -> Callable[[HttpRequest], Any]:
    return lambda request: HttpResponse("ok", status=code)


def nonce(request: HttpRequest) -> HttpResponse:
    return ok(str(request.csp_nonce))


LOOKED = [
    Row("looked at the session", lambda r: after(r.session.get("x")), SHARED, ITSELF),
    Row("looked whether the session is there", lambda r: after(bool(r.session)), SHARED, ITSELF),
    Row("looked at the key of the session", lambda r: after(r.session.session_key), SHARED, ITSELF),
    Row("looked at the user", lambda r: after(r.user.is_authenticated), SHARED, ITSELF),
    Row("printed the user's representation", lambda r: ok(repr(r.user)[:5]), SHARED, ITSELF),
    Row("looked at a cookie", lambda r: after(r.COOKIES.get("v")), SHARED, ITSELF),
    Row("looked at all cookies", lambda r: after(dict(r.COOKIES)), SHARED, ITSELF),
    Row("looked at a signed cookie", lambda r: after(r.get_signed_cookie("v", None)), SHARED, ITSELF),
    Row("looked at messages, and there were none", lambda r: after(len(messages.get_messages(r))), SHARED, ITSELF),
    Row("went through messages, and there were none", lambda r: after(list(messages.get_messages(r))), SHARED, ITSELF),
    Row("template used the user", lambda r: render("{{ user.name }}", r), SHARED, ITSELF),
    Row("template used permissions", lambda r: render("{{ perms.a }}", r), SHARED, ITSELF),
    Row("template used messages", lambda r: render("{% for m in messages %}{{ m }}{% endfor %}", r), SHARED, ITSELF),
    Row("template used request.user", lambda r: render("{{ request.user.name }}", r), SHARED, ITSELF),
    Row("rendered late, used the user", lambda r: deferred("{{ user.name }}", r), SHARED, ITSELF),
    Row("used the CSRF token of the request", lambda r: after(get_token(r)), SHARED, ITSELF),
    Row("template used the CSRF token of the request", lambda r: render("{% csrf_token %}", r), SHARED, ITSELF),
    Row("rendered late, used the CSRF token", lambda r: deferred("{% csrf_token %}", r), SHARED, ITSELF),
]
CHANGED = [
    Row("changed the session", changes, ITSELF, ITSELF),
    Row("emptied the session", lambda r: after(r.session.flush()), ITSELF, ITSELF),
    Row("gave the session a new key", lambda r: after(r.session.cycle_key()), ITSELF, ITSELF),
    Row("set the session's expiry", lambda r: after(r.session.set_expiry(5)), ITSELF, ITSELF),
    Row("put another session there", lambda r: after(r.__dict__.update(session={})), ITSELF, ITSELF),
    Row("added a message", lambda r: after(messages.info(r, "hello")), ITSELF, ITSELF),
    Row("rotated the CSRF secret", lambda r: after(rotate_token(r)), ITSELF, ITSELF),
    Row("used a nonce", nonce, ITSELF, ITSELF),
]
ANSWERED = [
    Row("response sets a cookie", lambda r: with_cookie(), ITSELF, ITSELF),
    Row("response has a raw Set-Cookie", lambda r: ok(Set_Cookie="a=b"), ITSELF, ITSELF),
    Row("no-store", lambda r: ok(Cache_Control="no-store"), ITSELF, ITSELF),
    Row("no-store in capitals", lambda r: ok(Cache_Control="max-age=5 ,  NO-STORE"), ITSELF, ITSELF),
    Row("no-cache", lambda r: ok(Cache_Control="No-Cache"), SHARED, ITSELF, stays=False),
    Row("no-cache of a field", lambda r: ok(Cache_Control='no-cache="x-a, x-b"'), SHARED, ITSELF, stays=False),
    Row("private, and a cookie", lambda r: ok(Cache_Control="PRIVATE"), SHARED, ITSELF, stays=False),
    Row("max-age", lambda r: ok(Cache_Control="public, max-age=60"), SHARED, SHARED),
    Row("Vary: *", lambda r: ok(Vary="*"), ITSELF, ITSELF),
    Row("Vary: * among others", lambda r: ok(Vary="Accept ,\t* "), ITSELF, ITSELF),
    Row("Vary: a header that is equal", lambda r: ok(Vary="Accept-Encoding"), SHARED, SHARED),
    Row("looked up a header that is equal", lambda r: after(r.headers.get("Accept")), SHARED, SHARED),
    Row("looked for a header that nobody sent", lambda r: after("X-A" in r.headers), SHARED, SHARED),
    Row("went through all headers", lambda r: after(list(r.headers)), ITSELF, ITSELF),
    Row("copied all headers", lambda r: after(dict(r.headers)), ITSELF, ITSELF),
    Row("went through META", lambda r: after(list(r.META)), ITSELF, ITSELF),
    Row("copied META", lambda r: after(dict(r.META)), ITSELF, ITSELF),
    Row("copied META in another way", lambda r: after({**r.META}), ITSELF, ITSELF),
    Row("copied META in a third way", lambda r: after(r.META.copy()), ITSELF, ITSELF),
    Row("printed environ", lambda r: after(str(r.environ)), ITSELF, ITSELF),
    Row("looked up REMOTE_ADDR that is equal", lambda r: after(r.META["REMOTE_ADDR"]), SHARED, SHARED),
    Row("streamed", lambda r: StreamingHttpResponse(iter([b"ok"])), ITSELF, ITSELF),
    Row("a file", lambda r: FileResponse(io.BytesIO(b"ok")), ITSELF, ITSELF),
    Row("made of a generator", lambda r: HttpResponse(part for part in ["o", "k"]), SHARED, SHARED),
    Row("no response", lambda r: None, ITSELF, ITSELF),
    Row("a text", lambda r: "ok", ITSELF, ITSELF),
    Row("a bad template", lambda r: SimpleTemplateResponse("missing.html"), SHARED, SHARED, stays=False),
    Row("206", status(206), ITSELF, ITSELF),
    Row("100", status(100), ITSELF, ITSELF),
    Row("304", lambda r: HttpResponseNotModified(), ITSELF, ITSELF),
    Row("403", status(403), ITSELF, ITSELF),
    Row("404", status(404), ITSELF, ITSELF),
    Row("429", status(429), ITSELF, ITSELF),
    Row("500", status(500), SHARED, SHARED, stays=False),
    Row("503, no-store", lambda r: HttpResponse(status=503, headers={"Cache-Control": "no-store"}), ITSELF, ITSELF),
    Row("500, looked at the user", lambda r: after(r.user.name) and status(500)(r), SHARED, ITSELF, stays=False),
    Row("a redirect", lambda r: HttpResponse(status=302, headers={"Location": "/x"}), SHARED, SHARED),
    Row("rendered late", lambda r: deferred("ok {{ 1 }}", r), SHARED, SHARED),
    Row("none of these", lambda r: ok(), SHARED, SHARED),
    *(
        Row(f"raised {type(error).__name__}", raising(error), ITSELF, ITSELF, stays=False)
        for error in (
            *(Http404("x"), PermissionDenied(), SuspiciousOperation("x"), BadRequest("x"), RequestAborted()),
            *(MultiPartParserError("x"), UnreadablePostError("x")),
        )
    ),
    Row("raised", raising(ValueError("x")), SHARED, SHARED, stays=False),
]
ROWS = [*LOOKED, *CHANGED, *ANSWERED]
_addresses = itertools.count()
rows = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


class Nonce:
    """Middleware such as that of django-csp."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.csp_nonce = SimpleLazyObject(lambda: "nonce")
        return self.get_response(request)


@pytest.fixture(autouse=True)
def around(site: Site) -> None:
    site.set(MIDDLEWARE=[*MIDDLEWARE, f"{__name__}.Nonce"])


def visitor(value: str, site: Site) -> Visitor:
    """Signed in, with a CSRF secret and a cookie of his own."""
    return site.sign_in(f"user {value}", {"v": value, "csrftoken": value * 32})


def cost(site: Site, row: Row, first: Visitor, second: Visitor, **options: Any) -> int:
    """How often the view runs for two who come at the same time."""
    page, path = Page(row.body), f"/{next(_addresses)}"
    site.serve(single_flight(**options)(page))
    one, two = site.herd(page, first, second, path=path)
    runs = page.runs
    assert one.status_code == two.status_code
    assert runs == ITSELF or one.content == two.content
    if options.get("ttl") and runs == SHARED:
        second.twin().get(path)
        expected = runs if row.stays else runs + 1
        assert page.runs == expected, "for those in the flight alone, or for those who come later, too"
    return runs


@rows
@pytest.mark.parametrize("shared", [False, True], ids=["bare", "shared"])
def test_who_looks_the_same(row: Row, shared: bool, site: Site) -> None:  # noqa: FBT001 - a parameter of the table
    first = visitor("a", site)
    assert cost(site, row, first, first.twin(), shared=shared, ttl=60) == row.twins


@rows
def test_who_looks_different(row: Row, site: Site) -> None:
    assert cost(site, row, visitor("a", site), visitor("b", site), shared=True, ttl=60) == row.others


def test_bare_nobody_joins_who_looks_different(site: Site) -> None:
    page = Page(lambda r: ok())
    site.serve(single_flight(page))
    first = site.start(visitor("a", site))
    assert page.running.wait(20)
    assert visitor("b", site).get().content == b"ok"  # while the first one still waits
    page.go_on.set()
    assert first.result(20).content == b"ok"


# Rows that depend on what the request carries


def test_private_where_nothing_tells_visitors_apart(site: Site) -> None:
    row = Row("private", lambda r: ok(Cache_Control="private"), ITSELF, ITSELF)
    for shared in (False, True):
        assert cost(site, row, Visitor(), Visitor(), shared=shared) == ITSELF


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"HTTP_AUTHORIZATION": "Token a"}, {}),
        ({"REMOTE_USER": "ada"}, {}),
        ({"HTTP_X_TENANT": "a"}, {"vary_on": "X-Tenant"}),
        ({}, {"vary_on": lambda request: 7}),
    ],
    ids=["Authorization", "REMOTE_USER", "vary_on header", "vary_on callable"],
)
def test_private_where_something_tells_visitors_apart(environ: Any, options: Any, site: Site) -> None:
    row = Row("private", lambda r: ok(Cache_Control="private"), SHARED, ITSELF)
    assert cost(site, row, Visitor(**environ), Visitor(**environ), shared=True, **options) == SHARED
    assert cost(site, row, Visitor(**environ), Visitor({"v": "1"}, **environ), shared=True, **options) == ITSELF


def test_a_body_as_large_as_max_body_is_shared_and_a_larger_one_is_not(site: Site, server: Any) -> None:
    site.set(SINGLEFLIGHT={"URL": server.url, "MAX_BODY": 1000})
    for size, expected in ((1000, SHARED), (1001, ITSELF)):
        row = Row("size", lambda r, size=size: ok("x" * size), expected, expected)  # type: ignore[misc]
        assert cost(site, row, Visitor(), Visitor(), shared=True) == expected


class KnownByTheCable:
    """Signs in by something that no header shows, such as a client's certificate."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        from tests.djangoapp.views.site import User  # noqa: PLC0415 - Django loads this class by its path

        request.user = User(request.META.get("cable", ""))
        return self.get_response(request)


@pytest.mark.parametrize("shared", [False, True], ids=["bare", "shared"])
def test_a_signed_in_user_whom_nothing_in_the_request_tells(shared: bool, site: Site) -> None:  # noqa: FBT001
    site.set(MIDDLEWARE=[f"{__name__}.KnownByTheCable"])
    row = Row("user", lambda r: ok(r.user.name), ITSELF, ITSELF)
    assert cost(site, row, Visitor(cable="ada"), Visitor(cable="ada"), shared=shared) == ITSELF


@pytest.mark.parametrize("shared", [False, True], ids=["bare", "shared"])
def test_users_whom_only_the_cable_tells_apart_though_they_have_equal_cookies(shared: bool, site: Site) -> None:  # noqa: FBT001
    site.set(MIDDLEWARE=[f"{__name__}.KnownByTheCable"])
    page = Page(lambda r: ok(r.user.name))
    site.serve(single_flight(shared=shared)(page))
    cookies = {"consent": "1"}
    assert texts(site.herd(page, Visitor(cookies, cable="ada"), Visitor(cookies, cable="bob"))) == ["ada", "bob"]


# Messages, the CSRF secret


def test_messages_that_are_shown_are_for_one_request(site: Site) -> None:
    page = Page(lambda r: ok(",".join(map(str, messages.get_messages(r)))))
    site.serve(single_flight(page))
    first = visitor("a", site)
    site.serve(lambda r: after(messages.info(r, "hello")))
    first.get()
    site.serve(single_flight(page))
    assert sorted(texts(site.herd(page, first, first.twin()))) == ["", "hello"] or page.runs == ITSELF


@pytest.mark.parametrize("body", [get_token, lambda r: render("{% csrf_token %}", r).content.decode()])
def test_a_csrf_token_that_the_request_did_not_bring(body: Any, site: Site) -> None:
    row = Row("token", lambda r: ok(body(r)), ITSELF, ITSELF)
    for shared in (False, True):
        assert cost(site, row, Visitor(), Visitor(), shared=shared) == ITSELF
    assert cost(site, row, site.sign_in("a"), site.sign_in("b"), shared=True) == ITSELF


def test_the_csrf_secret_in_the_session(site: Site) -> None:
    site.set(CSRF_USE_SESSIONS=True)
    first = site.sign_in("a")
    site.serve(lambda r: after(get_token(r)))
    first.get()  # has a secret in the session now
    row = Row("token", lambda r: after(get_token(r)), SHARED, ITSELF)
    assert cost(site, row, first, first.twin(), shared=True) == SHARED
    assert cost(site, row, first, site.sign_in("b"), shared=True) == ITSELF
    newcomer = site.sign_in("c")
    assert cost(site, row, newcomer, newcomer.twin(), shared=True) == ITSELF


@pytest.mark.skipif(django.VERSION < (6, 0), reason=f"{parts.NOT_APPLICABLE}Django 6.0 has a policy of its own")
def test_the_nonce_of_django(site: Site) -> None:
    site.set(
        MIDDLEWARE=["django.middleware.csp.ContentSecurityPolicyMiddleware"],
        SECURE_CSP={"script-src": ["<CSP_NONCE_SENTINEL>"]},
    )
    page = Page(lambda r: ok(str(r._csp_nonce)))
    site.serve(single_flight(shared=True)(page))
    for response in site.herd(page, Visitor(), Visitor()):
        assert response.content.decode() in response["Content-Security-Policy"]
    assert page.runs == ITSELF
    row = Row("no nonce", lambda r: ok(), SHARED, SHARED)
    assert cost(site, row, Visitor(), Visitor(), shared=True) == SHARED
