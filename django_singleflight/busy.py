"""What a visitor gets whose flight came to no end: 503 or 504, and word when to come again."""

from __future__ import annotations

import logging

from django.http import HttpResponse
from django.template import loader
from django.utils.cache import add_never_cache_headers

from singleflight_sync import HardTimeoutError, SingleFlightError

logger = logging.getLogger("django_singleflight")

RETRY_AFTER = 5
"""Seconds; as long as a Redis that gives no answer is left alone."""

_SENTENCES = {
    503: "This page is busy at the moment. Please try again in a few seconds.",
    504: "This page takes too long at the moment. Please try again in a few seconds.",
}


def response_of(view: str, error: SingleFlightError) -> HttpResponse:
    """The project's ``503.html`` or ``504.html``, or a plain sentence; logs one warning."""
    status = 504 if isinstance(error, HardTimeoutError) else 503
    logger.warning("%s: %d, %s", view, status, error)
    response = _page(status)
    response.headers["Retry-After"] = str(RETRY_AFTER)
    add_never_cache_headers(response)
    response._has_been_logged = True  # noqa: SLF001 - else Django logs an error, and sends a mail
    return response


def _page(status: int) -> HttpResponse:
    try:
        return HttpResponse(loader.render_to_string(f"{status}.html"), status=status)
    except Exception:  # noqa: BLE001 - no such template, as a rule; in any case there is the sentence
        return HttpResponse(_SENTENCES[status], status=status, content_type="text/plain; charset=utf-8")
