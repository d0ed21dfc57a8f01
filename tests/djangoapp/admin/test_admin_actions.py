"""Detail page, cancel and forget: who may, what it says, what stands in the admin's log."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.test import override_settings

import singleflight_sync as sfs
from django_singleflight import shown
from tests.djangoapp.admin.support import ROOT, Airborne, address_of, airborne, client, keys_of, says, token_in
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.servers import Server


def log() -> list[Any]:
    return list(apps.get_model("admin", "LogEntry").objects.order_by("pk"))


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    apps.get_model("admin", "LogEntry").objects.all().delete()


def end(browser: Any, key: str, action: str) -> Any:
    """Ask for the confirmation page and confirm; the page that follows."""
    address = f"{address_of(key)}{action}/"
    return browser.post(address, {"token": token_in(browser.get(address))}, follow=True)


def test_cancel_ends_the_flight_for_everybody_in_it() -> None:
    with airborne("k") as [flight]:
        got: list[Any] = []

        def follow() -> None:
            with pytest.raises(sfs.FlightCancelledError) as caught:
                sfs.run("k", lambda: "mine")
            got.append(caught.value)

        follower = threading.Thread(target=follow, name="test-follower")
        follower.start()
        page = end(client("view", "cancel"), "k", "cancel")
        follower.join(10)
        assert len(got) == 1
        assert "“k” was cancelled" in says(page)
        assert keys_of(page) == []
        assert isinstance(flight.land(), sfs.FlightCancelledError)


def test_forget_lets_the_flight_end_and_stores_nothing() -> None:
    with airborne("k") as [flight]:
        page = end(client("view", "forget"), "k", "forget")
        assert "“k” was forgotten" in says(page)
        assert "running, forgotten" in page.content.decode()
        assert flight.land() == "value"
        assert sfs.get("k") is None


def test_a_flight_of_a_cache_is_cancelled_in_its_own_group() -> None:
    from django.core.cache import cache  # noqa: PLC0415 - the settings of the test

    flight = Airborne(":1:k", cache.flights)
    try:
        browser = client(superuser=True)
        address = f"{address_of(':1:k', 'cache:default')}cancel/"
        browser.post(address, {"token": token_in(browser.get(address))})
        assert isinstance(flight.land(), sfs.FlightCancelledError)
    finally:
        flight.land()


def test_nothing_happens_before_the_confirmation() -> None:
    with airborne("k") as [flight]:
        client(superuser=True).get(f"{address_of('k')}cancel/")
        assert flight.info.key == "k"
        assert log() == []


@pytest.mark.parametrize("action", ["cancel", "forget"])
def test_a_flight_that_ended_meanwhile_is_left_alone(action: str) -> None:
    browser = client(superuser=True)
    with airborne("k"):
        token = token_in(browser.get(f"{address_of('k')}{action}/"))
    page = browser.post(f"{address_of('k')}{action}/", {"token": token}, follow=True)
    assert "is over" in says(page)
    assert log() == []


@pytest.mark.parametrize("action", ["cancel", "forget"])
def test_the_next_flight_of_the_key_is_left_alone(action: str) -> None:
    browser = client(superuser=True)
    with airborne("k", ttl=0):
        token = token_in(browser.get(f"{address_of('k')}{action}/"))
    with airborne("k", ttl=0) as [flight]:
        page = browser.post(f"{address_of('k')}{action}/", {"token": token}, follow=True)
        assert "is over" in says(page)
        assert not flight.info.forgotten
        assert log() == []
        assert flight.land() == "value"


@pytest.mark.parametrize("token", [None, "", "0", "x", "9" * 99, "-1"])
def test_a_token_of_no_flight_ends_nothing(token: str | None) -> None:
    with airborne("k") as [flight]:
        data = {} if token is None else {"token": token}
        page = client(superuser=True).post(f"{address_of('k')}cancel/", data, follow=True)
        assert "is over" in says(page)
        assert flight.info.key == "k"


@pytest.mark.parametrize(
    ("permissions", "page", "status"),
    [
        ((), "", 403),
        ((), "live/", 403),
        ((), "{}/", 403),
        (("cancel", "forget"), "", 403),
        (("cancel", "forget"), "{}/cancel/", 403),
        (("view",), "", 200),
        (("view",), "{}/", 200),
        (("view",), "{}/cancel/", 403),
        (("view",), "{}/forget/", 403),
        (("view", "cancel"), "{}/cancel/", 200),
        (("view", "cancel"), "{}/forget/", 403),
        (("view", "forget"), "{}/forget/", 200),
        (("view", "forget"), "{}/cancel/", 403),
    ],
)
def test_who_may_see_and_do_what(permissions: tuple[str, ...], page: str, status: int) -> None:
    with airborne("k"):
        address = ROOT + page.format(shown.digest("default", "k"))
        assert client(*permissions).get(address).status_code == status


def test_permission_is_asked_again_when_confirmed() -> None:
    with airborne("k") as [flight]:
        address = f"{address_of('k')}cancel/"
        token = token_in(client("view", "cancel").get(address))
        assert client("view").post(address, {"token": token}).status_code == 403
        assert client("view", "forget").post(address, {"token": token}).status_code == 403
        assert flight.info.key == "k"
        assert log() == []


def test_links_are_shown_to_those_who_may_use_them() -> None:
    with airborne("k"):
        for permissions, links in ((["view"], 0), (["view", "cancel"], 1), (["view", "cancel", "forget"], 2)):
            for page in (ROOT, address_of("k")):
                text = client(*permissions).get(page).content.decode()
                assert text.count('/cancel/"') + text.count('/forget/"') == links


def test_a_post_without_the_csrf_token_is_refused() -> None:
    from django.test import Client  # noqa: PLC0415 - one that is not trusted

    from tests.djangoapp.admin.support import user  # noqa: PLC0415 - the same

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user(superuser=True))
    with airborne("k") as [flight]:
        assert browser.post(f"{address_of('k')}cancel/", {"token": str(flight.info.fencing_token)}).status_code == 403
        assert flight.info.key == "k"


def test_the_admins_log_names_the_flight() -> None:
    key = "report \0 \x1b[31m ?password=hush 'q'"
    browser = client("view", "cancel")
    with airborne(key) as [flight]:
        token = flight.info.fencing_token
        end(browser, key, "cancel")
    (entry,) = log()
    assert entry.object_repr == f"report \\x00 \\x1b[31m ?password={shown.STARS}"
    assert entry.change_message == f"cancel (group default, fencing token {token})"
    assert entry.object_id == shown.digest("default", key)
    assert entry.get_admin_url() == address_of(key)
    assert entry.is_change()


def test_the_log_links_to_a_page_that_says_that_the_flight_is_over() -> None:
    page = client("view").get(address_of("k"))
    assert page.status_code == 200
    assert "is over" in page.content.decode()


def test_the_detail_page_tells_the_keys_story() -> None:
    with airborne("k", ttl=0) as [flight]:
        first = flight.info.fencing_token
    with airborne("k", ttl=0) as [flight]:
        sfs.forget("k")
        eventually(lambda: flight.info.forgotten, within=5)
        text = client("view").get(address_of("k")).content.decode()
        story = text[text.index('class="sf-log"') :]
        events = [each.split("<")[0] for each in story.split("<strong>")[1:]]
        assert events == ["Claimed", "Succeeded", "Claimed", "Forgotten"]
        assert str(first) in story
        assert f"sha256 {shown.digest('k')}" in text


def test_with_redis_down_nothing_is_said_to_be_over(proxy: Proxy, server: Server) -> None:
    with override_settings(SINGLEFLIGHT={"URL": proxy.url}):
        proxy.refuse()
        browser = client(superuser=True)
        page = browser.get(address_of("k"))
        assert page.status_code == 200
        assert "cannot" in page.content.decode()
        assert "is over" not in page.content.decode()
        page = browser.post(f"{address_of('k')}cancel/", {"token": "1"}, follow=True)
        assert "Group default: cannot" in says(page)
        assert "is over" not in says(page)
        sfs.close()


def test_ending_works_in_another_admin_site() -> None:
    with airborne("k") as [flight]:
        address = f"{address_of('k')}cancel/".replace("/admin/", "/second/")
        browser = client(superuser=True)
        answer = browser.post(address, {"token": token_in(browser.get(address))})
        assert answer["Location"] == "/second/django_singleflight/flight/"
        assert isinstance(flight.land(), sfs.FlightCancelledError)
