"""A real gunicorn, or a real uWSGI, that serves ``wsgi.py``; gone with its test."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support import parts
from tests.support.processes import ROOT
from tests.support.servers import LAUNCHER, free_port
from tests.support.waiting import eventually


class Site:
    """A WSGI server in a process group of its own.

    Args:
        words: the command line; ``{bind}`` stands for host and port.
        log: the file for what it prints.
        environment: what ``wsgi.py`` is told, see there.
    """

    def __init__(self, words: list[str], log: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        self.log = log
        command = [word.replace("{bind}", f"127.0.0.1:{self.port}") for word in words]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(LAUNCHER), str(os.getpid()), *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            eventually(self._answers, within=30, what=f"the site answers: {command}")
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/", within=5) == "ready"
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str, *, within: float = 40.0, **query: Any) -> str:
        """The body of one request; an answer that is no 200 is an ``AssertionError``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=within)
        try:
            connection.request("GET", path + ("?" + urlencode(query) if query else ""), headers={"Connection": "close"})
            response = connection.getresponse()
            body = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, f"{response.status}: {body}\n{self.log.read_text()[-4000:]}"
        return body

    def stop(self) -> None:
        """End the server and all its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Request:
    """One request in a thread of the test."""

    def __init__(self, site: Site, path: str = "/fly", **query: Any) -> None:
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(site, path, query), name="test-request", daemon=True)
        self._thread.start()

    def _run(self, site: Site, path: str, query: dict[str, Any]) -> None:
        try:
            self._outcome += ["body", site.get(path, **query)]
        except BaseException as error:  # noqa: BLE001 - it is raised by body()
            self._outcome += ["error", error]

    def body(self, *, within: float = 40.0) -> str:
        """The body; raises what went wrong."""
        self._thread.join(within)
        assert not self._thread.is_alive(), f"a request hangs for more than {within} s"
        if self._outcome[0] == "error":
            raise self._outcome[1]
        return str(self._outcome[1])

    def is_cut(self, *, within: float = 40.0) -> bool:
        """Whether the server has hung up, or answered with an error."""
        try:
            self.body(within=within)
        except (OSError, http.client.HTTPException, AssertionError):
            return True
        return False


def environment(url: str, journal: str, **options: Any) -> dict[str, str]:
    """What ``wsgi.py`` is told."""
    return {"SITE_URL": url, "SITE_JOURNAL": journal, "SITE_OPTIONS": json.dumps(options)}


def gunicorn(log: Path, told: dict[str, str], *words: str) -> Site:
    """Start gunicorn with ``words`` on its command line."""
    if importlib.util.find_spec("gunicorn") is None:
        parts.missing("no gunicorn: install the extra 'test'")
    if "gevent" in words and importlib.util.find_spec("gevent") is None:
        parts.missing("no gevent: install the extra 'test'")
    command = [sys.executable, "-m", "gunicorn", "--bind", "{bind}", "--worker-tmp-dir", "/dev/shm", *words]  # noqa: S108 - as its manual says
    return Site([*command, "tests.support.wsgi:app"], log, told)


def uwsgi(log: Path, told: dict[str, str], *words: str) -> Site:
    """Start uWSGI with ``words`` on its command line."""
    places = (
        os.environ.get("SINGLEFLIGHT_TEST_UWSGI"),
        shutil.which("uwsgi"),
        Path(sysconfig.get_path("scripts")) / "uwsgi",
    )
    binary = next((str(place) for place in places if place and Path(place).exists()), None)
    if binary is None:
        parts.missing("no uWSGI: pip install uwsgi (it is compiled)")
    home = ["--home", sys.prefix] if sys.prefix != sys.base_prefix else []
    command = [binary, "--http-socket", "{bind}", "--master", "--die-on-term", "--need-app", *home, *words]
    return Site([*command, "--module", "tests.support.wsgi:app"], log, told)
