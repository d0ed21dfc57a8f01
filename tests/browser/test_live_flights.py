"""The admin page in a real browser."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import FLIGHTS
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.browser.conftest import Site

pytestmark = pytest.mark.timeout(180)  # the first of them starts the site

PHONE = {"viewport": {"width": 360, "height": 740}}
_numbers = itertools.count()


@pytest.fixture
def question() -> str:
    """A question that nobody asked before."""
    return f"How many are {next(_numbers)} and 1?"


@pytest.fixture
def ask(site: Site) -> Iterator[Callable[[str], None]]:
    """Has somebody ask, until the end of the test."""
    visitors = {}

    def ask(question: str) -> None:
        visitors[question] = site.ask(question)

    yield ask
    for question, visitor in visitors.items():
        site.cancel(question)
        visitor.join(60)


def row(page: Any, question: str) -> Any:
    return page.locator("tbody tr", has_text=question)


def expect(what: Any) -> Any:
    from playwright.sync_api import expect as assertion  # noqa: PLC0415 - may be missing

    return assertion(what)


def test_a_flight_appears_and_goes_without_a_reload(
    site: Site, open_page: Any, ask: Any, question: str, complaints: list[str]
) -> None:
    page = open_page(FLIGHTS, user="demo")
    page.evaluate("window.sameDocument = true")
    expect(row(page, question)).to_have_count(0)
    ask(question)
    expect(row(page, question)).to_have_count(1, timeout=10_000)
    site.cancel(question)
    expect(row(page, question)).to_have_count(0, timeout=10_000)
    assert page.evaluate("window.sameDocument")
    assert complaints == []


def test_the_bar_of_the_lease_moves(open_page: Any, ask: Any, question: str) -> None:
    page = open_page(FLIGHTS, user="demo")
    ask(question)
    bar = row(page, question).locator("meter")
    expect(bar).to_have_count(1, timeout=10_000)
    first = bar.get_attribute("value")
    expect(bar).not_to_have_attribute("value", first)
    assert 0 < float(bar.get_attribute("value")) <= float(bar.get_attribute("max")) == 3


def test_a_cancelled_flight_ends_the_followers_page_and_stands_in_the_log(
    site: Site, open_page: Any, ask: Any, question: str, picture: Any, complaints: list[str]
) -> None:
    page, follower = open_page(FLIGHTS, user="demo"), open_page("")
    ask(question)
    expect(row(page, question)).to_have_count(1, timeout=10_000)
    follower.fill("#question", question)
    follower.evaluate(
        "setTimeout(() => document.querySelector('form').requestSubmit())"
    )  # a click waits for the answer
    eventually(lambda: "2 waiting" in site.page("picture/"), within=10, what="the second visitor waits")
    picture(page, "list")
    row(page, question).get_by_role("link", name="Cancel").click()
    picture(page, "confirm")
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(page.locator(".messagelist")).to_contain_text("was cancelled")
    expect(follower.locator("#error")).to_contain_text("cancel")
    page.goto("admin/")
    entry = page.locator("#recent-actions-module a", has_text=question)
    expect(entry).to_have_count(1)
    entry.click()
    expect(page.locator("#content")).to_contain_text("is over")
    complaints[:] = [each for each in complaints if "503" not in each]  # the follower's answer
    assert complaints == []


def test_all_of_it_works_without_javascript(open_page: Any, ask: Any, question: str) -> None:
    page = open_page(FLIGHTS, user="demo", java_script_enabled=False)
    ask(question)
    for _ in range(20):
        if row(page, question).count():
            break
        page.get_by_role("link", name="Reload").click()
    page.fill("[name=q]", question)
    page.get_by_role("button", name="Show").click()
    row(page, question).get_by_role("link", name=question).click()
    expect(page.locator(".sf-log")).to_contain_text("Claimed")
    page.get_by_role("link", name="Forget").click()
    page.get_by_role("button", name="Yes, forget it").click()
    expect(page.locator(".messagelist")).to_contain_text("was forgotten")
    row(page, question).get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(page.locator(".messagelist")).to_contain_text("was cancelled")
    expect(row(page, question)).to_have_count(0)


def test_a_user_who_may_only_look_finds_nothing_to_end(open_page: Any, ask: Any, question: str) -> None:
    page = open_page(FLIGHTS, user="viewer")
    ask(question)
    expect(row(page, question)).to_have_count(1, timeout=10_000)
    expect(row(page, question).get_by_role("link", name="Cancel")).to_have_count(0)
    address = row(page, question).get_by_role("link").first.get_attribute("href")
    assert page.goto(f"{address}cancel/").status == 403
    assert open_page("admin/", user="nobody").goto(FLIGHTS).status == 403


def test_who_is_signed_out_meanwhile_is_told(open_page: Any, picture: Any) -> None:
    page = open_page(FLIGHTS, user="demo")
    expect(page.locator("[data-lost]")).to_be_hidden()
    page.context.clear_cookies()
    expect(page.locator("[data-lost]")).to_be_visible()
    expect(page.locator("[data-lost]")).to_contain_text("Signed out")
    picture(page, "signed-out")


def test_refreshing_can_be_paused(open_page: Any, ask: Any, question: str) -> None:
    page = open_page(FLIGHTS, user="demo")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("[data-says]")).to_contain_text("paused")
    ask(question)
    other = open_page(FLIGHTS, user="demo")
    expect(row(other, question)).to_have_count(1, timeout=10_000)
    expect(row(page, question)).to_have_count(0)
    page.get_by_role("button", name="Go on").click()
    expect(row(page, question)).to_have_count(1)


def test_the_keyboard_suffices_and_keeps_its_place_over_a_refresh(open_page: Any, ask: Any, question: str) -> None:
    page = open_page(FLIGHTS, user="demo")
    ask(question)
    expect(row(page, question)).to_have_count(1, timeout=10_000)
    link = row(page, question).get_by_role("link", name="Cancel")
    name = link.get_attribute("id")
    link.focus()
    page.evaluate("window.before = document.querySelector('[data-flights]')")
    eventually(lambda: page.evaluate("document.querySelector('[data-flights]') !== window.before"), within=15)
    assert page.evaluate("document.activeElement.id") == name
    page.keyboard.press("Enter")
    page.wait_for_url("**/cancel/")
    page.locator("input[name=token] ~ div button").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("was cancelled")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(open_page: Any, ask: Any, picture: Any, scheme: str) -> None:
    question = f"{scheme} " + "supercalifragilisticexpialidocious" * 4
    page = open_page(FLIGHTS, user="demo", color_scheme=scheme, **PHONE)
    ask(question)
    expect(row(page, question)).to_have_count(1, timeout=10_000)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 360
    picture(page, f"phone-{scheme}")
    row(page, question).get_by_role("link").first.click()
    expect(page.locator(".sf-log")).to_contain_text("Claimed")
    assert page.evaluate(wide) <= 360
    picture(page, f"phone-detail-{scheme}")
    page.get_by_role("link", name="Cancel").click()
    assert page.evaluate(wide) <= 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
