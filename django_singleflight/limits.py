"""What ``SINGLEFLIGHT`` says of views. Read at each access, so that ``override_settings`` works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings

from django_singleflight import conf
from singleflight_sync import ConfigurationError

NAMES = frozenset({"IGNORED_HEADERS", "MAX_BODY", "UNSHARED_TTL", "CACHE_STATUS"})
"""The settings of views."""

_MAX_BODY = 10 * 1024 * 1024
_UNSHARED_TTL = 10.0
_LONGEST = 1e9


def ignored_headers() -> tuple[str, ...]:
    """Headers that identify nobody and differ from request to request, besides those that are known as such.

    Raises:
        ConfigurationError: it is no list of header names.
    """
    value = _given("IGNORED_HEADERS", ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
        raise ConfigurationError(f"IGNORED_HEADERS={value!r} must be a list of header names")
    return tuple(value)


def max_body() -> int:
    """Bytes of the largest body that is shared.

    Raises:
        ConfigurationError: it is no whole number.
    """
    value = _given("MAX_BODY", _MAX_BODY)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"MAX_BODY={value!r} must be a whole number of bytes, 0 or more")
    return value


def unshared_ttl() -> float:
    """For how many seconds it is remembered that a view's answer is not for others.

    Raises:
        ConfigurationError: it is no time.
    """
    value = _given("UNSHARED_TTL", _UNSHARED_TTL)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST:
        raise ConfigurationError(f"UNSHARED_TTL={value!r} must be seconds (0 or more) as a number or a timedelta")
    return float(value)


def cache_status() -> bool:
    """Whether responses tell in ``Cache-Status`` what became of them; by default under ``DEBUG``.

    Raises:
        ConfigurationError: it is neither True nor False.
    """
    value = _given("CACHE_STATUS", settings.DEBUG)
    if not isinstance(value, bool):
        raise ConfigurationError(f"CACHE_STATUS={value!r} must be True or False")
    return value


def _given(name: str, default: Any) -> Any:
    return conf.given().get(name, default)
