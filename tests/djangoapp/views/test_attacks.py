"""Nothing of one visitor reaches another one: attempts, each with two real clients on one page."""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template import engines
from django.utils.cache import patch_vary_headers
from django.views.decorators.csrf import csrf_exempt

from django_singleflight.decorators import single_flight
from django_singleflight.envelope import EnvelopeCodec, Terms
from django_singleflight.envelope import Page as Copy
from singleflight_sync import PickleCodec, default_group
from tests.djangoapp.views.site import MIDDLEWARE, Page, User, Visitor, statuses, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.djangoapp.views.site import Site
    from tests.support.servers import Server

HERE = __name__
both = pytest.mark.parametrize("shared", [False, True], ids=["bare", "shared"])


class OtherCookie:
    """Signs in by a cookie of its own."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.user = User(request.COOKIES.get("who", ""))
        return self.get_response(request)


class ApiKey(OtherCookie):
    """Signs in by a header."""

    def __call__(self, request: HttpRequest) -> Any:
        request.user = User(request.headers.get("X-Api-Key", ""))
        return self.get_response(request)


class RemoteUser(OtherCookie):
    """Signs in as the server in front says."""

    def __call__(self, request: HttpRequest) -> Any:
        request.user = User(request.META.get("REMOTE_USER", ""))
        return self.get_response(request)


class Address(OtherCookie):
    """Signs in by the address."""

    def __call__(self, request: HttpRequest) -> Any:
        request.user = User(request.META["REMOTE_ADDR"])
        return self.get_response(request)


def name(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.user.name))


def served(site: Site, body: Callable[..., Any], *, shared: bool = True, **options: Any) -> Page:
    page = Page(body)
    site.serve(single_flight(shared=shared, **options)(page))
    return page


def bodies(site: Site, page: Page, *visitors: Visitor, later: Visitor | None = None) -> list[str]:
    return texts([*site.herd(page, *visitors), *([later.get()] if later else [])])


# What Django's own cache of pages leaked


@both
@pytest.mark.parametrize("order", [MIDDLEWARE, [*MIDDLEWARE, "tests.djangoapp.views.site.LoadsTheUser"]])
def test_a_session_cookie_that_is_saved_on_every_request(order: Any, shared: bool, site: Site) -> None:  # noqa: FBT001
    site.set(SESSION_SAVE_EVERY_REQUEST=True, MIDDLEWARE=order)
    page = served(site, lambda r: HttpResponse("x"), shared=shared, ttl=60)
    ada, bob = site.sign_in("ada"), site.sign_in("bob")
    keys = [each.client.session.session_key for each in (ada, bob)]
    got = site.herd(page, ada, ada.twin(), *([bob] if shared else []))
    for response, key in zip(got, [keys[0], keys[0], keys[1]], strict=False):
        assert response.cookies["sessionid"].value == key
    assert bob.get().cookies["sessionid"].value == keys[1]
    assert Visitor().get().cookies.get("sessionid") is None


def test_vary_on_everything(site: Site) -> None:
    page = served(site, lambda r: HttpResponse(r.GET.get("x", ""), headers={"Vary": " * "}), ttl=60)
    assert len(bodies(site, page, Visitor(), Visitor(), later=Visitor())) == page.runs == 3


@pytest.mark.parametrize("directive", ["No-Store", "PRIVATE", "x=1, NO-STORE", "\tPrivate ,x"])
def test_directives_in_capitals(directive: str, site: Site) -> None:
    page = served(site, lambda r: HttpResponse(headers={"Cache-Control": directive}), ttl=60)
    site.herd(page, Visitor(), Visitor())
    assert page.runs == 2


def test_authorization(site: Site) -> None:
    page = served(site, lambda r: HttpResponse(r.headers.get("Authorization", "")), ttl=60)
    first = site.start(Visitor(HTTP_AUTHORIZATION="Bearer ada"))
    assert page.running.wait(20)
    others = [Visitor(HTTP_AUTHORIZATION="Bearer bob"), Visitor(HTTP_AUTHORIZATION=""), Visitor()]
    assert texts([each.get() for each in others]) == ["Bearer bob", "", ""]  # and nobody waits
    page.go_on.set()
    assert first.result(20).content == b"Bearer ada"
    assert page.runs == 4


@pytest.mark.parametrize("vary", ["Cookie", " Accept ,  COOKIE\t", "Accept,,Cookie,", "cookie , *"])
def test_blanks_in_vary(vary: str, site: Site) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        return HttpResponse("x", headers={"Vary": vary})

    page = served(site, body, ttl=60)
    site.herd(page, Visitor({"a": "1"}), Visitor({"a": "2"}))
    assert page.runs == 2


@both
def test_a_cookie_is_set_while_the_request_carries_another_one(shared: bool, site: Site) -> None:  # noqa: FBT001
    numbers = iter("12345")

    def body(request: HttpRequest) -> HttpResponse:
        response = HttpResponse("x")
        response.set_cookie("secret", next(numbers))
        return response

    page = served(site, body, shared=shared, ttl=60)
    ada = Visitor({"consent": "1"})
    got = [*site.herd(page, ada, ada.twin()), Visitor({"consent": "1"}).get()]
    assert len({response.cookies["secret"].value for response in got}) == page.runs == 3


@both
def test_a_header_that_is_absent_and_one_that_is_empty(shared: bool, site: Site) -> None:  # noqa: FBT001
    page = served(site, lambda r: HttpResponse(repr(r.headers.get("X-A"))), shared=shared, ttl=60)
    page.go_on.set()
    assert texts([Visitor().get(), Visitor(HTTP_X_A="").get(), Visitor().get()]) == ["None", "''", "None"]
    assert page.runs == 2


# Other ways to sign in


@both
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    ("middleware", "known"),
    [
        ("OtherCookie", lambda who: Visitor({"who": who, "consent": "1"})),
        ("ApiKey", lambda who: Visitor({"consent": "1"}, HTTP_X_API_KEY=who)),
        ("RemoteUser", lambda who: Visitor({"consent": "1"}, REMOTE_USER=who)),
        ("Address", lambda who: Visitor({"consent": "1"}, REMOTE_ADDR=who)),
        ("Address", lambda who: Visitor(REMOTE_ADDR=who)),
    ],
    ids=["cookie", "X-Api-Key", "REMOTE_USER", "address", "address alone"],
)
def test_a_signed_in_name(middleware: str, known: Any, loaded: bool, shared: bool, site: Site) -> None:  # noqa: FBT001
    after = ["tests.djangoapp.views.site.LoadsTheUser"] if loaded else []
    site.set(MIDDLEWARE=[f"{HERE}.{middleware}", *after])
    page = served(site, name, shared=shared, ttl=60)
    page.go_on.set()
    calls = [site.start(known(who)) for who in ["ada", "bob", "ada", "eve"]]
    assert texts([call.result(20) for call in calls]) == ["ada", "bob", "ada", "eve"]
    assert texts([known(who).get() for who in ["bob", "ada", ""]]) == ["bob", "ada", ""]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_signed_in_name_that_waits_for_another_one(loaded: bool, site: Site) -> None:  # noqa: FBT001
    site.set(MIDDLEWARE=[*MIDDLEWARE, *(["tests.djangoapp.views.site.LoadsTheUser"] if loaded else [])])
    page = served(site, name, ttl=60)
    people = [site.sign_in("ada"), site.sign_in("bob"), Visitor()]
    assert bodies(site, page, *people, later=site.sign_in("eve")) == ["ada", "bob", "", "eve"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ user.name }}",
        "{{ request.user.name }}",
        "{{ request.session.name }}",
        "{% if user.is_authenticated %}in{% endif %}{{ user.name }}",
        "{% with u=user %}{{ u.name }}{% endwith %}",
        "{{ request.COOKIES.sessionid }}",
        "{{ request.META.HTTP_COOKIE }}",
        "{{ request.headers.Cookie }}",
        "{{ request.headers }}",
        "{{ request.META }}",
        "{{ request.environ }}",
        "{{ request.session.items }}",
        "{{ perms }}{{ perms.ada }}{{ perms.bob }}",
    ],
)
def test_a_template_that_prints_the_visitor(source: str, site: Site) -> None:
    page = served(site, lambda r: HttpResponse(engines["django"].from_string(source).render({}, r)), ttl=60)
    ada, bob = site.sign_in("ada"), site.sign_in("bob")
    first, second = bodies(site, page, ada, bob)
    assert first != second
    assert page.runs == 2


class HoldsACart(OtherCookie):
    """Makes something that holds the session itself."""

    def __call__(self, request: HttpRequest) -> Any:
        request.cart = SimpleNamespace(session=request.session)
        return self.get_response(request)


def test_a_cart_that_middleware_has_made_of_the_session(site: Site) -> None:
    site.set(MIDDLEWARE=[*MIDDLEWARE, f"{HERE}.HoldsACart"])
    page = served(site, lambda r: HttpResponse(r.cart.session["name"]), ttl=60)
    assert bodies(site, page, site.sign_in("ada"), site.sign_in("bob"), later=site.sign_in("eve")) == [
        "ada",
        "bob",
        "eve",
    ]


def test_messages(site: Site) -> None:
    site.serve(lambda r: messages.info(r, r.GET["m"]) or HttpResponse())
    ada, bob = site.sign_in("ada"), site.sign_in("bob")
    ada.get("/?m=for+ada")
    bob.get("/?m=for+bob")
    page = served(site, lambda r: HttpResponse(", ".join(map(str, messages.get_messages(r)))), ttl=60)
    assert bodies(site, page, ada, bob) == ["for ada", "for bob"]
    assert texts([ada.get(), bob.get()]) == ["", ""]


@both
def test_both_visitors_posts_succeed_who_came_without_a_cookie(shared: bool, site: Site) -> None:  # noqa: FBT001
    def form(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            return HttpResponse("posted")
        return HttpResponse(engines["django"].from_string("{% csrf_token %}").render({}, request))

    page = served(site, form, shared=shared, ttl=60)
    visitors = [Visitor(), Visitor()]
    tokens = [re.findall('value="(.*?)"', text)[0] for text in bodies(site, page, *visitors)]
    for visitor, token in zip(visitors, tokens, strict=True):
        assert visitor.client.post("/", {"csrfmiddlewaretoken": token}).content == b"posted"
    assert visitors[0].client.post("/", {"csrfmiddlewaretoken": tokens[1]}).status_code == 403
    # with a cookie of their own, each tab's post succeeds, too
    page = served(site, form, shared=shared, ttl=60)
    tab = visitors[0].twin()
    got = texts(site.herd(page, visitors[0], tab, path="/other"))
    assert page.runs == 1
    for each, text in zip((visitors[0], tab), got, strict=True):
        token = re.findall('value="(.*?)"', text)[0]
        assert each.client.post("/", {"csrfmiddlewaretoken": token}).content == b"posted"


def test_a_follower_of_a_page_with_a_token_keeps_his_cookie_alive(site: Site) -> None:
    page = served(site, lambda r: HttpResponse(get_token(r) and "x"), shared=False)
    visitor = Visitor({"csrftoken": "c" * 32})
    got = site.herd(page, visitor, visitor.twin())
    assert page.runs == 1
    assert [response.cookies["csrftoken"].value for response in got] == ["c" * 32] * 2
    assert all("Cookie" in response["Vary"] for response in got)


def test_a_failure_that_is_shared_keeps_the_cookie_alive_too(site: Site) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        raise ValueError(get_token(request))

    page = served(site, body, shared=False)
    visitor = Visitor({"csrftoken": "c" * 32})
    got = site.herd(page, visitor, visitor.twin())
    assert page.runs == 1
    assert [response.cookies["csrftoken"].value for response in got] == ["c" * 32] * 2


@pytest.mark.parametrize("body", [name, lambda r: HttpResponse(r.session.get("name"))], ids=["user", "session"])
def test_who_gets_a_personal_page_from_another_tab_is_told_to_vary_on_cookies(body: Any, site: Site) -> None:
    page = served(site, body, shared=False)
    ada = site.sign_in("ada")
    got = site.herd(page, ada, ada.twin())
    assert page.runs == 1
    assert [response["Vary"] for response in got] == ["Accept-Language, Cookie"] * 2 or [
        response["Vary"] for response in got
    ] == ["Cookie, Accept-Language"] * 2


def test_one_visitors_403_and_404(site: Site) -> None:
    from django.core.exceptions import PermissionDenied  # noqa: PLC0415 - used here alone
    from django.http import Http404  # noqa: PLC0415

    for error in (PermissionDenied, Http404):

        def body(request: HttpRequest, error: Any = error) -> HttpResponse:
            if request.GET.get("never") or body.calls == 0:  # type: ignore[attr-defined]
                body.calls = 1  # type: ignore[attr-defined]
                raise error
            return HttpResponse("yours")

        body.calls = 0  # type: ignore[attr-defined]
        page = served(site, body, ttl=60)
        got = site.herd(page, Visitor(), Visitor(), Visitor())
        assert statuses(got)[1:] == [200, 200]
        assert statuses(got)[0] in {403, 404}


# Things planted in Redis


def plant(server: Server, site: Site, data: Callable[[str], bytes], page: Page) -> Any:
    """Put bytes where the page's result is looked for."""
    group = default_group()
    keys: list[str] = []
    done = group.subscribe(lambda event: keys.append(event.key))
    Visitor().get()
    done()
    client = server.client()
    client.set(group._names(keys[0]).result, data(keys[0]), px=60_000)
    return Visitor().get()


def forged(key: str) -> Copy:
    return Copy(Terms(), "plain", 200, None, None, (("Content-Type", "text/html"),), {}, "", b"planted")


@pytest.mark.parametrize(
    "data",
    [
        lambda key: b"1:" + EnvelopeCodec(key + "x").dumps(forged(key)),
        lambda key: b"1:" + EnvelopeCodec(key).dumps(forged(key))[:-1] + b"X",
        lambda key: b"1:V1" + b"\x00" * 32 + EnvelopeCodec(key).dumps(forged(key))[34:],
        lambda key: b"1:" + PickleCodec("a secret of the tests").dumps(forged(key)),
        lambda key: b"1:cos\nsystem\n(S'false'\ntR.",
        lambda key: b"1:",
        lambda key: b"",
        lambda key: b"planted",
    ],
    ids=["another key", "another body", "no signature", "a signed pickle", "a pickle", "nothing", "empty", "text"],
)
def test_a_planted_result(data: Any, site: Site, server: Server) -> None:
    page: Page = served(site, lambda r: HttpResponse(f"run {page.runs}"))
    page.go_on.set()
    assert plant(server, site, data, page).content == b"run 2"


@pytest.mark.parametrize("event", ["succeeded", "failed"])
def test_a_planted_end(event: str, site: Site, server: Server) -> None:
    """Whoever writes into the log of a flight reaches nobody with an answer."""
    page = served(site, lambda r: HttpResponse("true"))
    first = site.start(Visitor())
    assert page.running.wait(20)
    group, client = default_group(), server.client()
    (info,) = _until(group.live)
    names = group._names(info.key)
    (stream,) = [key for key in client.keys("*stream*") if names.tag.encode() in key]
    group.part(info.key)  # whoever comes now asks Redis
    second = site.start(Visitor())
    _until(lambda: int(client.hget(client.keys("*meta*")[0], "followers") or 0) == 1)
    error = b'{"v": 1, "module": "django.http.response", "name": "Http404", "message": "planted", "args": ["planted"]}'
    fields: Any = {"event": event, "token": str(info.fencing_token), "value": b"planted", "error": error, "nonce": "x"}
    client.xadd(stream, fields)
    assert second.result(20).content == b"true"
    page.go_on.set()
    assert first.result(20).status_code == 200


def _until(condition: Callable[[], Any]) -> Any:
    from tests.support.waiting import eventually  # noqa: PLC0415

    return eventually(condition, within=10)


# Objects that are used again


@pytest.mark.parametrize("headers", [{}, {"Cache-Control": "no-store"}], ids=["shared", "not shared"])
def test_a_response_object_that_the_view_returns_twice_gathers_nothing(headers: Any, site: Site) -> None:
    again = HttpResponse("x", headers={"X-Mine": "1", **headers})
    page = served(site, lambda r: again, shared=False)
    page.go_on.set()
    site.set(SESSION_SAVE_EVERY_REQUEST=True)
    ada, bob = site.sign_in("ada"), site.sign_in("bob")
    got = [ada.get(), bob.get(), ada.get(), Visitor().get()]
    values = [response.cookies["sessionid"].value if "sessionid" in response.cookies else None for response in got]
    assert values[0] == values[2] != values[1]
    assert values[3] is None
    assert [response["X-Mine"] for response in got] == ["1"] * 4
    assert len({id(response) for response in got}) == 4


def test_a_follower_cannot_change_the_page_of_another_one(site: Site) -> None:
    page = served(site, lambda r: HttpResponse("x"))
    got = site.herd(page, *(Visitor() for _ in range(4)))
    assert page.runs == 1
    assert len({id(response) for response in got}) == 4
    got[1].content = b"changed"
    got[1]["X"] = "changed"
    assert texts(got) == ["x", "changed", "x", "x"]
    assert not any(response.has_header("X") for response in (got[0], *got[2:]))


# Passing through


@pytest.mark.parametrize(
    ("method", "environ"),
    [
        *((method, {}) for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")),
        ("GET", {"CONTENT_LENGTH": "3"}),
        ("GET", {"HTTP_TRANSFER_ENCODING": "chunked"}),
        *(("GET", {f"HTTP_X_{name}": "PUT"}) for name in ("HTTP_METHOD_OVERRIDE", "METHOD_OVERRIDE", "HTTP_METHOD")),
    ],
)
def test_requests_that_pass_through(method: str, environ: Any, site: Site) -> None:
    page = served(site, csrf_exempt(lambda r: HttpResponse("x")), ttl=60)
    page.go_on.set()
    visitor = Visitor()
    visitor.client.handler.enforce_csrf_checks = False
    for _ in range(2):
        visitor.client.generic(method, "/", **environ)
    assert page.runs == 2


def test_head_and_get_do_not_share(site: Site) -> None:
    page = served(site, lambda r: HttpResponse(r.method), ttl=60)
    page.go_on.set()
    assert Visitor().get().content == b"GET"
    assert Visitor().client.head("/").status_code == 200
    assert page.runs == 2


def test_a_host_that_is_none_of_ours_is_a_400_before_any_flight(site: Site) -> None:
    site.set(ALLOWED_HOSTS=["a.example"])
    page = served(site, lambda r: HttpResponse("x"), ttl=60)
    page.go_on.set()
    assert Visitor(HTTP_HOST="a.example").get().status_code == 200
    assert Visitor(HTTP_HOST="b.example").get().status_code == 400
    assert page.runs == 1


def test_two_hosts_have_two_pages(site: Site) -> None:
    page = served(site, lambda r: HttpResponse(r.get_host()), ttl=60)
    page.go_on.set()
    assert texts([Visitor(HTTP_HOST=host).get() for host in ("a.b", "c.d", "a.b")]) == ["a.b", "c.d", "a.b"]
    assert page.runs == 2


def test_the_language_that_a_view_activates_travels(site: Site) -> None:
    from django.utils import translation  # noqa: PLC0415

    def body(request: HttpRequest) -> HttpResponse:
        translation.activate("fr")
        return HttpResponse("x")

    page = served(site, body)
    got = site.herd(page, Visitor(HTTP_ACCEPT_LANGUAGE="de"), Visitor(HTTP_ACCEPT_LANGUAGE="de"))
    assert page.runs == 1
    assert [response["Content-Language"] for response in got] == ["fr", "fr"]


def test_visitors_with_different_languages_do_not_meet(site: Site) -> None:
    from django.utils.translation import get_language  # noqa: PLC0415

    page = served(site, lambda r: HttpResponse(get_language()), ttl=60)
    page.go_on.set()
    assert texts([Visitor(HTTP_ACCEPT_LANGUAGE=each).get() for each in ("de", "fr", "de")]) == ["de", "fr", "de"]
    assert page.runs == 2


def test_a_nested_view_is_not_shared_by_itself(site: Site) -> None:
    inner = Page(lambda r: HttpResponse(r.COOKIES.get("a")))
    inner.go_on.set()
    decorated = single_flight(shared=True, ttl=60)(inner)
    page = served(site, lambda r, **_: decorated(r), ttl=60)
    assert bodies(site, page, Visitor({"a": "1"}), Visitor({"a": "2"}), later=Visitor({"a": "3"})) == ["1", "2", "3"]


def test_a_view_that_calls_a_shared_one_and_looks_at_nothing_is_shared(site: Site) -> None:
    inner: Any = single_flight(shared=True)(lambda r: HttpResponse("x"))
    page = served(site, lambda r, **_: inner(r))
    assert bodies(site, page, Visitor({"a": "1"}), Visitor({"a": "2"})) == ["x", "x"]
    assert page.runs == 1


def test_a_view_that_calls_itself_by_another_address(site: Site) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        return decorated(request) if body.depth.pop() else HttpResponse("end")  # type: ignore[attr-defined]

    body.depth = [False, True, True]  # type: ignore[attr-defined]
    decorated = single_flight(body)
    site.serve(decorated)
    assert Visitor().get().content == b"end"


def test_vary_that_a_decorator_below_adds(site: Site) -> None:
    from django.views.decorators.vary import vary_on_cookie  # noqa: PLC0415

    page = Page(vary_on_cookie(lambda r: HttpResponse("x")), hold=2)
    site.serve(single_flight(shared=True)(page))
    got = site.herd(page, Visitor({"a": "1"}), Visitor({"a": "2"}), Visitor({"a": "2"}), again=1)
    assert page.runs == 2  # one more flight, keyed by it
    patch_vary_headers(got[0], ["X"])
    assert all("Cookie" in response["Vary"] for response in got)
