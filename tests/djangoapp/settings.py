"""A small project; ``SINGLEFLIGHT_TEST_*`` say where its servers are."""

from __future__ import annotations

import json
import os
from typing import Any

SECRET_KEY = "a secret of the tests"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django_singleflight"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SINGLEFLIGHT_TEST_DB", ":memory:")}
}
ROOT_URLCONF = "tests.djangoapp.urls"
MIDDLEWARE: list[str] = []

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR"}},
}

CACHES: dict[str, Any] = {
    "default": {
        "BACKEND": "django_singleflight.cache.SingleFlightCache",
        "LOCATION": os.environ.get("SINGLEFLIGHT_TEST_CACHE", "redis://127.0.0.1:1/1"),
    }
}
SINGLEFLIGHT: dict[str, Any] = {"URL": os.environ.get("SINGLEFLIGHT_TEST_URL", "redis://127.0.0.1:1/0")}

# Single tests change what they need.
globals().update(json.loads(os.environ.get("SINGLEFLIGHT_TEST_SETTINGS", "{}")))
