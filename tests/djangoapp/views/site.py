"""A site with one page, visitors with cookies of their own, and herds of them that come while a page is made."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from django.test import Client, override_settings
from django.urls import re_path
from django.utils.functional import SimpleLazyObject

import singleflight_sync
from django_singleflight import telling
from django_singleflight.memory import memory
from singleflight_sync import default_group
from tests.support.idle import end_keeper
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from django.http import HttpRequest, HttpResponse

    from tests.support.servers import Server

APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "django.contrib.messages"]
HERE = "tests.djangoapp.views.site"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    f"{HERE}.SignIn",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]


class User:
    """A user without a table."""

    def __init__(self, name: str) -> None:
        self.pk = name or None
        self.name = name
        self.is_authenticated = bool(name)
        self.is_active = bool(name)

    def get_username(self) -> str:
        return self.name

    def get_all_permissions(self) -> set[str]:
        return {self.name}

    def has_module_perms(self, label: str) -> bool:
        return label in self.name


class SignIn:
    """Knows the user by the session, as ``django.contrib.auth`` does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.user = SimpleLazyObject(lambda: User(request.session.get("name", "")))
        return self.get_response(request)


class LoadsTheUser(SignIn):
    """Has looked at the user before the view does."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        str(request.user.is_authenticated)
        return self.get_response(request)


class Page:
    """A view's body that waits, in its first run, until the test lets it go on; and counts its runs.

    ``hold``: the number of another run that waits for ``go_on_again``.
    """

    def __init__(self, body: Callable[..., Any], *, hold: int = 0) -> None:
        self.body = body
        self.hold = hold
        self.go_on_again = threading.Event()
        self.runs = 0
        self.running = threading.Event()
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.runs += 1
            number = self.runs
        if number == 1:
            self.running.set()
            assert self.go_on.wait(20)
        elif number == self.hold:
            assert self.go_on_again.wait(20)
        return self.body(request, *args, **kwargs)


class Visitor:
    """A browser of its own."""

    def __init__(self, cookies: dict[str, str] | None = None, **environ: Any) -> None:
        self.environ = environ
        self.client = Client(raise_request_exception=False, enforce_csrf_checks=True, **environ)
        for name, value in (cookies or {}).items():
            self.client.cookies[name] = value

    def twin(self) -> Visitor:
        """The same browser once more: a second tab."""
        other = Visitor(**self.environ)
        other.client.cookies = self.client.cookies.copy()
        return other

    def get(self, path: str = "/", **extra: Any) -> Any:
        return self.client.get(path, **extra)


class Site:
    """Serves one view."""

    def __init__(self, server: Server) -> None:
        self._stack = ExitStack()
        self._pool = ThreadPoolExecutor(210)
        self.set(
            INSTALLED_APPS=[*APPS, "django_singleflight"],
            MIDDLEWARE=MIDDLEWARE,
            TEMPLATES=TEMPLATES,
            SESSION_ENGINE="django.contrib.sessions.backends.cache",
            CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
            SINGLEFLIGHT={"URL": server.url},
            LANGUAGES=[("en", "English"), ("de", "German"), ("fr", "French")],
        )

    def set(self, **settings: Any) -> None:
        """Change settings until the end of the test."""
        self._stack.enter_context(override_settings(**settings))

    def serve(self, view: Callable[..., Any]) -> None:
        """Have every address answered by this view."""
        self.set(ROOT_URLCONF=(re_path("", view),))

    def sign_in(self, name: str, cookies: dict[str, str] | None = None, **environ: Any) -> Visitor:
        """A visitor who is signed in."""
        visitor = Visitor(cookies, **environ)
        session = visitor.client.session
        session["name"] = name
        session.save()
        return visitor

    def start(self, visitor: Visitor, path: str = "/", **extra: Any) -> Future[Any]:
        """Let a visitor come, in a thread."""
        return self._pool.submit(visitor.get, path, **extra)

    def herd(self, page: Page, *visitors: Visitor, path: str = "/", again: int = 0, **extra: Any) -> list[Any]:
        """The first visitor has the page made; the others come meanwhile. What all of them get.

        ``again``: so many of them wait in a second flight, which the page holds.
        """
        first = self.start(visitors[0], path, **extra)
        assert page.running.wait(20)
        others = [self.start(visitor, path, **extra) for visitor in visitors[1:]]
        self.wait_for(len(others))
        page.go_on.set()
        if page.hold:
            eventually(lambda: page.runs == page.hold, within=10, what="the second flight")
            self.wait_for(again)
            page.go_on_again.set()
        return [call.result(20) for call in (first, *others)]

    def waiting(self) -> int:
        """How many threads wait for another one's answer."""
        rooms = default_group()._runtime().shared.rooms._rooms
        return sum(len(room.waiting) for room in list(rooms.values()))

    def wait_for(self, count: int) -> None:
        """Wait until so many threads wait for another one's answer."""
        eventually(lambda: self.waiting() == count, within=10, what=f"{count} threads wait")

    def close(self) -> None:
        """End all, and have the old settings again."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        singleflight_sync.close()
        self._stack.close()
        memory._known.clear()
        telling._told.clear()
        end_keeper()


def statuses(responses: list[Any]) -> list[int]:
    """The status codes."""
    return [response.status_code for response in responses]


def texts(responses: list[Any]) -> list[str]:
    """The bodies."""
    return [response.content.decode() for response in responses]
