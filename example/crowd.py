"""A crowd of visitors: ordinary HTTP requests, all at once, for one page."""

from __future__ import annotations

import http.client
import threading
from urllib.parse import urlencode

from example import journal

SIZE = 100
PATIENCE = 120.0
"""Seconds that a visitor waits for the page."""

TRIES = 3
"""As browsers do, a visitor whose connection breaks asks again."""


def come(port: int, question: str) -> None:
    """Send them all; returns at once."""
    for _ in range(SIZE):
        threading.Thread(target=_visit, args=(port, question), name="visitor", daemon=True).start()


def _visit(port: int, question: str) -> None:
    journal.note("arrived")
    for _ in range(TRIES):
        try:
            ok = _get(port, f"/ask/?{urlencode({'question': question, 'crowd': 1})}")
        except (OSError, http.client.HTTPException):
            continue
        journal.note("answered" if ok else "lost")
        return
    journal.note("lost")


def _get(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    return response.status == http.client.OK
