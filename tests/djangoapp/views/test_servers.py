"""Real browsers, as far as cookies go, at a real gunicorn with several workers of each kind."""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support import parts
from tests.support.flights import Journal
from tests.support.gunicorn import Site
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.support.servers import Server

APP = "tests.djangoapp.views.gunicorn_site:app"
WORKERS = {
    "sync": ["--workers", "6"],
    "gthread": ["--workers", "2", "--threads", "6", "--worker-class", "gthread"],
    "gevent": ["--workers", "2", "--worker-class", "gevent"],
}


class Answer(NamedTuple):
    status: int
    body: str
    headers: http.client.HTTPMessage


class Browser:
    """Keeps its cookies."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}

    def twin(self) -> Browser:
        other = Browser(self.port)
        other.cookies = dict(self.cookies)
        return other

    def get(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body=body or None, headers={"Connection": "close", **sent})
            response = connection.getresponse()
            answer = Answer(response.status, response.read().decode(), response.headers)
        finally:
            connection.close()
        for header in response.headers.get_all("Set-Cookie") or []:
            self.cookies.update({name: morsel.value for name, morsel in SimpleCookie(header).items()})
        return answer


class World:
    """The site, its visitors, and the gate that they wait at."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site = site
        self.journal = Journal(directory / "journal")
        self._gate = directory / "go"
        self._pool = ThreadPoolExecutor(20)

    def browser(self, name: str = "") -> Browser:
        made = Browser(self.site.port)
        if name:
            assert made.get(f"/sign-in?name={name}").body == "in"
        return made

    def runs(self, name: str) -> int:
        return sum(note.who == name for note in self.journal.notes())

    def herd(self, name: str, *browsers: Browser, headers: list[dict[str, str]] | None = None) -> list[Answer]:
        """All of them come while the page is being made, and wait for it."""
        told = headers or [{}] * len(browsers)
        first = self.start(name, browsers[0], told[0])
        eventually(lambda: self.runs(name) == 1, within=20)
        before = self.runs("waits")
        calls = [self.start(name, each, words) for each, words in zip(browsers[1:], told[1:], strict=True)]
        eventually(lambda: self.runs("waits") - before == len(calls), within=20, what="they wait")
        self.open_gate()
        return [call.result(40) for call in (first, *calls)]

    def open_gate(self) -> None:
        """Let the views go on."""
        self._gate.touch()

    def start(self, name: str, browser: Browser, words: dict[str, str] | None = None) -> Future[Answer]:
        """A request in a thread."""
        return self._pool.submit(browser.get, f"/{name}", **(words or {}))

    def close(self) -> None:
        self.open_gate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.site.stop()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables."""
    directory = tmp_path_factory.mktemp("site")
    told = {"SITE_DIRECTORY": str(directory), "SITE_REDIS": "redis://127.0.0.1:1/0"}
    code = (
        "import tests.djangoapp.views.gunicorn_site; from django.core.management import call_command; "
        "call_command('migrate', verbosity=0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **told}, check=True)
    return directory / "db"


@pytest.fixture(params=WORKERS)
def world(request: pytest.FixtureRequest, tmp_path: Path, database: Path, server: Server) -> Iterator[World]:
    kind = request.param
    for module in ("gunicorn", *(["gevent"] if kind == "gevent" else [])):
        if importlib.util.find_spec(module) is None:
            parts.missing(f"no {module}: install the extra 'test'")
    told = {"SITE_DIRECTORY": str(tmp_path), "SITE_REDIS": server.url}
    shutil.copy(database, tmp_path / "db")
    words = [sys.executable, "-m", "gunicorn", "--bind", "{bind}", "--worker-tmp-dir", "/dev/shm", *WORKERS[kind], APP]  # noqa: S108 - as its manual says
    made = World(Site(words, tmp_path / "log", told), tmp_path)
    yield made
    made.close()


def test_one_page_for_all(world: World) -> None:
    answers = world.herd("page", *(world.browser() for _ in range(5)))
    assert {(each.status, each.body) for each in answers} == {(200, "page")}
    assert world.runs("page") == 1
    assert {each.headers["Cache-Status"] for each in answers} <= {
        "singleflight; fwd=miss",
        "singleflight; fwd=miss; collapsed",
    }


def test_names_messages_forms_cookies_and_tokens_stay_with_their_visitors(world: World) -> None:
    ada, bob, eve = world.browser("ada"), world.browser("bob"), world.browser()
    got = world.herd("name", ada, bob, eve)
    assert [each.body for each in got] == ["hello ada", "hello bob", "hello "]
    assert all("Cookie" in each.headers["Vary"] for each in got)
    got = [each.get("/bare") for each in (ada, bob, eve)]
    assert [each.body for each in got] == ["hello ada", "hello bob", "hello "]
    assert [each.get("/messages").body for each in (ada, bob, eve)] == ["welcome, ada", "welcome, bob", ""]
    for each in (ada, bob, eve):
        each.get("/cookie")
    assert len({each.cookies["mine"] for each in (ada, bob, eve)}) == 3
    assert [world.browser().get("/token", Authorization=each).body for each in "abc"] == [*"abc"]


def test_posts_of_those_who_came_without_a_cookie_succeed(world: World) -> None:
    browsers = [world.browser() for _ in range(4)]
    for browser, answer in zip(browsers, world.herd("form", *browsers), strict=True):
        token = re.findall('value="(.*?)"', answer.body)[0]
        assert browser.get("/post", method="POST", body=f"csrfmiddlewaretoken={token}").body == "posted"
    assert world.runs("form") == 4


def test_a_killed_worker_hands_over_to_who_waits(world: World) -> None:
    first = world.start("page", world.browser())
    eventually(lambda: world.runs("page") == 1, within=20)
    others = [world.start("page", world.browser()) for _ in range(2)]
    eventually(lambda: world.runs("waits") >= 1, within=20, what="they wait")
    os.kill(world.journal.notes()[0].pid, signal.SIGKILL)
    eventually(lambda: world.runs("page") == 2 or others[0].done(), within=20, what="somebody takes over")
    world.open_gate()
    for call in (first, *others):
        error = call.exception(40)  # whoever was served by the same worker
        assert error is not None or call.result().body == "page"
    assert world.browser().get("/page").body == "page"


def test_two_languages(world: World) -> None:
    headers = [{"X_Language": each} for each in ("de", "de", "fr", "fr")]
    answers = world.herd("language", *(world.browser() for _ in headers), headers=headers)
    assert [each.body for each in answers] == ["de", "de", "fr", "fr"]
    assert 2 <= world.runs("language") <= 3  # one, or two if the second French comes when the first has left


def test_who_waits_too_far_behind_is_turned_away(world: World) -> None:
    first = threading.Thread(target=world.browser().get, args=("/queue",))
    first.start()
    eventually(lambda: world.runs("queue") == 1, within=20)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(world.browser().get("/queue"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(found) + world.runs("waits") >= 4, within=20, what="they wait or were turned away")
    assert 1 <= len(found) <= 3
    assert all(each.status == 503 and each.headers["Retry-After"] for each in found)
    world.open_gate()
    for thread in (first, *threads):
        thread.join(40)
    assert {each.status for each in found} <= {200, 503}
    assert world.runs("queue") == 1
