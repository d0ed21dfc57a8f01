"""Random views and random visitors: each visitor gets what the bare view would have given to him."""

# ruff: noqa: ARG002, ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import _unmask_cipher_token, get_token
from django.utils.translation import get_language

from django_singleflight import single_flight
from tests.djangoapp.views.site import MIDDLEWARE, Page, Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.djangoapp.views.site import Site

SEEDS = int(os.environ.get("SINGLEFLIGHT_TEST_SEEDS", "40"))


class SecretError(Exception):
    """Tells what its view has seen."""


class Tells:
    """Middleware that answers exceptions with their text."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return HttpResponse(f"told {exception}", status=500) if "seen" in str(exception) else None


def token(request: HttpRequest) -> str:
    return str(_unmask_cipher_token(get_token(request)))


PROBES: dict[str, Callable[[Any], Any]] = {
    "session": lambda r: r.session.get("name"),
    "session in the way of a dict": lambda r: "name" in r.session and r.session["name"],
    "user": lambda r: r.user.name,
    "signed in": lambda r: r.user.is_authenticated,
    "a cookie": lambda r: r.COOKIES.get("a"),
    "whether there is a cookie": lambda r: "b" in r.COOKIES,
    "all cookies": lambda r: sorted((name, value) for name, value in r.COOKIES.items() if name in "ab"),
    "the cookies as a header": lambda r: "a=1" in r.META.get("HTTP_COOKIE", ""),
    "Accept": lambda r: r.headers.get("Accept"),
    "whether JSON is wanted": lambda r: r.accepts("application/json"),
    "X-A": lambda r: r.headers.get("X-A"),
    "X-B in META": lambda r: r.META.get("HTTP_X_B"),
    "whether there is X-B": lambda r: "HTTP_X_B" in r.META,
    "all headers": lambda r: sorted((name, value) for name, value in r.headers.items() if name.startswith("X-")),
    "Authorization": lambda r: r.headers.get("Authorization"),
    "REMOTE_USER": lambda r: r.META.get("REMOTE_USER"),
    "the address": lambda r: r.META["REMOTE_ADDR"],
    "Content-Type": lambda r: r.content_type,
    "the tracing": lambda r: r.headers.get("X-Request-Id"),
    "the host": lambda r: r.get_host() + str(r.get_port()) + r.build_absolute_uri(),
    "the query": lambda r: r.GET.get("q"),
    "the method": lambda r: r.method,
    "the language": lambda r: get_language(),
    "messages": lambda r: [str(each) for each in messages.get_messages(r)],
    "the number of messages": lambda r: len(messages.get_messages(r)),
    "the token": token,
    "what was seen before": lambda r: r.session.setdefault("before", r.session.get("name")),
}
HEADERS: list[dict[str, str]] = [
    *({} for _ in range(12)),
    *({"Cache-Control": value} for value in ("no-store", "private", "no-cache", "max-age=5", "Private, no-cache")),
    *({"Vary": value} for value in ("X-A", "x-b , Accept", "Cookie", "*", "Authorization", "X-Request-ID")),
    {"Set-Cookie": "x=y"},
]
VISITORS: dict[str, list[Any]] = {
    "HTTP_ACCEPT": ["text/html", "application/json", None],
    "HTTP_X_A": ["1", "2", "", None],
    "HTTP_X_B": ["1", "2", None, None, None],
    "HTTP_AUTHORIZATION": ["Bearer 1", "Bearer 2", None, None, None],
    "REMOTE_USER": ["ada", "bob", None, None, None, None],
    "REMOTE_ADDR": ["10.0.0.1", "10.0.0.2"],
    "HTTP_ACCEPT_LANGUAGE": ["de", "fr", None],
    "HTTP_HOST": ["a.example", "b.example", "a.example:81"],
    "CONTENT_TYPE": ["text/a", None, None, None],
    "HTTP_X_REQUEST_ID": ["1", "2", None],
}


class Plan(NamedTuple):
    """A random view, its decorator, and its visitors."""

    probes: list[str]
    headers: dict[str, str]
    status: int
    raises: bool
    options: dict[str, Any]
    visitors: list[int]
    path: str

    def body(self, request: HttpRequest) -> HttpResponse:
        """What the view answers."""
        seen = "; ".join(f"{name}: {PROBES[name](request)!r}" for name in self.probes)
        if self.raises:
            raise SecretError(f"seen {seen}")
        return HttpResponse(seen, status=self.status, headers=self.headers)


def plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    options = {
        "shared": chance.random() < 0.8,
        "ttl": chance.choice([0, 0, 60]),
        "vary_on": chance.choice([(), (), "X-A", lambda r: r.GET.get("q"), ["X-B", lambda r: r.user.name]]),
    }
    return Plan(
        chance.sample(sorted(PROBES), chance.choice([0, 1, 1, 2, 2, 3, 5])),
        chance.choice(HEADERS),
        chance.choice([200, 200, 200, 200, 201, 302, 404, 500]),
        chance.random() < 0.1,
        options,
        [chance.randrange(6) for _ in range(8)],
        f"/{seed}/{chance.choice(['', '?q=1'])}",
    )


def visitors(seed: int, site: Site) -> list[Visitor]:
    """Six visitors; some of them look the same in much."""
    chance = random.Random(f"visitors {seed}")
    made = []
    base = {name: chance.choice(values) for name, values in VISITORS.items()}
    for _ in range(6):
        mine = {
            name: chance.choice(values) if chance.random() < 0.2 else base[name] for name, values in VISITORS.items()
        }
        environ = {name: value for name, value in mine.items() if value is not None}
        cookies = {name: chance.choice("12") for name in "ab" if chance.random() < 0.3}
        if chance.random() < 0.5:
            cookies["csrftoken"] = chance.choice("xy") * 32
        name = chance.choice(["", "", "ada", "bob"])
        made.append(site.sign_in(name, cookies, **environ) if name else Visitor(cookies, **environ))
    return made


def facts(response: Any) -> tuple[int, str]:
    """What must be equal; a secret that the response itself brings along is the visitor's own."""
    text = response.content.decode()
    if "csrftoken" in response.cookies:
        text = text.replace(response.cookies["csrftoken"].value, "his own")
    return response.status_code, text


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_visitor_gets_what_is_his(seed: int, site: Site) -> None:
    loads = ["tests.djangoapp.views.site.LoadsTheUser"] if seed % 3 == 0 else []
    site.set(MIDDLEWARE=[*MIDDLEWARE, *loads, f"{__name__}.Tells"])
    mine, people = plan(seed), visitors(seed, site)
    site.serve(mine.body)
    expected = [facts(people[number].twin().get(mine.path)) for number in mine.visitors]
    page = Page(mine.body)
    site.serve(single_flight(**mine.options)(page))
    calls = [site.start(people[mine.visitors[0]].twin(), mine.path)]
    assert page.running.wait(20)
    calls += [site.start(people[number].twin(), mine.path) for number in mine.visitors[1:]]
    page.go_on.set()
    assert [facts(call.result(20)) for call in calls] == expected
    assert [facts(people[number].twin().get(mine.path)) for number in mine.visitors] == expected
