"""A WSGI application with flights, for real WSGI servers.

The environment says which server (``SITE_URL``), where executions are noted (``SITE_JOURNAL``), the group's
options (``SITE_OPTIONS``, JSON) and whether a flight is flown already while this module is imported
(``SITE_WARM``).

``/fly?key=&name=&work=`` runs a flight (``work`` as in ``flights.py``) and answers with its value; ``/``
answers ``ready``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import singleflight_sync as sfs
from tests.support.flights import Journal, do, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

journal = Journal(os.environ["SITE_JOURNAL"])
group = sfs.SingleFlight(url=os.environ["SITE_URL"], **json.loads(os.environ["SITE_OPTIONS"]))

if os.environ.get("SITE_WARM"):
    group.run("warm", lambda: time.sleep(0.3))  # long enough for a heartbeat


def fly(key: str, name: str = "value", work: str = "now") -> Any:
    """One flight; its value, or the class of its error."""

    def function() -> str:
        journal.note(name)
        if work.startswith("first "):  # the first execution works, the later ones return at once
            if len(journal) == 1:
                do(work.removeprefix("first "))
        elif work.startswith("spin "):  # in Python, without ever yielding to another greenlet
            until = time.monotonic() + float(work.removeprefix("spin "))
            while time.monotonic() < until:
                pass
        else:
            do(work)
        return name

    return outcome_of(lambda: group.run(key, function))[1]


def threads() -> list[str]:
    """The threads of the package in this worker."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("singleflight-"))


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    """The application."""
    path, query = environ["PATH_INFO"], dict(parse_qsl(environ.get("QUERY_STRING", "")))
    bodies: dict[str, Callable[[], str]] = {
        "/": lambda: "ready",
        "/fly": lambda: fly(**query),
        "/pid": lambda: str(os.getpid()),
        "/threads": lambda: " ".join(threads()),
    }
    body = bodies[path]()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body.encode()]
