"""Real gunicorn (sync, gthread, gevent, preloaded) and uWSGI: flights work in their workers, and outlive them."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import singleflight_sync as sfs
from singleflight_sync import keeper
from tests.support import gunicorn as sites
from tests.support import parts
from tests.support.flights import Call, Journal, Work, wait_for_followers
from tests.support.gunicorn import Request, Site
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2}
LONG: dict[str, Any] = {"lease": 60, "heartbeat": 1}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason=f"{parts.NOT_APPLICABLE}no fork here")


@pytest.fixture(scope="module", autouse=True)
def impatient_keeper() -> Iterator[None]:
    """The timer thread ends with its test, and not two seconds later."""
    idle, keeper.IDLE = keeper.IDLE, 0.1
    yield
    keeper.IDLE = idle


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def group(server: Server) -> Iterator[sfs.SingleFlight]:
    """A group of the test itself: to the processes that are tried, somebody from outside."""
    with sfs.SingleFlight(url=server.url, **QUICK) as group:
        yield group
        Work.let_all_go()


@pytest.fixture
def start_site(server: Server, journal: Journal, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Starts gunicorn or uWSGI: ``start_site("gunicorn", *words, options={}, warm=False)``."""
    with ExitStack() as stack:

        def start(kind: str, *words: str, options: dict[str, Any] | None = None, warm: bool = False) -> Site:
            told = sites.environment(server.url, journal.path, **(options or QUICK))
            if warm:
                told["SITE_WARM"] = "1"
            site = getattr(sites, kind)(tmp_path / "log", told, *words)
            stack.callback(site.stop)
            return site  # type: ignore[no-any-return]

        yield start


def names(journal: Journal) -> list[str]:
    return sorted(note.who for note in journal.notes())


# gunicorn


@pytest.mark.parametrize("model", [["-k", "sync"], ["-k", "gthread", "--threads", "4"]], ids=["sync", "gthread"])
def test_workers_preloaded_with_a_used_app_share_one_flight(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal, model: list[str]
) -> None:
    site = start_site("gunicorn", "--workers", "3", "--preload", *model, warm=True)
    requests = [Request(site, key="k", work=f"sleep {4 * LEASE}") for _ in range(3)]
    journal.wait_for(1)
    outside = Call(group, "k", lambda: "outside")
    assert outside.result() == "value"
    assert [request.body() for request in requests] == ["value"] * 3
    assert names(journal) == ["value"]


def test_a_sync_worker_that_is_timed_out_gives_its_flight_up_and_is_replaced_at_once_and_once(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal
) -> None:
    """The lease is long: SystemExit gets through, and releases the flight."""
    site = start_site("gunicorn", "--workers", "3", "--timeout", "2", options=LONG)
    owner = Request(site, key="k", work="first sleep 50")
    journal.wait_for(1)
    outside = Call(group, "k", lambda: "outside", wait_timeout=20, **LONG)
    wait_for_followers(group, "k", 1)
    time.sleep(1.8)  # a worker that waits is timed out as well: it comes shortly before the owner's end
    follower = Request(site, key="k", work="first sleep 50")
    value = outside.result()
    assert follower.body() == value
    assert owner.is_cut()
    assert len(journal) + (value == "outside") == 2
    assert site.get("/fly", key="k", work="now") == value  # and the site goes on


def test_a_sync_worker_that_is_stuck_in_c_is_killed_and_replaced_at_once(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal
) -> None:
    """No handler of a signal can run: only SIGKILL ends the worker."""
    site = start_site("gunicorn", "--workers", "2", "--timeout", "2", options=LONG)
    owner = Request(site, key="k", work="first grip 50")
    journal.wait_for(1)
    outside = Call(group, "k", lambda: "outside", wait_timeout=20, **LONG)
    assert outside.result() == "outside"
    assert owner.is_cut()
    assert "SIGKILL" in site.log.read_text()
    assert site.get("/fly", key="k", work="now") == "outside"


def test_a_gthread_worker_whose_function_grips_the_interpreter_is_timed_out_and_replaced(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal
) -> None:
    words = ["--workers", "2", "-k", "gthread", "--threads", "4", "--timeout", "2"]
    site = start_site("gunicorn", *words, options=LONG)
    owner = Request(site, key="k", work="first grip 50")
    journal.wait_for(1)
    outside = Call(group, "k", lambda: "outside", wait_timeout=20, **LONG)
    assert outside.result() == "outside"
    assert owner.is_cut()
    assert site.get("/fly", key="k", work="now") == "outside"


def test_a_gthread_worker_may_compute_for_longer_than_the_worker_timeout(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal
) -> None:
    words = ["--workers", "2", "-k", "gthread", "--threads", "4", "--timeout", "2"]
    site = start_site("gunicorn", *words)
    requests = [Request(site, key="k", work="sleep 3.5") for _ in range(6)]
    journal.wait_for(1)
    outside = Call(group, "k", lambda: "outside")
    assert [request.body() for request in requests] == ["value"] * 6
    assert outside.result() == "value"
    assert len(journal) == 1


# gevent


@pytest.fixture
def gevent_config(tmp_path: Path) -> Path:
    """A configuration of gunicorn that imports the package before the worker patches."""
    path = tmp_path / "config.py"
    path.write_text("import redis\nimport singleflight_sync\n")
    return path


@pytest.mark.parametrize("order", ["patched first", "imported first", "preloaded", "preloaded and used"])
def test_flights_work_under_gunicorn_with_gevent(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal, gevent_config: Path, order: str
) -> None:
    words = {"patched first": [], "imported first": ["--config", str(gevent_config)]}.get(order, ["--preload"])
    site = start_site("gunicorn", "--workers", "2", "-k", "gevent", *words, warm=order == "preloaded and used")
    keys = ["one"] * 10 + [f"key{number}" for number in range(10)]
    requests = [Request(site, key=key, name=key, work=f"sleep {4 * LEASE}") for key in keys]
    journal.wait_for(len(set(keys)))
    outside = Call(group, "one", lambda: "outside")
    assert [request.body() for request in requests] == keys
    assert outside.result() == "one"
    assert names(journal) == sorted(set(keys))


def test_a_gevent_worker_whose_function_never_yields_is_replaced_and_its_value_refused(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal
) -> None:
    site = start_site("gunicorn", "--workers", "1", "-k", "gevent")
    owner = Request(site, key="k", work=f"spin {5 * LEASE}")
    journal.wait_for(1)
    assert group.run("k", lambda: "outside") == "outside"
    assert owner.body() == "outside"
    assert site.get("/fly", key="other", work="now") == "value"


# uWSGI


@pytest.mark.parametrize(
    "words", [[], ["--enable-threads"], ["--enable-threads", "--lazy-apps"], ["--threads", "2"]], ids=" ".join
)
def test_flights_work_under_a_real_uwsgi(
    start_site: Callable[..., Site], group: sfs.SingleFlight, journal: Journal, words: list[str]
) -> None:
    site = start_site("uwsgi", "--processes", "2", *words, options={**QUICK, "hard_timeout": 30})
    requests = [Request(site, key="k", work=f"sleep {4 * LEASE}") for _ in range(2)]
    info = eventually(lambda: group.peek("k"), what="a flight")
    assert info is not None
    assert info.lease == (LEASE if words else 30)
    outside = Call(group, "k", lambda: "outside")
    assert [request.body() for request in requests] == ["value"] * 2
    assert outside.result() == "value"
    assert names(journal) == ["value"]
    assert site.get("/fly", key="after", work="now") == "value"
