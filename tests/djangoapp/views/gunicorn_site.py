"""A Django site for a real WSGI server: one view for each thing that could leak.

The environment says which Redis (``SITE_REDIS``) and which directory (``SITE_DIRECTORY``): for the database, for the
journal of runs, and for the file ``go`` without which the slow views do not go on.
"""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

HERE = Path(os.environ["SITE_DIRECTORY"])
CONTRIB = [f"django.contrib.{name}" for name in ("contenttypes", "auth", "sessions", "messages")]

settings.configure(
    SECRET_KEY="a secret of the tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[*CONTRIB, "django_singleflight"],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(HERE / "db"),
            "OPTIONS": {"timeout": 20},
            "ATOMIC_REQUESTS": True,
        }
    },
    USE_TZ=True,
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    SINGLEFLIGHT={"URL": os.environ["SITE_REDIS"], "CACHE_STATUS": True, "LEASE": 2, "HEARTBEAT": 0.5},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)

import django  # noqa: E402

django.setup()

from django.contrib import messages  # noqa: E402
from django.contrib.auth import get_user_model, login  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.template import engines  # noqa: E402
from django.urls import path  # noqa: E402

from django_singleflight import single_flight  # noqa: E402
from singleflight_sync import FlightFollowed, subscribe  # noqa: E402
from tests.support.flights import Journal  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from singleflight_sync import FlightEvent

journal = Journal(HERE / "journal")


def slow(name: str, body: Callable[[HttpRequest], HttpResponse], **options: Any) -> Any:
    """A view that is noted, and waits for the file ``go``."""

    def view(request: HttpRequest) -> HttpResponse:
        journal.note(name)
        until = time.monotonic() + 30
        while not (HERE / "go").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return body(request)

    view.__qualname__ = name
    return path(name, single_flight(**options)(view))


def render(source: str) -> Callable[[HttpRequest], HttpResponse]:
    return lambda request: HttpResponse(engines["django"].from_string(source).render({}, request))


def ready(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ready")


def sign_in(request: HttpRequest) -> HttpResponse:
    users = get_user_model().objects
    login(request, users.get_or_create(username=request.GET["name"])[0])
    messages.info(request, f"welcome, {request.GET['name']}")
    return HttpResponse("in")


def post(request: HttpRequest) -> HttpResponse:
    return HttpResponse("posted" if request.method == "POST" else "no")


def sets_a_cookie(request: HttpRequest) -> HttpResponse:
    response = HttpResponse("x")
    response.set_cookie("mine", os.urandom(8).hex())
    return response


urlpatterns = [
    path("", ready),
    path("sign-in", sign_in),
    path("post", post),
    slow("page", lambda request: HttpResponse("page"), shared=True),
    slow("name", render("hello {{ user.username }}"), shared=True),
    slow("messages", render("{% for m in messages %}{{ m }}{% endfor %}"), shared=True),
    slow("form", render("{% csrf_token %}"), shared=True),
    slow("cookie", sets_a_cookie, shared=True),
    slow("token", lambda request: HttpResponse(request.headers.get("Authorization", "")), shared=True),
    slow("language", lambda request: HttpResponse(request.headers.get("X-Language", "")), shared=True),
    slow("bare", render("hello {{ user.username }}")),
    slow("queue", lambda request: HttpResponse("page"), shared=True, max_waiting=1),
]

app = get_wsgi_application()


def note_who_waits(event: FlightEvent) -> None:
    """So that a test can tell from outside."""
    if isinstance(event, FlightFollowed):
        journal.note("waits")


subscribe(note_who_waits)
