"""A value read from rows that may be rolled back is not shared."""

from __future__ import annotations

import threading
import unittest
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.http import HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path

from django_singleflight import transactions
from tests.djangoapp.support import Computation, Threads, followers, never
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest

    from tests.support.processes import Child


@pytest.fixture
def rows() -> Iterator[None]:
    """An empty table ``row``."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE row (id INTEGER)")
    yield
    BaseDatabaseWrapper.close(connection)  # Django's own keeps a database in memory


def insert() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO row VALUES (1)")


def count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM row")
        return int(cursor.fetchone()[0])


class RolledBackError(Exception):
    """Ends a transaction."""


def test_what_is_read_after_a_write_is_not_shared(cache: Any, rows: None) -> None:
    with transaction.atomic():
        insert()
        assert cache.get_or_set("k", count) == 1
        assert cache.get("k") is None
        transaction.set_rollback(True)
    assert cache.get_or_set("k", count) == 0


def test_what_stands_in_the_cache_is_read(cache: Any, rows: None) -> None:
    cache.set("k", 7)
    with transaction.atomic():
        insert()
        assert cache.get_or_set("k", never) == 7


def test_what_the_callable_itself_has_written_is_not_shared(cache: Any, rows: None) -> None:
    computation = Computation()

    def compute() -> int:
        computation()
        insert()
        return count()

    def ask_meanwhile() -> Any:
        assert computation.running.wait(10)
        waiting = threads.call(cache.get_or_set, "k", lambda: "computed in turn")
        rooms = cache.flights._runtime().shared.rooms._rooms
        eventually(lambda: any(room.waiting for room in rooms.values()))
        computation.go_on.set()
        return waiting.result(10)

    with Threads() as threads:
        other = threads.call(ask_meanwhile)
        with transaction.atomic():
            assert cache.get_or_set("k", compute) == 1
        assert other.result(10) == "computed in turn"
    assert cache.get("k") == "computed in turn"


def test_a_transaction_that_has_only_read_shares(cache: Any, rows: None) -> None:
    with transaction.atomic():
        count()
        with transaction.atomic():  # a savepoint is no write
            assert cache.get_or_set("k", count) == 0
    assert cache.get("k") == 0


def test_a_callable_that_commits_its_own_writes_shares(cache: Any, rows: None) -> None:
    @transaction.atomic
    def compute() -> int:
        insert()
        return count()

    assert cache.get_or_set("k", compute) == 1
    assert cache.get("k") == 1


def test_a_write_in_an_inner_block_counts_until_the_outermost_one_ends(cache: Any, rows: None) -> None:
    with transaction.atomic():
        with transaction.atomic():
            insert()
        assert cache.get_or_set("k", count) == 1
    assert cache.get("k") is None
    assert cache.get_or_set("k", count) == 1
    assert cache.get("k") == 1


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_transaction_is_left_when_it_has_ended(cache: Any, rows: None, *, fails: bool) -> None:
    @transaction.atomic  # one object, entered again and again
    def work(*, writes: bool) -> Any:
        if writes:
            insert()
            if fails:
                raise RolledBackError
        return cache.get_or_set("k", count, 60)

    with suppress(RolledBackError):
        work(writes=True)
    assert not transactions.has_written()
    value = work(writes=False)
    assert cache.get("k") == value == (0 if fails else 1)


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("SELECT 1", False),
        ("  select 1", False),
        ("-- why\n/* for\nwhom */ (SELECT 1", False),
        ("UPDATE row SET id = 2", True),
        ("DELETE FROM row", True),
        ("WITH x AS (SELECT 1) INSERT INTO row SELECT * FROM x", True),
        ("CREATE TABLE selected (id INTEGER)", True),
        ("/* SELECT */ DROP TABLE row", True),
        ("SELECTED", True),
        ("SAVEPOINT s", False),
        ("RELEASE SAVEPOINT s", False),
    ],
)
def test_a_statement_that_is_no_query_is_a_write(rows: None, statement: str, *, writes: bool) -> None:
    with transaction.atomic():
        transactions.observe_all()
        connection.execute_wrappers.append(lambda *_: None)  # no need to execute it
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.execute_wrappers.pop()
        assert transactions.has_written() is writes


def test_many_rows_at_once_are_a_write(cache: Any, rows: None) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO row VALUES (%s)", [[1], [2]])
        assert cache.get_or_set("k", count) == 2
    assert cache.get("k") is None


def test_a_transaction_without_a_block_does_not_share(cache: Any, rows: None) -> None:
    transaction.set_autocommit(False)
    try:
        assert cache.get_or_set("k", lambda: "alone") == "alone"
        assert cache.get("k") is None
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.parametrize("place", ["project", "cache"])
def test_it_may_be_shared_on_demand(make_caches: Any, rows: None, place: str) -> None:
    wanted = {"IN_ATOMIC": "share"}
    options = {"OPTIONS": {"SINGLEFLIGHT": wanted}} if place == "cache" else {}
    cache = make_caches(default=options)["default"]
    with override_settings(SINGLEFLIGHT=wanted if place == "project" else {}), transaction.atomic():
        insert()
        assert cache.get_or_set("k", count) == 1
    assert cache.get("k") == 1


def test_a_transaction_that_is_older_than_the_backend_does_not_share(cache: Any, start: Callable[..., Child]) -> None:
    child = start("write_before_the_backend_is_there")
    assert child.result() == [1, None]


def test_what_another_thread_writes_does_not_matter(cache: Any, rows: None) -> None:
    done = threading.Event()
    with Threads() as threads:

        def write() -> None:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("CREATE TABLE other (id INTEGER)")
                written.set()
                assert done.wait(10)
            BaseDatabaseWrapper.close(connection)

        written = threading.Event()
        call = threads.call(write)
        assert written.wait(10)
        assert cache.get_or_set("k", lambda: "shared") == "shared"
        assert cache.get("k") == "shared"
        done.set()
        call.result(10)


# Requests


def read_only(request: HttpRequest) -> HttpResponse:
    from django.core.cache import cache  # noqa: PLC0415 - of this thread

    return HttpResponse(str(cache.get_or_set("k", count)))


def failing(request: HttpRequest) -> HttpResponse:
    insert()
    text = read_only(request).content
    raise RolledBackError(text)


urlpatterns = [path("read", read_only), path("fail", failing)]


@pytest.fixture
def atomic_requests() -> Iterator[Client]:
    settings = connection.settings_dict
    before, settings["ATOMIC_REQUESTS"] = settings["ATOMIC_REQUESTS"], True
    with override_settings(ROOT_URLCONF=__name__):
        yield Client()
    settings["ATOMIC_REQUESTS"] = before


def test_requests_in_transactions_that_only_read_share(cache: Any, rows: None, atomic_requests: Client) -> None:
    assert atomic_requests.get("/read").content == b"0"
    assert cache.get("k") == 0


def test_a_request_that_is_rolled_back_shares_nothing(cache: Any, rows: None, atomic_requests: Client) -> None:
    with pytest.raises(RolledBackError, match="b'1'"):
        atomic_requests.get("/fail")
    assert cache.get("k") is None
    assert atomic_requests.get("/read").content == b"0"
    assert cache.get("k") == 0


# Tests of users


def test_the_transactions_of_test_cases_do_not_count(cache: Any, rows: None) -> None:
    class OfAUser(TestCase):
        def test_the_body_shares(self) -> None:
            insert()
            assert cache.get_or_set("body", count) == 1
            assert cache.get("body") == 1

        def test_a_block_of_the_code_under_test_does_not(self) -> None:
            with transaction.atomic():
                insert()
                assert cache.get_or_set("block", count) == 1
                assert cache.get("block") is None
            assert cache.get_or_set("after", count) == 1
            assert cache.get("after") == 1

        def test_callbacks_of_a_commit_are_the_users_alone(self) -> None:
            with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
                insert()
                cache.get_or_set("callbacks", count)
            assert callbacks == []

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfAUser).run(result)
    assert result.testsRun == 3
    assert (result.failures, result.errors) == ([], [])


# Helper threads


def test_the_engine_opens_no_database_connection(cache: Any, rows: None) -> None:
    opened: list[Any] = []

    def note(**facts: Any) -> None:
        opened.append(facts)

    connection_created.connect(note)
    try:
        for number in range(50):
            assert cache.get_or_set(f"k{number}", count) == 0
        computation = Computation()
        with Threads() as threads:
            call = threads.call(cache.get_or_set, "k", computation)
            assert computation.running.wait(10)
            followers(cache, "k", 0)
            computation.go_on.set()
            call.result(10)
    finally:
        connection_created.disconnect(note)
    assert opened == []
