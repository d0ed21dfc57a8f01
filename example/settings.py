"""The demo site's settings. ``manage.py demo`` says where its directory is; a checkout needs nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from django.core.management.utils import get_random_secret_key

DIRECTORY = Path(
    os.environ.get("EXAMPLE_DIRECTORY") or Path(tempfile.gettempdir()) / f"singleflight-example-{os.getuid()}"
)
SECONDS = float(os.environ.get("EXAMPLE_SECONDS", "6"))
"""How long the model takes to answer."""

SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "/static/"
ROOT_URLCONF = "example.urls"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_singleflight",
    "example",
]
MIDDLEWARE = [
    "example.csp.strict",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DIRECTORY / "db.sqlite3", "OPTIONS": {"timeout": 20}}
}

SINGLEFLIGHT = {"URL": os.environ.get("SINGLEFLIGHT_URL", "embedded://"), "NAMESPACE": "demo:flight"}
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"singleflight_sync": {"level": "ERROR"}},
}
"""That the embedded server serves one machine only is what the demo wants."""
