"""What is told of an answer: in the log once for each view and reason, and in ``Cache-Status`` (RFC 9211)."""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpResponse

from django_singleflight import limits

logger = logging.getLogger("django_singleflight")

MISS = "fwd=miss"
COLLAPSED = "fwd=miss; collapsed"
HIT = "hit"

_told: set[tuple[str, str]] = set()  # views and what was logged of them


def tell(view: str, text: str, *, warn: bool = False) -> None:
    """Log something of a view, once in this process. ``text``: ``""`` where there is nothing to tell."""
    if text and (view, text) not in _told:
        _told.add((view, text))
        logger.log(logging.WARNING if warn else logging.INFO, "%s: %s", view, text)


def bypass(reason: str) -> str:
    """The status of an answer that is for one visitor alone."""
    return f"fwd=bypass; detail={reason}"


def marked(response: Any, status: str) -> Any:
    """The response, with its status if the settings ask for it."""
    if limits.cache_status() and isinstance(response, HttpResponse):
        before = response.get("Cache-Status")
        mine = f"singleflight; {status}"
        response.headers["Cache-Status"] = f"{before}, {mine}" if before else mine
    return response
