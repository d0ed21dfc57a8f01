"""Forks, greenlets, uWSGI without threads: however a process came to be and whatever it lacks, flights work in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import singleflight_sync as sfs
from singleflight_sync import keeper
from tests.support import parts
from tests.support.flights import Call, Journal, Work, wait_for_followers
from tests.support.monitor import connections
from tests.support.processes import ROOT

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


def names(journal: Journal) -> list[str]:
    return sorted(note.who for note in journal.notes())


# Imports


def test_no_lock_event_local_thread_or_connection_is_made_at_import(spawn: Callable[..., Child]) -> None:
    told = spawn(f"{MODELS}:imports").result()
    assert told["modules"] > 25
    assert (told["made"], told["threads"]) == ([], 1)


# Forks


def test_no_flight_takes_a_lock_of_the_import_system(start_child: Callable[..., Child]) -> None:
    """A child that is forked while another thread holds one would wait for it for ever."""
    assert start_child("import_locks_of_the_first_flights").result() == []


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


# gevent


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
