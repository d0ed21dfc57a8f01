"""The project with the admin installed, its database in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from tests.djangoapp.support import BACKEND, DATABASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

CONTRIB = [
    f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
]
PROCESSORS = [
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
]
SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": [*CONTRIB, "django_singleflight"],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": PROCESSORS},
        }
    ],
    "ROOT_URLCONF": "tests.djangoapp.admin.urls",
    "STATIC_URL": "/static/",
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
}


@pytest.fixture(scope="package", autouse=True)
def admin_project(project: None) -> Iterator[None]:
    """The admin, migrated."""
    with override_settings(**SETTINGS):
        call_command("migrate", verbosity=0)
        yield


@pytest.fixture(autouse=True)
def flights(server: Server) -> Iterator[None]:
    """The default group, and one cache, on the server of the test."""
    import singleflight_sync  # noqa: PLC0415 - the default group is configured by the project
    from django_singleflight import groups  # noqa: PLC0415 - the same

    location = f"redis://127.0.0.1:{server.port}/{DATABASE}"
    caches = {"default": {"BACKEND": BACKEND, "LOCATION": location}}
    with override_settings(SINGLEFLIGHT={"URL": server.url}, CACHES=caches):
        yield
        groups.close()
        singleflight_sync.close()
