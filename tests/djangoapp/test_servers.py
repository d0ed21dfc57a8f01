"""``get_or_set`` under gunicorn, with several worker processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import parts
from tests.support.gunicorn import Request, Site
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from tests.support.servers import Server

    Serve = Callable[..., Site]

QUICK = {"SINGLEFLIGHT": {"LEASE": 1.5, "HEARTBEAT": 0.5}}
MOST = 40  # requests until both workers are in the flight


@pytest.fixture
def serve(server: Server, tmp_path: Path) -> Iterator[Serve]:
    """Starts gunicorn with the project: ``serve("--workers", "2")``."""
    if importlib.util.find_spec("gunicorn") is None:
        parts.missing("no gunicorn: install the extra 'test'")
    sites = []
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.djangoapp.settings",
        "SINGLEFLIGHT_TEST_CACHE": f"redis://127.0.0.1:{server.port}/1",
        "SINGLEFLIGHT_TEST_URL": server.url,
        "SINGLEFLIGHT_TEST_SETTINGS": json.dumps(QUICK),
    }

    def start(*words: str) -> Site:
        command = [sys.executable, "-m", "gunicorn", "--bind", "{bind}", "--worker-tmp-dir", str(tmp_path), *words]
        sites.append(Site([*command, "tests.djangoapp.wsgi"], tmp_path / "gunicorn.log", environment))
        return sites[-1]

    yield start
    for site in sites:
        site.stop()


@pytest.fixture
def raw(server: Server) -> redis.Redis:
    """The database of the pages."""
    return server.client()


def visit(site: Site, path: str, cache: Any, least: int) -> list[Request]:
    """Send ``least`` requests, and more until both workers are in the flight: the kernel deals them out as it likes."""

    def is_followed() -> bool:
        info = cache.flights.peek(cache.make_key("k"))
        return info is not None and info.followers >= 1

    requests: list[Request] = []
    while len(requests) < least or not joined(is_followed):
        assert len(requests) < MOST, "one worker gets all requests"
        requests.append(Request(site, path))
    return requests


def joined(is_followed: Callable[[], bool]) -> bool:
    with suppress(AssertionError):
        return eventually(is_followed, within=0.5)
    return False


THREADS = ["--worker-class", "gthread", "--threads", "4"]


@pytest.mark.parametrize("words", [[], THREADS, [*THREADS, "--preload"]], ids=["sync", "gthread", "preloaded"])
def test_visitors_of_all_workers_get_one_computation(
    serve: Serve, raw: redis.Redis, cache: Any, words: list[str]
) -> None:
    site = serve("--workers", "2", *words)
    requests = visit(site, "/gated/k", cache, 2 if not words else 8)
    raw.rpush("gate", "open")
    raw.expire("gate", 60)
    assert {request.body() for request in requests} == {"k 1"}
    assert raw.get("runs") == b"1"
    assert site.get("/gated/k") == "k 1"


@pytest.mark.parametrize("words", [["--timeout", "5"], THREADS], ids=["sync", "gthread"])
def test_a_worker_that_is_killed_is_replaced_once(serve: Serve, raw: redis.Redis, cache: Any, words: list[str]) -> None:
    """Gunicorn itself kills a sync worker that takes too long; one with threads goes on, and the test kills it."""
    site = serve("--workers", "2", *words)
    first = Request(site, "/stuck/k")
    eventually(lambda: raw.llen("running"), within=10)
    if words != THREADS:  # who waits is killed after the same time, and so comes later
        eventually(lambda: cache.flights.peek(cache.make_key("k")).age > 2, within=5)
    requests = visit(site, "/stuck/k", cache, 1)
    if words == THREADS:
        os.kill(int(raw.lindex("running", 0)), signal.SIGKILL)  # type: ignore[arg-type]
    assert first.is_cut()
    answers = {request.body() for request in requests if not request.is_cut()}
    assert answers == {"k 2"}
    assert raw.get("runs") == b"2"
    assert site.get("/stuck/k") == "k 2"
