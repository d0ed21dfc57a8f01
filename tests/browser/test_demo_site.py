"""The demo site in a real browser."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Site
from tests.support.servers import Server
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def expect(what: Any) -> Any:
    from playwright.sync_api import expect as assertion  # noqa: PLC0415 - may be missing

    return assertion(what)


def workers(site: Site) -> int:
    found = subprocess.run(["pgrep", "-f", f"gunicorn.*--bind=127.0.0.1:{site.port}"], capture_output=True, check=False)
    return len(found.stdout.split())


def test_a_hundred_visitors_are_one_call(open_page: Any, picture: Any, complaints: list[str]) -> None:
    page = open_page("", viewport={"width": 900, "height": 820})
    page.click("#crowd")
    facts = page.locator("#facts")
    expect(facts).to_contain_text("100 visitors, 1 call of the model, 0 answered, 100 waiting")
    expect(facts).to_contain_text("100 answered, the last one after", timeout=30_000)
    expect(facts).to_contain_text("1 call of the model")
    for curve in ("arrived", "answered"):
        points = page.locator(f"polyline.{curve}").get_attribute("points").split()
        heights = [float(point.split(",")[1]) for point in points]
        assert len(points) == 202
        assert heights[0] == pytest.approx(206)
        assert heights[-1] == pytest.approx(36)
    expect(page.locator("rect.call:not(.running)")).to_have_count(1)
    picture(page, "crowd")
    assert complaints == []


def test_a_killed_owner_is_replaced_and_everybody_is_answered(
    open_page: Any, picture: Any, complaints: list[str]
) -> None:
    page = open_page("", viewport={"width": 900, "height": 820})
    page.wait_for_timeout(3_100)  # a pause that makes this a new picture
    page.click("#crowd")
    facts, story = page.locator("#facts"), page.locator("#story")
    expect(facts).to_contain_text("100 visitors, 1 call of the model, 0 answered, 100 waiting")
    page.click("#kill")
    expect(story).to_contain_text("the owner, was killed", timeout=10_000)
    expect(story).to_contain_text("took over", timeout=10_000)
    picture(page, "takeover")
    expect(facts).to_contain_text("100 answered", timeout=30_000)
    expect(facts).to_contain_text("2 calls of the model")
    expect(page.locator("rect.killed")).to_have_count(1)
    expect(page.locator("line.death")).to_have_count(1)
    picture(page, "after")
    assert complaints == []


def test_it_needs_no_javascript(open_page: Any) -> None:
    page = open_page("", java_script_enabled=False)
    page.fill("#question", "Is there a script?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answer")).to_contain_text("is a very good question")
    page.goto("")
    expect(page.locator("svg")).to_have_count(1)


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: Any) -> None:
    page = open_page("", viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_ctrl_c_ends_everything(server_binary: str, tmp_path: Path) -> None:
    server = Server()
    site = Site(tmp_path, server)
    try:
        assert workers(site) == 5
        site.process.send_signal(signal.SIGINT)
        assert site.process.wait(20) == 0
        eventually(lambda: workers(site) == 0, within=5, what="no worker is left")
    finally:
        site.stop()
        server.stop()
