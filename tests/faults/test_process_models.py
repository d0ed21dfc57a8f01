"""Forks, gunicorn, gevent, uWSGI: however the processes came to be, flights work in them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
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
from tests.support.monitor import connections
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.processes import Child
    from tests.support.servers import Server

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2}
LONG: dict[str, Any] = {"lease": 60, "heartbeat": 1}
MODELS = "tests.support.models"

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
def start_child(server: Server, spawn: Callable[..., Child]) -> Callable[..., Child]:
    """Starts a function of ``tests.support.models``; children end before the server is looked at."""
    return lambda function, **arguments: spawn(f"{MODELS}:{function}", url=server.url, **arguments)


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


# Imports


def test_no_lock_event_local_thread_or_connection_is_made_at_import(spawn: Callable[..., Child]) -> None:
    told = spawn(f"{MODELS}:imports").result()
    assert told["modules"] > 25
    assert (told["made"], told["threads"]) == ([], 1)


# Forks


def test_a_pool_that_is_forked_after_use_shares_one_flight_and_beats_in_the_child(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    own, *outcomes = start_child("pool_after_use", journal=journal.path).result(within=40)
    assert own == "parent"
    assert [outcome for _, outcome in outcomes] == [["value", "k"]] * 4
    assert len({pid for pid, _ in outcomes}) > 1
    assert names(journal) == ["k", "parent", "warm"]


def test_a_child_forked_in_mid_flight_follows_its_parents_flight_like_anybody_else(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    start_child("fork_in_mid_flight", journal=journal.path).result(within=40)
    assert names(journal) == ["parent"]


def test_a_function_that_forks_publishes_in_its_parent_only(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    assert start_child("fork_inside_the_function", journal=journal.path).result() == ["parent", "parent"]


def test_a_child_of_the_function_that_asks_for_the_same_key_is_told_so_at_once(
    start_child: Callable[..., Child],
) -> None:
    """The function waits for it, as for a pool of processes: both would wait for each other."""
    assert start_child("ask_in_a_forked_function").result() == "parent"


@pytest.mark.parametrize("kind", ["Exception", "SystemExit"])
def test_a_forked_child_that_raises_out_of_the_function_does_not_end_the_flight(
    start_child: Callable[..., Child], kind: str
) -> None:
    assert start_child("raise_in_a_forked_function", kind=kind).result() == ["parent", "parent"]


def test_children_forked_while_threads_fly_are_never_stuck(start_child: Callable[..., Child]) -> None:
    assert start_child("fork_under_threads", forks=15).result(within=50) == [0] * 15


def test_a_forked_child_leaves_its_parents_connections_alone(start_child: Callable[..., Child], server: Server) -> None:
    child = start_child("child_leaves_connections_alone")
    assert child.receive() == "used"
    before = {row["id"] for row in connections(server)}
    child.release()
    assert child.receive() == "flown"
    assert {row["id"] for row in connections(server)} > before  # it has some of its own
    child.release()
    assert child.receive() == "forked"
    assert {row["id"] for row in connections(server)} == before
    child.release()
    child.result()


def test_a_follower_in_the_parent_is_not_hurt_by_a_fork(
    start_child: Callable[..., Child], group: sfs.SingleFlight, journal: Journal
) -> None:
    work = Work("foreign")
    owner = Call(group, "k", work)
    work.wait_for(1)
    child = start_child("follow_over_a_fork", journal=journal.path)
    assert child.receive() == "forked"
    work.let_go()
    assert owner.result() == "foreign"
    child.result()
    assert names(journal) == ["other"]


def test_the_default_group_and_its_decorator_work_in_grandchildren(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    assert start_child("default_group_after_a_fork", journal=journal.path).result(within=40) == [0, 0]
    assert 1 <= len(journal) <= 5  # late ones fly again: nothing is stored
    assert set(names(journal)) == {"decorated"}


def test_a_killed_fork_that_nobody_has_reaped_is_replaced_at_once(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    assert start_child("killed_fork", journal=journal.path).result(within=40) == "parent"
    assert names(journal) == ["child", "parent"]


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


class Greenlets:
    """A process under gevent, see ``tests.support.greenlets``."""

    def __init__(self, order: str, scenario: str, url: str, journal: Journal) -> None:
        if importlib.util.find_spec("gevent") is None:
            parts.missing("no gevent: install the extra 'test'")
        command = [sys.executable, "-m", "tests.support.greenlets", order, scenario, url, journal.path]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def report(self, *, within: float = 45.0) -> Any:
        try:
            out, errors = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError("the greenlets hang") from None
        assert self.process.returncode == 0, errors
        assert "would block" not in errors
        return json.loads(out)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def greenlets(server: Server, journal: Journal) -> Iterator[Callable[..., Greenlets]]:
    with ExitStack() as stack:

        def start(scenario: str, order: str = "late") -> Greenlets:
            process = Greenlets(order, scenario, server.url, journal)
            stack.callback(process.close)
            return process

        yield start


@pytest.mark.parametrize("order", ["late", "early"])
def test_a_herd_of_greenlets_flies_each_key_once(
    greenlets: Callable[..., Greenlets], group: sfs.SingleFlight, journal: Journal, order: str
) -> None:
    process = greenlets("herd", order)
    journal.wait_for(51)
    outside = Call(group, "one", lambda: "outside")
    assert process.report() == {"alive": 0, "right": True}
    assert outside.result() == "one"
    assert len(journal) == 51


@pytest.mark.parametrize("order", ["late", "early"])
def test_greenlets_behind_one_that_never_yields_get_the_new_owners_value(
    greenlets: Callable[..., Greenlets], journal: Journal, group: sfs.SingleFlight, order: str
) -> None:
    process = greenlets("spin", order)
    journal.wait_for(1)
    assert group.run("k", lambda: "outside") == "outside"
    assert process.report() == [["value", "outside"]] * 3
    assert len(journal) == 1


def test_a_killed_greenlet_gives_its_flight_up_and_harms_nobody(
    greenlets: Callable[..., Greenlets], journal: Journal
) -> None:
    assert greenlets("kill").report() == ["heir", "heir", "killed", "heir"]
    assert [note.who for note in journal.notes()] == ["owner", "heir"]


def test_a_greenlet_that_times_out_as_a_follower_leaves_alone(
    greenlets: Callable[..., Greenlets], journal: Journal, group: sfs.SingleFlight
) -> None:
    work = Work("outside")
    owner = Call(group, "k", work)
    work.wait_for(1)
    process = greenlets("timeout")
    journal.wait_for(1)
    work.let_go()
    assert owner.result() == "outside"
    assert process.report() == ["timeout", "outside", "outside", "outside"]


def test_native_threads_and_greenlets_may_share_a_group(greenlets: Callable[..., Greenlets], journal: Journal) -> None:
    assert greenlets("native").report() == [["value", "value"]] * 6
    assert len(journal) == 1


# uWSGI

NO_THREADS = [{"processes": "2"}, {"enable-threads": "false"}, {"enable-threads": "0"}, {"threads": "1"}]
THREADS: list[dict[str, Any]] = [{"enable-threads": True}, {"enable-threads": "true"}, {"threads": "4"}]


@pytest.mark.parametrize("opt", NO_THREADS)
def test_under_uwsgi_without_threads_a_flight_takes_one_long_lease_and_nobody_beats(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight, opt: dict[str, Any]
) -> None:
    options = {**QUICK, "ttl": 30, "hard_timeout": 40}
    child = start_child("flight_under_uwsgi", journal=journal.path, opt=opt, options=options, seconds=2 * LEASE)
    assert child.receive() == "running"
    follower = Call(group, "k", lambda: "outside")
    seen = child.result()
    assert seen["outcome"] == ["value", "uwsgi"]
    assert follower.result() == "uwsgi"
    assert seen["lease"] == 40
    assert seen["lease_left"] < 40 - LEASE  # nobody has renewed it
    assert seen["threads"] == []
    assert len(seen["warnings"]) == 1
    assert "enable-threads" in seen["warnings"][0]


@pytest.mark.parametrize("opt", THREADS)
def test_under_uwsgi_with_threads_a_flight_has_a_heartbeat(
    start_child: Callable[..., Child], journal: Journal, opt: dict[str, Any]
) -> None:
    options = {**QUICK, "ttl": 30, "hard_timeout": 40}
    seen = start_child("flight_under_uwsgi", journal=journal.path, opt=opt, options=options, seconds=2 * LEASE).result()
    assert seen["outcome"] == ["value", "uwsgi"]
    assert seen["lease"] == LEASE
    assert "singleflight-heartbeat" in seen["threads"]
    assert seen["warnings"] == []


def test_under_uwsgi_without_threads_a_flight_needs_a_hard_timeout(
    start_child: Callable[..., Child], journal: Journal
) -> None:
    options = {**QUICK, "hard_timeout": None}
    seen = start_child("flight_under_uwsgi", journal=journal.path, opt={}, options=options, seconds=0).result()
    for outcome in (seen["outcome"], seen["second"]):
        assert outcome[:2] == ["error", "ConfigurationError"]
        assert "hard_timeout" in outcome[2]
    assert len(journal) == 0


def test_an_owner_without_a_heartbeat_that_is_killed_is_replaced_at_once(
    start_child: Callable[..., Child], journal: Journal, group: sfs.SingleFlight
) -> None:
    options = {**QUICK, "hard_timeout": 200}
    child = start_child("flight_under_uwsgi", journal=journal.path, opt={}, options=options, seconds=50)
    assert child.receive() == "running"
    follower = Call(group, "k", lambda: "outside")
    wait_for_followers(group, "k", 1)
    child.kill()
    assert follower.result() == "outside"


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
