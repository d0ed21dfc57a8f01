"""What waiting costs: transactions and connections, limits of the queue, and what a visitor gets who waited in vain."""

# ruff: noqa: ARG002 - a view takes a request, whether it looks at it or not

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

import singleflight_sync
from django_singleflight import atomic, single_flight
from singleflight_sync import FlightCancelledError, HardTimeoutError, TakeoverLimitError, default_group
from tests.djangoapp.views.site import Page, Visitor, statuses, texts
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.djangoapp.views.site import Site
    from tests.support.servers import Server


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("x")


# Transactions


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    """A database in a file, whose requests are atomic."""
    settings = connections.settings["default"]
    before = {name: settings[name] for name in ("NAME", "ATOMIC_REQUESTS")}
    other = connections["default"]  # may hold a database in memory, which does not close
    del connections["default"]
    settings.update(NAME=str(tmp_path / "db"), ATOMIC_REQUESTS=True)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER)")
    yield
    connections["default"].close()
    settings.update(before)
    connections["default"] = other


def count() -> int:
    with connections["default"].cursor() as cursor:
        return int(cursor.execute("SELECT COUNT(*) FROM t").fetchone()[0])


def insert(request: HttpRequest) -> HttpResponse:
    assert transaction.get_connection().in_atomic_block
    with connections["default"].cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1)")
    return HttpResponse("x")


class Opened:
    """Counts the threads that have a database connection open."""

    def __init__(self, site: Site) -> None:
        self.threads: dict[int, Any] = {}
        site.set(MIDDLEWARE=[f"{__name__}.Notes"])
        Notes.opened = self

    def count(self) -> int:
        return sum(wrapper.connection is not None for wrapper in list(self.threads.values()))


class Notes:
    """Notes each thread's connection."""

    opened: Opened

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        Notes.opened.threads[threading.get_ident()] = connections["default"]
        if request.GET.get("query"):
            count()
        try:
            return self.get_response(request)
        finally:
            connections["default"].close()


@pytest.mark.parametrize("query", ["", "?query=1"], ids=["", "middleware has used the database"])
def test_visitors_who_wait_hold_no_connection(query: str, site: Site, database: None) -> None:
    opened = Opened(site)
    page = Page(insert)
    site.serve(single_flight(page))
    first = site.start(Visitor(), f"/{query}")
    assert page.running.wait(20)
    others = [site.start(Visitor(), f"/{query}") for _ in range(200)]
    site.wait_for(200)
    assert len(opened.threads) == 201
    eventually(lambda: opened.count() == 1, within=10, what="all but the one who makes the page gave theirs back")
    page.go_on.set()
    assert statuses([each.result(20) for each in (first, *others)]) == [200] * 201
    assert count() == 1


def test_the_owner_publishes_after_its_commit(site: Site, database: None) -> None:
    page = Page(insert)
    site.serve(single_flight(page))
    seen: list[int] = []
    stop = default_group().subscribe(
        lambda event: seen.append(count_elsewhere()) if type(event).__name__ == "FlightPublished" else None
    )
    page.go_on.set()
    Visitor().get()
    stop()
    assert seen == [1]


def count_elsewhere() -> int:
    found: list[int] = []

    def look() -> None:
        found.append(count())
        connections["default"].close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    return found[0]


def test_who_runs_the_view_himself_runs_it_in_a_transaction(site: Site, database: None) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        response = insert(request)
        response.set_cookie("a", "b")
        return response

    page = Page(body)
    site.serve(single_flight(page))
    site.herd(page, *(Visitor() for _ in range(3)))
    visitor = Visitor()
    visitor.client.handler.enforce_csrf_checks = False
    assert visitor.client.post("/").status_code == 200
    assert count() == 4


def test_what_a_view_wrote_that_raised_is_rolled_back(site: Site, database: None) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        insert(request)
        raise ValueError("x")

    page = Page(body)
    site.serve(single_flight(page))
    assert statuses(site.herd(page, Visitor(), Visitor())) == [500, 500]
    assert page.runs == 1
    assert count() == 0


def not_atomic(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(transaction.get_connection().in_atomic_block))


@pytest.mark.parametrize(
    "view",
    [
        lambda: transaction.non_atomic_requests(single_flight(not_atomic)),
        lambda: single_flight(transaction.non_atomic_requests(not_atomic)),
    ],
    ids=["above", "below"],
)
def test_a_view_that_is_exempt_from_transactions(view: Any, site: Site, database: None) -> None:
    site.serve(view())
    assert Visitor().get().content == b"False"
    not_atomic.__dict__.pop("_non_atomic_requests", None)


def test_dispatch_of_a_class(site: Site, database: None) -> None:
    @method_decorator(single_flight, name="dispatch")
    class Report(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return page(request)

    opened, page = Opened(site), Page(insert)
    site.serve(Report.as_view())
    assert texts(site.herd(page, *(Visitor() for _ in range(5)))) == ["x"] * 5
    assert page.runs == count() == 1
    assert opened.threads


def test_a_handler_method_is_warned_of_once_and_its_writes_are_not_shared(
    site: Site, database: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Report(View):
        @method_decorator(single_flight)
        def get(self, request: HttpRequest) -> HttpResponse:
            return insert(request)

    site.serve(Report.as_view())
    assert statuses([Visitor().get(), Visitor().get()]) == [200, 200]
    told = [record for record in caplog.records if record.name == "django_singleflight"]
    assert [record.levelno for record in told].count(logging.WARNING) == 1
    assert "ATOMIC_REQUESTS" in told[0].getMessage()
    assert count() == 2


def test_inside_a_transaction_that_has_written_nothing_is_shared(site: Site, database: None) -> None:
    class Writes(Notes):
        def __call__(self, request: HttpRequest) -> Any:
            with transaction.atomic():
                insert(request)
                return self.get_response(request)

    globals()["Writes"] = Writes
    site.set(MIDDLEWARE=[f"{__name__}.Writes"])
    page = Page(ok)
    page.go_on.set()
    site.serve(single_flight(ttl=60)(page))
    Visitor().get()
    Visitor().get()
    assert page.runs == 2


def test_idle_connections_are_given_back_and_others_are_not(database: None) -> None:
    connection = connections["default"]
    count()
    with transaction.atomic():
        atomic.give_back_connections()
        assert connection.connection is not None
    connection.settings_dict["CONN_MAX_AGE"] = 60
    atomic.give_back_connections()
    assert connection.connection is not None
    connection.settings_dict["CONN_MAX_AGE"] = 0
    atomic.give_back_connections()
    assert connection.connection is None


def test_each_response_is_closed_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    original = HttpResponse.close

    def close(response: HttpResponse) -> None:
        closed.append(id(response))
        original(response)

    monkeypatch.setattr(HttpResponse, "close", close)
    page = Page(ok)
    site.serve(single_flight(page))
    got = site.herd(page, *(Visitor() for _ in range(4)))
    assert page.runs == 1
    assert sorted(closed) == sorted(map(id, got))
    assert all(response.closed for response in got)


# Limits


@pytest.mark.parametrize("most", [0, 1, 3])
def test_who_would_wait_too_far_behind_is_turned_away_at_once(most: int, site: Site) -> None:
    page = Page(ok)
    site.serve(single_flight(max_waiting=most)(page))
    first = site.start(Visitor())
    assert page.running.wait(20)
    waiting = []
    for number in range(most):
        waiting.append(site.start(Visitor()))
        site.wait_for(number + 1)
    turned_away = [Visitor().get() for _ in range(3)]
    assert statuses(turned_away) == [503] * 3
    assert {response["Retry-After"] for response in turned_away} == {"5"}
    page.go_on.set()
    assert texts([call.result(20) for call in (first, *waiting)]) == ["x"] * (most + 1)
    assert page.runs == 1
    assert Visitor().get().content == b"x"  # and the next one is welcome


def test_on_busy_the_view_can_be_run(site: Site) -> None:
    page = Page(ok)
    site.serve(single_flight(max_waiting=0, on_busy="run")(page))
    first = site.start(Visitor())
    assert page.running.wait(20)
    assert Visitor().get().content == b"x"
    page.go_on.set()
    first.result(20)
    assert page.runs == 2


# In vain


def waited_in_vain(site: Site, **options: Any) -> Any:
    page = Page(ok)
    site.serve(single_flight(wait_timeout=0.1, **options)(page))
    first = site.start(Visitor())
    assert page.running.wait(20)
    response = Visitor().get()
    page.go_on.set()
    assert first.result(20).content == b"x"
    return response


def test_who_has_waited_too_long_gets_a_503_and_one_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    response = waited_in_vain(site)
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert b"try again" in response.content
    assert "no-store" in response["Cache-Control"]
    assert [(record.name, record.levelno) for record in caplog.records] == [("django_singleflight", logging.WARNING)]


def test_the_page_of_the_project(site: Site) -> None:
    pages = {"503.html": "<h1>busy</h1>", "504.html": "<h1>slow</h1>"}
    loaders = [("django.template.loaders.locmem.Loader", pages)]
    backend = "django.template.backends.django.DjangoTemplates"
    site.set(TEMPLATES=[{"BACKEND": backend, "OPTIONS": {"loaders": loaders}}])
    response = waited_in_vain(site)
    assert response.content == b"<h1>busy</h1>"
    assert response["Content-Type"].startswith("text/html")


def test_a_broken_page_of_the_project_still_is_a_503(site: Site) -> None:
    loaders = [("django.template.loaders.locmem.Loader", {"503.html": "{% nonsense %}"})]
    backend = "django.template.backends.django.DjangoTemplates"
    site.set(TEMPLATES=[{"BACKEND": backend, "OPTIONS": {"loaders": loaders}}])
    assert waited_in_vain(site).status_code == 503


def test_on_busy_run(site: Site) -> None:
    assert waited_in_vain(site, on_busy="run").content == b"x"


def test_a_flight_that_an_operator_ends(site: Site) -> None:
    page = Page(ok)
    site.serve(single_flight(page))
    first, second = site.start(Visitor()), None
    assert page.running.wait(20)
    second = site.start(Visitor())
    site.wait_for(1)
    (info,) = eventually(default_group().live, within=10)
    assert default_group().cancel(info.key)
    assert second.result(20).status_code == 503
    page.go_on.set()
    assert first.result(20).status_code == 503


def test_a_view_that_runs_too_long(site: Site) -> None:
    page = Page(ok)
    site.serve(single_flight(hard_timeout=0.6, lease=0.4, heartbeat=0.1)(page))
    first = site.start(Visitor())
    assert page.running.wait(20)
    second = site.start(Visitor())
    assert second.result(20).status_code == 504
    page.go_on.set()
    assert first.result(20).content == b"x"  # it is there, after all


@pytest.mark.parametrize(
    ("error", "status"), [(HardTimeoutError, 500), (FlightCancelledError, 500), (TakeoverLimitError, 500)]
)
def test_errors_of_flights_inside_the_view_are_the_views_own(error: Any, status: int, site: Site) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        raise error("inside")

    page = Page(body)
    site.serve(single_flight(page))
    assert statuses(site.herd(page, Visitor(), Visitor())) == [status] * 2
    assert page.runs == 1


def test_an_exception_is_raised_in_each_visitors_request(site: Site) -> None:
    raised: list[Exception] = []

    class Catches(Notes):
        def __call__(self, request: HttpRequest) -> Any:
            return self.get_response(request)

        def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse:
            raised.append(exception)
            return HttpResponse("caught")

    globals()["Catches"] = Catches
    site.set(MIDDLEWARE=[f"{__name__}.Catches"])

    def body(request: HttpRequest) -> HttpResponse:
        raise ValueError("x")

    page = Page(body)
    site.serve(single_flight(page))
    assert texts(site.herd(page, Visitor(), Visitor())) == ["caught"] * 2
    assert [repr(each) for each in raised] == ["ValueError('x')"] * 2
    assert page.runs == 1


@pytest.mark.parametrize(("policy", "expected"), [("run", 200), ("raise", 503)])
def test_without_redis(policy: str, expected: int, site: Site) -> None:
    site.set(SINGLEFLIGHT={"URL": "redis://127.0.0.1:1/0", "ON_STORE_ERROR": policy})
    page = Page(ok)
    page.go_on.set()
    site.serve(single_flight(page))
    assert Visitor().get().status_code == expected
    singleflight_sync.close()


def test_switched_off(site: Site, server: Server) -> None:
    page = Page(lambda r: HttpResponse(type(r.META).__name__))
    page.go_on.set()
    for settings, options in (({"ENABLED": False}, {}), ({}, {"enabled": False}), ({}, {"enabled": lambda: False})):
        site.set(SINGLEFLIGHT={"URL": server.url, **settings})
        site.serve(single_flight(ttl=60, **options)(page))
        assert Visitor().get().content == Visitor().get().content == b"dict"
    assert page.runs == 6


def test_an_interrupted_worker_hands_over(site: Site) -> None:
    def body(request: HttpRequest) -> HttpResponse:
        if page.runs == 1:
            raise SystemExit(1)
        return HttpResponse("x")

    page = Page(body)
    site.serve(single_flight(page))
    first = site.start(Visitor())
    assert page.running.wait(20)
    second = site.start(Visitor())
    site.wait_for(1)
    page.go_on.set()
    assert second.result(20).content == b"x"
    with pytest.raises(SystemExit):
        first.result(20)
    assert page.runs == 2
