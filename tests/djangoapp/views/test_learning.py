"""What a view turned out to depend on is remembered, so that nobody waits in vain; and what is told of it."""

# ruff: noqa: ARG005 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse

from django_singleflight import single_flight
from django_singleflight.keys import Learnt
from django_singleflight.memory import Memory, memory
from singleflight_sync import default_group
from tests.djangoapp.views.site import Page, Visitor, texts
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.djangoapp.views.site import Site
    from tests.support.servers import Server

GERMAN: Any = {"HTTP_X_LANGUAGE": "de"}
FRENCH: Any = {"HTTP_X_LANGUAGE": "fr"}


def by_language(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.headers.get("X-Language", "?"), headers={"Vary": "X-Language"})


def of_vary(request: HttpRequest) -> HttpResponse:
    return HttpResponse("x", headers={"Vary": "X-Language"})


def herds(site: Site, page: Page) -> list[str]:
    """Five Germans, the first of whom has the page made, and five French."""
    visitors = [Visitor(**environ) for environ in (GERMAN, FRENCH) for _ in range(5)]
    return texts(site.herd(page, *visitors, again=4))


def commands(server: Server) -> int:
    """How many commands the server has seen of programs."""
    stats: Any = server.client().info("commandstats")
    return sum(int(facts["calls"]) for name, facts in stats.items() if name in {"cmdstat_evalsha", "cmdstat_eval"})


@pytest.mark.parametrize("body", [by_language, of_vary])
def test_two_herds_in_two_languages_make_two_flights(body: Any, site: Site) -> None:
    page = Page(body, hold=2)
    site.serve(single_flight(shared=True)(page))
    got = herds(site, page)
    assert got in (["de"] * 5 + ["fr"] * 5, ["x"] * 10)
    assert page.runs == 2


@pytest.mark.parametrize("forgetful", [False, True], ids=["this process", "another process"])
def test_the_next_herds_make_two_flights_at_once(forgetful: bool, site: Site) -> None:  # noqa: FBT001
    """The languages do not wait for each other any more; another process finds in Redis what it must ask for."""
    page = Page(by_language, hold=2)
    site.serve(single_flight(shared=True)(page))
    herds(site, page)
    if forgetful:
        memory._known.clear()
    slow = Page(by_language)
    site.serve(single_flight(shared=True)(slow))
    germans = [site.start(Visitor(**GERMAN)) for _ in range(3)]
    assert slow.running.wait(20)
    assert Visitor(**FRENCH).get().content == b"fr"  # while the Germans wait
    eventually(lambda: site.waiting() == 2, within=10)
    slow.go_on.set()
    assert texts([each.result(20) for each in germans]) == ["de"] * 3
    assert slow.runs == 2


def test_never_more_than_two_rounds(site: Site) -> None:
    """A view that looks at another header for each language: whoever does not fit after two rounds runs it himself."""

    def body(request: HttpRequest) -> HttpResponse:
        language = request.headers.get("X-Language")
        return HttpResponse(request.headers.get(f"X-{language}", "?"))

    page = Page(body)
    site.serve(single_flight(shared=True)(page))
    environs: list[Any] = [
        {"HTTP_X_LANGUAGE": "de", "HTTP_X_DE": "1"},
        *({"HTTP_X_LANGUAGE": "fr", "HTTP_X_FR": str(number)} for number in range(4)),
    ]
    assert texts(site.herd(page, *(Visitor(**environ) for environ in environs))) == ["1", "0", "1", "2", "3"]


def test_a_stored_page_in_two_languages(site: Site) -> None:
    page = Page(by_language, hold=2)
    site.serve(single_flight(shared=True, ttl=60)(page))
    herds(site, page)
    memory._known.clear()
    environs: list[Any] = [GERMAN, FRENCH, GERMAN, {}]
    assert texts([Visitor(**each).get() for each in environs]) == ["de", "fr", "de", "?"]
    assert page.runs == 3


def test_the_list_of_names_lives_as_long_as_the_result_and_at_least_a_minute(site: Site, server: Server) -> None:
    for ttl, least in ((0, 59_000), (90, 89_000)):
        page = Page(by_language)
        site.serve(single_flight(shared=True, ttl=ttl)(page))
        page.go_on.set()
        Visitor(**GERMAN).get(f"/{ttl}")
        client = server.client()
        lives = [client.pttl(key) for key in client.keys("*result*")]
        assert max(lives) > least
        memory._known.clear()
        client.flushall()


def test_a_personal_page_is_asked_for_one_by_one_from_then_on(site: Site) -> None:
    page = Page(lambda r: HttpResponse(r.COOKIES["a"]))
    site.serve(single_flight(shared=True)(page))
    assert texts(site.herd(page, Visitor({"a": "1"}), Visitor({"a": "2"}))) == ["1", "2"]
    memory._known.clear()  # another process
    slow = Page(lambda r: HttpResponse(r.COOKIES["a"]))
    site.serve(single_flight(shared=True)(slow))
    first = site.start(Visitor({"a": "1"}))
    assert slow.running.wait(20)
    assert Visitor({"a": "2"}).get().content == b"2"  # while the first one waits
    slow.go_on.set()
    assert first.result(20).content == b"1"


# "Not shareable" is remembered


@pytest.mark.parametrize("shared", [False, True], ids=["bare", "shared"])
def test_while_a_page_is_known_as_not_shareable_nobody_waits(shared: bool, site: Site) -> None:  # noqa: FBT001
    page = Page(lambda r: HttpResponse("x", headers={"Cache-Control": "no-store"}))
    site.serve(single_flight(shared=shared)(page))
    site.herd(page, *(Visitor() for _ in range(5)))
    assert page.runs == 5
    slow = Page(lambda r: HttpResponse("x"))
    site.serve(single_flight(shared=shared)(slow))
    first = site.start(Visitor())
    assert slow.running.wait(20)
    assert Visitor().get().content == b"x"  # while the first one is still at it
    slow.go_on.set()
    first.result(20)


def test_those_who_wait_run_the_view_at_the_same_time(site: Site) -> None:
    """Not one after the other: all of them are told at once that the page is not for them."""
    import threading  # noqa: PLC0415 - used here alone

    together = threading.Barrier(4)

    def body(request: HttpRequest) -> HttpResponse:
        if page.runs > 1:
            together.wait(20)
        return HttpResponse("x", headers={"Cache-Control": "no-store"})

    page = Page(body)
    site.serve(single_flight(page))
    assert texts(site.herd(page, *(Visitor() for _ in range(5)))) == ["x"] * 5


def test_it_is_remembered_for_unshared_ttl(site: Site, server: Server) -> None:
    for seconds in (0, 5):
        site.set(SINGLEFLIGHT={"URL": server.url, "UNSHARED_TTL": seconds})
        page = Page(lambda r: HttpResponse("x", headers={"Cache-Control": "no-store"}))
        page.go_on.set()
        site.serve(single_flight(page))
        Visitor().get()
        client = server.client()
        lives = [client.pttl(key) for key in client.keys("*result*")]
        assert len(lives) == bool(seconds)
        assert all(4_000 < life <= 5_000 for life in lives)


def test_of_a_404_and_of_exceptions_nothing_is_remembered(site: Site, server: Server) -> None:
    from django.http import Http404  # noqa: PLC0415

    def missing(request: HttpRequest) -> HttpResponse:
        raise Http404

    def broken(request: HttpRequest) -> HttpResponse:
        raise ValueError("x")

    for body in (missing, broken, lambda r: HttpResponse(status=410), lambda r: None):
        page = Page(body)
        page.go_on.set()
        site.serve(single_flight(ttl=60)(page))
        Visitor().get()
        assert server.client().keys("*result*") == []


# What is told


def test_each_verdict_is_logged_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singleflight")
    page = Page(lambda r: HttpResponse("x", headers={"Cache-Control": "no-store"}))
    page.go_on.set()
    site.serve(single_flight(page))
    for number in range(3):
        Visitor().get(f"/{number}")
        Visitor().get(f"/{number}")
    told = [record.getMessage() for record in caplog.records if record.name == "django_singleflight"]
    assert told == [f"{Page.__module__}.Page: not shared, the response says Cache-Control: no-store"]


def test_the_name_of_a_view_is_in_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_singleflight")

    @single_flight
    def sales(request: HttpRequest) -> HttpResponse:
        from django.middleware.csrf import get_token  # noqa: PLC0415

        return HttpResponse(get_token(request))

    site.serve(sales)
    Visitor().get()
    (record,) = [record for record in caplog.records if record.name == "django_singleflight"]
    assert re.fullmatch(rf"{__name__}.*\.sales: not shared, the .* CSRF token .*", record.getMessage())


def told(site: Site, body: Any, *visitors: Visitor, **options: Any) -> list[str | None]:
    page = Page(body)
    site.serve(single_flight(**options)(page))
    return [response.get("Cache-Status") for response in site.herd(page, *visitors)]


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("x")


def test_cache_status(site: Site, server: Server) -> None:
    site.set(SINGLEFLIGHT={"URL": server.url, "CACHE_STATUS": True})
    assert told(site, ok, Visitor(), Visitor(), ttl=60) == [
        "singleflight; fwd=miss",
        "singleflight; fwd=miss; collapsed",
    ]
    assert Visitor().get()["Cache-Status"] == "singleflight; hit"


def test_cache_status_of_what_is_not_shared(site: Site, server: Server) -> None:
    site.set(SINGLEFLIGHT={"URL": server.url, "CACHE_STATUS": True})

    def body(request: HttpRequest) -> HttpResponse:
        response = HttpResponse("x", headers={"Cache-Status": "inner; hit"})
        response.set_cookie("a", "b")
        return response

    expected = "inner; hit, singleflight; fwd=bypass; detail=cookies"
    assert told(site, body, Visitor(), Visitor()) == [expected] * 2
    assert Visitor().get()["Cache-Status"] == expected


def test_cache_status_is_for_debug_and_where_it_is_asked_for(site: Site) -> None:
    assert told(site, ok, Visitor()) == [None]
    site.set(DEBUG=True)
    assert told(site, ok, Visitor()) == ["singleflight; fwd=miss"]
    site.set(SINGLEFLIGHT={"URL": "redis://127.0.0.1:1/0", "CACHE_STATUS": False, "ENABLED": False})
    assert told(site, ok, Visitor()) == [None]


def test_what_a_personal_page_says_of_another_visitor(site: Site, server: Server) -> None:
    site.set(SINGLEFLIGHT={"URL": server.url, "CACHE_STATUS": True})
    got = told(site, lambda r: HttpResponse(r.COOKIES["a"]), Visitor({"a": "1"}), Visitor({"a": "2"}), shared=True)
    assert got == ["singleflight; fwd=miss", "singleflight; fwd=bypass; detail=whom"]


# The memory alone


def test_the_memory_forgets_in_time_and_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("django_singleflight.memory.time.monotonic", lambda: now[0])
    monkeypatch.setattr("django_singleflight.memory._MOST", 3)
    mine, learnt = Memory(), Learnt(("A",))
    assert mine.recall("a") == Learnt()
    assert mine.is_ageing("a")
    mine.note("a", learnt, 10.0)
    assert mine.recall("a") == learnt
    assert not mine.is_ageing("a")
    now[0] += 6
    assert mine.is_ageing("a")
    assert mine.recall("a") == learnt
    now[0] += 4
    assert mine.recall("a") == Learnt()
    for number in range(10):
        mine.note(str(number), learnt, 10.0)
        assert len(mine._known) <= 3
    assert mine.recall("9") == learnt


def test_a_plain_page_costs_no_command_more_than_a_flight(site: Site, server: Server) -> None:
    page = Page(ok)
    page.go_on.set()
    site.serve(single_flight(shared=True)(page))
    Visitor().get("/0")  # scripts are loaded
    before = commands(server)
    Visitor().get("/1")
    assert commands(server) - before == 2
    assert default_group() is default_group()
