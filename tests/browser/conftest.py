"""The demo site, served by gunicorn, and a real Chromium that looks at it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from singleflight_sync import SingleFlight
from tests.support import parts
from tests.support.processes import ROOT
from tests.support.servers import LAUNCHER, Server, free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHROMIUM = os.environ.get("SINGLEFLIGHT_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
SECONDS = 12
FLIGHTS = "admin/django_singleflight/flight/"

USERS = """
from django.contrib.auth.models import Permission, User
view = Permission.objects.get(codename="view_flight")
User.objects.create_user("viewer", password="viewer", is_staff=True).user_permissions.add(view)
User.objects.create_user("nobody", password="nobody", is_staff=True)
"""


class Site:
    """``manage.py demo``, started and set up."""

    def __init__(self, directory: Path, server: Server) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.server = server
        self.output = directory / "output"
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example.settings",
            "EXAMPLE_DIRECTORY": str(directory / "site"),
            "SINGLEFLIGHT_URL": server.url,
            "PYTHONPATH": str(ROOT),
        }
        words = [str(ROOT / "manage.py"), "demo", f"--port={self.port}", f"--seconds={SECONDS}"]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(LAUNCHER), str(os.getpid()), sys.executable, "-u", *words],
                env=environment,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        eventually(self._is_ready, within=50, what="the demo says its address")
        self.password = re.findall(r"with password +(\S+)", self.output.read_text())[0]
        subprocess.run(
            [sys.executable, "-m", "django", "shell", "-v0", "-c", USERS], env=environment, cwd=ROOT, check=True
        )

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return "Ctrl-C ends it." in self.output.read_text()

    def ask(self, question: str) -> threading.Thread:
        """A visitor who asks; nobody looks at what he gets."""

        def get() -> None:
            with contextlib.suppress(OSError):  # cancelled
                self.page(f"ask/?{urlencode({'question': question})}")

        thread = threading.Thread(target=get, name="test-visitor")
        thread.start()
        return thread

    def page(self, path: str) -> str:
        """The text of a page, as somebody sees it who has not signed in."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:  # noqa: S310 - a site of ours
            text: str = answer.read().decode()
        return text

    def cancel(self, question: str) -> None:
        """Nobody waits for that any more."""
        with SingleFlight(url=self.server.url, namespace="demo:flight") as group:
            group.cancel(f"ask:{question}")

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if importlib.util.find_spec("playwright") is None:
        parts.missing("no playwright: install the extra 'test'")
    if CHROMIUM is None:
        parts.missing("no Chromium: apt-get install chromium, or name one in SINGLEFLIGHT_TEST_CHROMIUM")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(chromium: Any, server_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = Server()
    site = Site(tmp_path_factory.mktemp("demo"), server)
    yield site
    site.stop()
    server.stop()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained about: scripts that failed, and breaches of the content security policy."""
    return []


@pytest.fixture
def open_page(chromium: Any, site: Site, complaints: list[str]) -> Iterator[Callable[..., Any]]:
    """Opens a page in a browser of its own: ``open_page("admin/", user="demo", viewport=...)``."""
    contexts: list[Any] = []

    def open_page(path: str, *, user: str | None = None, **options: Any) -> Any:
        context = chromium.new_context(base_url=site.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path)
        if user:
            page.fill("#id_username", user)
            page.fill("#id_password", site.password if user == "demo" else user)
            with page.expect_navigation(wait_until="load"):
                page.click("input[type=submit]")
            assert page.url == f"{site.url}{path}"
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Any, str], None]:
    """Takes a screenshot, kept where ``SINGLEFLIGHT_TEST_PICTURES`` says."""
    folder = os.environ.get("SINGLEFLIGHT_TEST_PICTURES") or str(tmp_path)
    return lambda page, name: page.screenshot(path=f"{folder}/{name}.png")
