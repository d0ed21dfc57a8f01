"""What becomes of a flight when its owner, its lease or its data are hurt."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import redis

import singleflight_sync as sfs
from singleflight_sync import CancelReason, keeper
from tests.support.flights import (
    Call,
    Journal,
    Work,
    followers,
    grip,
    wait_for_callers,
    wait_for_followers,
)
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.processes import Child
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2, "ttl": 30}
LONG: dict[str, Any] = {"lease": 60, "heartbeat": 4, "ttl": 30}
META, STREAM, RESULT, SEQUENCE = (
    "ai:flight:meta:{k}",
    "ai:flight:stream:{k}",
    "ai:flight:result:{k}",
    "ai:flight:owner-seq",
)
BOARD_AND_LOG = (META, STREAM, RESULT)


@pytest.fixture(scope="module", autouse=True)
def impatient_keeper() -> Iterator[None]:
    """The timer thread ends with its test, and not two seconds later."""
    idle, keeper.IDLE = keeper.IDLE, 0.1
    yield
    keeper.IDLE = idle


@pytest.fixture
def make(server: Server) -> Iterator[Callable[..., sfs.SingleFlight]]:
    """Makes groups, closed at the end: ``make(url, **options)``."""
    with ExitStack() as stack:
        yield lambda url=server.url, **options: stack.enter_context(sfs.SingleFlight(url=url, **{**QUICK, **options}))
        Work.let_all_go()


@pytest.fixture
def here(make: Callable[..., sfs.SingleFlight]) -> sfs.SingleFlight:
    return make()


@pytest.fixture
def there(make: Callable[..., sfs.SingleFlight], server: Server) -> sfs.SingleFlight:
    """A group that shares nothing with ``here`` but the server: to Redis, another process."""
    return make(server.unix_url)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def fly(server: Server, spawn: Callable[..., Child], journal: Journal) -> Callable[..., Child]:
    """Starts a child that calls ``run("k")``; children end before the server is looked at."""

    def start(name: str, work: str = "now", **arguments: Any) -> Child:
        arguments["options"] = {**QUICK, **arguments.pop("options", {})}
        arguments.setdefault("url", server.url)
        return spawn("tests.support.flights:fly", key="k", name=name, work=work, journal=journal.path, **arguments)

    return start


def running(child: Child) -> Child:
    """Wait until the child's function runs."""
    assert child.receive() == "running"
    return child


def lapse(client: redis.Redis) -> None:
    """Wait until the live flight of ``k`` has lapsed."""
    eventually(lambda: not client.exists(META), what="the lease is over")


def beats(client: redis.Redis) -> int:
    return int(client.hget(META, "heartbeatAt") or 0)


def wait_for_beat(client: redis.Redis, *, after: int) -> None:
    eventually(lambda: beats(client) > after, what="a beat")


def entries(client: redis.Redis) -> list[dict[bytes, bytes]]:
    log: Any = client.xrange(STREAM)
    return [fields for _, fields in log]


def claims(client: redis.Redis) -> list[dict[bytes, bytes]]:
    return [fields for fields in entries(client) if fields[b"event"] == b"claimed"]


def ends(client: redis.Redis) -> list[bytes]:
    """The ends in the log, oldest first."""
    events = [fields[b"event"] for fields in entries(client)]
    return [event for event in events if event in {b"succeeded", b"failed", b"cancelled", b"released"}]


# Beats that fail


def test_connections_killed_between_two_beats_cost_no_lease(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    follower = Call(there, "k", work)
    wait_for_followers(there, "k", 1)
    for _ in range(4):
        seen = beats(client)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_for_beat(client, after=seen)
    work.let_go()
    assert owner.result() == "value"
    assert follower.result() == "value"
    assert work.runs == 1


@pytest.mark.parametrize("outage", ["refuse", "black_hole"])
def test_an_outage_shorter_than_the_lease_costs_nothing_in_this_flight_nor_in_the_next(
    make: Callable[..., sfs.SingleFlight], there: sfs.SingleFlight, proxy: Proxy, client: redis.Redis, outage: str
) -> None:
    behind = make(proxy.url, lease=6, heartbeat=0.2, ttl=0)
    for _ in range(2):
        work = Work("value")
        owner = Call(behind, "k", work)
        work.wait_for(1)
        wait_for_beat(client, after=beats(client))
        getattr(proxy, outage)()
        proxy.cut()
        seen = beats(client)
        time.sleep(0.8)
        assert beats(client) == seen, "a beat came through the outage"
        proxy.forward()
        proxy.cut()
        wait_for_beat(client, after=seen)
        wait_for_beat(client, after=beats(client))  # and they go on
        follower = Call(there, "k", work, ttl=0)
        wait_for_followers(there, "k", 1)
        work.let_go()
        assert owner.result() == follower.result() == "value"
        assert work.runs == 1


def test_an_outage_longer_than_the_lease_fires_store_unreachable_and_the_flight_goes_on_after_it(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy, client: redis.Redis
) -> None:
    behind = make(proxy.url)
    work = Work("value")
    owner = Call(behind, "k", work)
    work.wait_for(1)
    proxy.refuse()
    token = work.flight.cancel_token
    assert token.wait(20)
    assert token.reason is CancelReason.STORE_UNREACHABLE
    token.checkpoint()  # under "run" the function finishes
    lapse(client)
    proxy.forward()
    wait_for_beat(client, after=0)  # nobody came: the board is put back
    work.let_go()
    assert owner.result() == "value"
    assert behind.get("k") == "value"
    assert len(claims(client)) == 1


def test_under_run_an_owner_that_cannot_publish_returns_its_value_and_runs_no_second_time(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy
) -> None:
    behind = make(proxy.url)
    work = Work("value")
    owner = Call(behind, "k", work)
    work.wait_for(1)
    neighbour = Call(behind, "k", work)
    wait_for_callers(behind, "k", 1)
    proxy.refuse()
    assert work.flight.cancel_token.wait(20)
    assert work.flight.cancel_token.reason is CancelReason.STORE_UNREACHABLE
    work.let_go()
    assert owner.result() == neighbour.result() == "value"
    assert work.runs == 1


def test_under_raise_a_checkpoint_stops_the_function_when_redis_is_unreachable(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy
) -> None:
    behind = make(proxy.url, on_store_error="raise")
    runs = []

    def function() -> None:
        runs.append(1)
        token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
        while True:
            token.wait(0.05)
            token.checkpoint()

    owner = Call(behind, "k", function)
    eventually(lambda: runs, what="an execution")
    neighbour = Call(behind, "k", function)
    wait_for_callers(behind, "k", 1)
    proxy.refuse()
    assert isinstance(owner.error(), sfs.StoreError)
    assert isinstance(neighbour.error(), sfs.StoreError)
    assert len(runs) == 1


def test_under_raise_an_owner_that_cannot_publish_raises_and_runs_no_second_time(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy
) -> None:
    behind = make(proxy.url, on_store_error="raise")
    work = Work("value")
    owner = Call(behind, "k", work)
    work.wait_for(1)
    neighbour = Call(behind, "k", work)
    wait_for_callers(behind, "k", 1)
    proxy.refuse()
    work.let_go()
    assert isinstance(owner.error(), sfs.StoreError)
    assert isinstance(neighbour.error(), sfs.StoreError)
    assert work.runs == 1


# Keys that vanish or are overwritten


@pytest.mark.parametrize("hurt", ["delete", "expire"])
def test_a_board_that_is_gone_is_put_back_by_the_next_beat(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis, hurt: str
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    token = work.flight.fencing_token
    wait_for_beat(client, after=beats(client))
    seen = beats(client)
    client.delete(META) if hurt == "delete" else client.pexpire(META, 1)
    wait_for_beat(client, after=seen)
    follower = Call(there, "k", work)
    wait_for_followers(there, "k", 1)
    assert not work.flight.cancel_token.cancelled
    work.let_go()
    assert owner.result() == follower.result() == "value"
    assert (work.runs, work.flight.fencing_token) == (1, token)


def test_a_board_that_is_put_back_keeps_the_mark_of_a_forgotten_flight(
    here: sfs.SingleFlight, client: redis.Redis
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    assert here.forget("k")
    client.delete(META)
    wait_for_beat(client, after=0)
    assert client.hget(META, "forgotten") == b"1"
    work.let_go()
    assert owner.result() == "value"
    assert here.get("k") is None


def test_a_flight_whose_board_is_gone_can_be_published(here: sfs.SingleFlight, client: redis.Redis) -> None:
    """No beat in between: the log says that the flight is open."""
    work = Work("value")
    owner = Call(here, "k", work, **LONG)
    work.wait_for(1)
    client.delete(META)
    work.let_go()
    assert owner.result() == "value"
    assert here.get("k") == "value"


def test_an_overwritten_token_fires_lost_and_the_value_is_refused(here: sfs.SingleFlight, client: redis.Redis) -> None:
    work = Work("old", "new")
    owner = Call(here, "k", work)
    work.wait_for(1)
    client.hset(META, "ownerToken", work.flight.fencing_token + 1)
    token = work.flight.cancel_token
    assert token.wait(20)
    assert token.reason is CancelReason.LOST
    work.let_go(2)
    assert owner.result() == "new"  # the stranger ends without an outcome: run again
    assert here.get("k") == "new"
    assert ends(client) == [b"succeeded"]


def test_waiters_of_a_lost_owner_get_the_new_owners_value_while_the_old_one_is_stuck(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    old, new = Work("old"), Work("new")
    owner = Call(here, "k", old, lease=2, heartbeat=1)
    old.wait_for(1)
    waiters = [Call(here, "k", old) for _ in range(3)]
    wait_for_callers(here, "k", 3)
    client.delete(*BOARD_AND_LOG)
    successor = Call(there, "k", new)
    new.wait_for(1)
    assert old.flight.cancel_token.wait(20)
    assert old.flight.cancel_token.reason is CancelReason.LOST
    new.let_go()
    assert [caller.result() for caller in [successor, *waiters]] == ["new"] * 4
    assert not owner.done
    old.let_go()
    assert owner.result() == "new"
    assert (old.runs, new.runs) == (1, 1)


def test_a_value_is_refused_under_an_overwritten_token_that_no_beat_has_seen(
    here: sfs.SingleFlight, client: redis.Redis
) -> None:
    work = Work("old", "new")
    owner = Call(here, "k", work, lease=2, heartbeat=1)
    work.wait_for(1)
    client.hset(META, "ownerToken", work.flight.fencing_token + 1)
    work.let_go(2)
    assert owner.result() == "new"
    assert here.get("k") == "new"


def test_a_lost_log_alone_does_not_end_a_flight(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    follower = Call(there, "k", work)
    wait_for_followers(there, "k", 1)
    client.delete(STREAM)
    wait_for_beat(client, after=beats(client))
    assert not work.flight.cancel_token.cancelled
    work.let_go()
    assert owner.result() == follower.result() == "value"
    assert work.runs == 1


# All data lost


@pytest.mark.parametrize("loss", ["flushall", "delete", "with the number"])
def test_after_a_loss_of_all_data_the_flight_goes_on_under_a_new_token_and_stores_nothing(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis, loss: str
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    follower = Call(there, "k", work)
    wait_for_followers(there, "k", 1)
    before = work.flight.fencing_token
    if loss == "flushall":
        client.flushall()
    else:
        client.delete(*BOARD_AND_LOG, *([SEQUENCE] if loss == "with the number" else []))
    eventually(lambda: client.exists(META), what="the heartbeat claims anew")
    (claim,) = claims(client)
    assert (claim[b"continues"], claim[b"takeovers"]) == (b"%d" % before, b"0")
    eventually(lambda: work.flight.fencing_token > before, what="the new token is known to the function")
    assert not work.flight.cancel_token.cancelled
    work.let_go()
    assert owner.result() == follower.result() == "value"
    assert work.runs == 1
    assert here.get("k") is None


def test_after_a_loss_of_data_who_comes_later_takes_nothing_of_the_flight_and_runs_after_it(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    old, new = Work("old"), Work("new")
    owner = Call(here, "k", old)
    old.wait_for(1)
    client.flushall()
    eventually(lambda: client.exists(META), what="the heartbeat claims anew")
    newcomer = Call(there, "k", new)
    neighbour = Call(here, "k", new)  # in the owner's own process
    wait_for_followers(there, "k", 2)
    assert new.runs == 0
    old.let_go()
    assert owner.result() == "old"
    new.wait_for(1)
    new.let_go()
    assert newcomer.result() == neighbour.result() == "new"
    assert (old.runs, new.runs) == (1, 1)
    assert here.get("k") == "new"


@pytest.mark.parametrize("first_to_end", ["the old owner", "the new owner"])
@pytest.mark.parametrize("ttl", [0, 30])
def test_after_a_failover_that_lost_the_flight_the_old_owners_callers_get_the_new_owners_value(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis, first_to_end: str, ttl: int
) -> None:
    """Lease and beat are long: the new owner is there before the old one's heartbeat looks."""
    options = {**LONG, "lease": 2, "heartbeat": 1, "ttl": ttl}
    old, new = Work("old"), Work("new")
    owner = Call(here, "k", old, **options)
    old.wait_for(1)
    neighbour = Call(here, "k", old, **options)
    wait_for_callers(here, "k", 1)
    client.delete(*BOARD_AND_LOG, SEQUENCE)
    successor = Call(there, "k", new, **options)
    new.wait_for(1)
    assert new.flight.fencing_token > old.flight.fencing_token
    if first_to_end == "the old owner":
        old.let_go()
        wait_for_followers(there, "k", 1)
        new.let_go()
    else:
        new.let_go()
        assert successor.result() == "new"
        old.let_go()
    assert successor.result() == owner.result() == neighbour.result() == "new"
    assert (old.runs, new.runs) == (1, 1)
    assert ends(client) == [b"succeeded"]


def test_an_owner_whose_data_are_lost_before_it_publishes_keeps_its_value(
    here: sfs.SingleFlight, client: redis.Redis
) -> None:
    work = Work("value")
    owner = Call(here, "k", work, **LONG)
    work.wait_for(1)
    neighbour = Call(here, "k", work, **LONG)
    wait_for_callers(here, "k", 1)
    client.delete(*BOARD_AND_LOG)
    work.let_go()
    assert owner.result() == neighbour.result() == "value"
    assert work.runs == 1
    assert here.get("k") is None
    assert not client.exists(META, STREAM)


def test_a_restart_of_the_server_in_mid_flight_runs_nothing_twice(start_server: Callable[..., Server]) -> None:
    server = start_server()
    options: dict[str, Any] = {"lease": 4, "heartbeat": 0.2}
    with sfs.SingleFlight(url=server.url, **options) as here, sfs.SingleFlight(url=server.unix_url, **options) as there:
        for _ in range(2):
            work = Work("value")
            owner = Call(here, "k", work, ttl=0)
            work.wait_for(1)
            follower = Call(there, "k", work, ttl=0)
            wait_for_followers(there, "k", 1)
            server.restart()
            with redis.Redis(port=server.port) as client:
                eventually(lambda: client.exists(META), what="the heartbeat claims anew")
            work.let_go()
            assert owner.result() == follower.result() == "value"
            assert work.runs == 1


# Owners that are paused, and wake up


@pytest.mark.parametrize("ttl", [0, 30])
def test_a_paused_owner_wakes_up_to_the_new_owners_value(
    fly: Callable[..., Child], journal: Journal, client: redis.Redis, here: sfs.SingleFlight, ttl: int
) -> None:
    first = running(fly("first", "wait", options={"ttl": ttl}, threads=2))
    second = fly("second", options={"ttl": ttl})
    wait_for_followers(here, "k", 1)
    first.pause()
    assert second.result() == [["value", "second"]]
    first.release()
    first.resume()
    assert first.result() == [["value", "second"], ["value", "second"]]
    assert [note.who for note in journal.notes()] == ["first", "second"]
    assert [claim[b"takeovers"] for claim in claims(client)] == [b"0", b"1"]
    assert ends(client) == [b"succeeded"]
    assert here.get("k") == (None if ttl == 0 else "second")


def test_a_paused_owner_wakes_up_while_the_new_owner_is_at_it_and_waits_for_it(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight
) -> None:
    first = running(fly("first", "wait"))
    second = fly("second", "wait")
    wait_for_followers(here, "k", 1)
    first.pause()
    running(second)
    first.release()
    first.resume()
    wait_for_followers(here, "k", 1)
    second.release()
    assert first.result() == second.result() == [["value", "second"]]
    assert len(journal) == 2


def test_a_paused_owner_that_nobody_replaced_publishes(
    fly: Callable[..., Child], client: redis.Redis, here: sfs.SingleFlight, journal: Journal
) -> None:
    owner = running(fly("value", "wait"))
    owner.pause()
    lapse(client)
    owner.release()
    owner.resume()
    assert owner.result() == [["value", "value"]]
    assert here.get("k") == "value"
    assert len(journal) == 1


def test_a_woken_owner_learns_by_its_cancel_token_that_the_flight_is_lost(
    fly: Callable[..., Child], here: sfs.SingleFlight
) -> None:
    first = running(fly("first", "poll"))
    second = fly("second")
    wait_for_followers(here, "k", 1)
    first.pause()
    assert second.result() == [["value", "second"]]
    first.resume()
    assert first.receive() == "lost"
    assert first.result() == [["value", "second"]]


def test_a_woken_owner_stops_at_its_checkpoint_and_its_caller_gets_the_new_owners_value(
    fly: Callable[..., Child], here: sfs.SingleFlight, journal: Journal
) -> None:
    first = running(fly("first", "checkpoint"))
    second = fly("second")
    wait_for_followers(here, "k", 1)
    first.pause()
    assert second.result() == [["value", "second"]]
    first.resume()
    assert first.result() == [["value", "second"]]
    assert len(journal) == 2


def test_an_old_flight_of_the_same_thread_does_not_pass_for_the_new_one(
    here: sfs.SingleFlight, client: redis.Redis
) -> None:
    """The identity is fresh per claim, never host, process or thread."""
    tokens, nonces = [], []

    def note() -> None:
        tokens.append(sfs.current_flight().fencing_token)  # type: ignore[union-attr]
        nonces.append(client.hget(META, "nonce"))

    for _ in range(3):
        here.run("k", note, ttl=0)
    assert tokens == sorted(set(tokens))
    assert len(set(nonces)) == 3


def test_a_failed_function_of_a_replaced_owner_hurts_nobody(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    def fail() -> None:
        started.append(1)
        eventually(lambda: new.runs, what="a new owner", within=20)
        raise LookupError("of the old owner")

    started: list[int] = []
    new = Work("new")
    owner = Call(here, "k", fail, lease=2, heartbeat=1)
    eventually(lambda: started, what="an execution")
    client.delete(*BOARD_AND_LOG)
    successor = Call(there, "k", new)
    wait_for_followers(there, "k", 1)
    new.let_go()
    assert successor.result() == owner.result() == "new"
    assert new.runs == 1


# The interpreter lock


def test_a_function_that_grips_the_interpreter_longer_than_its_lease_is_replaced_and_its_value_refused(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight
) -> None:
    first = running(fly("first", f"grip {5 * LEASE}"))
    second = fly("second")
    wait_for_followers(here, "k", 1)
    first.release()
    assert second.result() == [["value", "second"]]
    assert first.result() == [["value", "second"]]
    assert [note.who for note in journal.notes()] == ["first", "second"]


def test_a_function_that_grips_the_interpreter_keeps_its_flight_if_nobody_comes(here: sfs.SingleFlight) -> None:
    def function() -> str:
        time.sleep(0.2)  # the heartbeat has begun
        grip(2 * LEASE)
        return "value"

    assert here.run("k", function) == "value"
    assert here.get("k") == "value"


# Work that does not end


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"hard_timeout": 1.0}, CancelReason.HARD_TIMEOUT), ({"stall_timeout": 0.5}, CancelReason.STALLED)],
)
def test_a_stuck_function_is_bound_and_everybody_but_its_caller_is_free_at_that_moment(
    here: sfs.SingleFlight,
    there: sfs.SingleFlight,
    client: redis.Redis,
    limit: dict[str, float],
    reason: CancelReason,
) -> None:
    stuck = Work("too late")
    owner = Call(here, "k", stuck, **limit)
    stuck.wait_for(1)
    callers = [Call(group, "k", stuck) for group in (here, here, there, there)]
    for caller in callers:
        assert isinstance(caller.error(), sfs.HardTimeoutError)
    assert not owner.done
    assert stuck.flight.cancel_token.reason is reason
    assert not client.exists(META)
    fresh = Work("fresh")
    newcomers = [Call(here, "k", fresh), Call(there, "k", fresh)]
    fresh.wait_for(1)
    fresh.let_go()
    assert [newcomer.result() for newcomer in newcomers] == ["fresh", "fresh"]
    stuck.let_go()
    assert isinstance(owner.error(), sfs.HardTimeoutError)
    assert here.get("k") == "fresh"
    assert (stuck.runs, fresh.runs) == (1, 1)


def test_a_stuck_function_in_c_frees_followers_of_other_processes(
    fly: Callable[..., Child], here: sfs.SingleFlight
) -> None:
    """It grips the interpreter, so that nobody can tell its followers: the end of the lease does."""
    stuck = running(fly("stuck", "grip 30", options={"hard_timeout": 20}))
    follower = Call(here, "k", lambda: "mine")
    wait_for_followers(here, "k", 1)
    stuck.release()
    assert follower.result() == "mine"


def test_a_function_that_stops_at_the_hard_timeout_gives_its_caller_the_same_error(
    here: sfs.SingleFlight, there: sfs.SingleFlight
) -> None:
    def function() -> None:
        token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
        while True:
            token.wait(0.02)
            token.checkpoint()

    owner = Call(here, "k", function, hard_timeout=0.8)
    eventually(lambda: there.peek("k"), what="a flight")
    follower = Call(there, "k", function)
    assert isinstance(owner.error(), sfs.HardTimeoutError)
    assert isinstance(follower.error(), sfs.HardTimeoutError)


def test_a_function_that_checks_in_does_not_stall(here: sfs.SingleFlight) -> None:
    def function() -> str:
        token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            time.sleep(0.05)
            token.checkpoint()
        return "value"

    assert here.run("k", function, stall_timeout=0.6) == "value"


def test_the_hard_timeout_ends_a_flight_also_where_redis_cannot_be_told(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy
) -> None:
    behind = make(proxy.url)
    stuck = Work("too late")
    owner = Call(behind, "k", stuck, hard_timeout=1.0)
    stuck.wait_for(1)
    neighbour = Call(behind, "k", stuck)
    wait_for_callers(behind, "k", 1)
    proxy.refuse()
    assert isinstance(neighbour.error(), sfs.HardTimeoutError)
    assert not owner.done
    stuck.let_go()
    assert isinstance(owner.error(), sfs.HardTimeoutError)
    assert stuck.runs == 1


@pytest.mark.parametrize("limit", [{"hard_timeout": 0.8}, {"stall_timeout": 0.4}])
def test_a_flight_without_redis_is_bound_too(
    make: Callable[..., sfs.SingleFlight], proxy: Proxy, limit: dict[str, float]
) -> None:
    """Threads share it all the same, and must not wait for a stuck function for ever."""
    proxy.refuse()
    behind = make(proxy.url)
    stuck = Work("too late")
    owner = Call(behind, "k", stuck, **limit)
    stuck.wait_for(1)
    neighbour = Call(behind, "k", stuck)
    assert isinstance(neighbour.error(), sfs.HardTimeoutError)
    stuck.let_go()
    assert isinstance(owner.error(), sfs.HardTimeoutError)
    assert stuck.runs == 1


# Flights inside flights


@pytest.mark.parametrize("other", ["here", "there"])
def test_a_wait_inside_a_nested_flight_checks_in_for_the_outer_one(
    here: sfs.SingleFlight, there: sfs.SingleFlight, other: str
) -> None:
    inner = Work("inner")
    elsewhere = Call(here if other == "here" else there, "inner", inner)
    inner.wait_for(1)
    outer = Call(here, "k", lambda: here.run("inner", inner), stall_timeout=0.5)
    eventually(lambda: here.peek("k"), what="the outer flight")
    time.sleep(1.5)  # three times the stall timeout, in which nothing may happen
    inner.let_go()
    assert outer.result() == elsewhere.result() == "inner"
    assert inner.runs == 1


@pytest.mark.parametrize("other", ["here", "there"])
def test_a_wait_inside_a_nested_flight_ends_when_the_outer_one_is_cancelled(
    here: sfs.SingleFlight, there: sfs.SingleFlight, other: str
) -> None:
    inner = Work("inner")
    elsewhere = Call(here if other == "here" else there, "inner", inner)
    inner.wait_for(1)
    outer = Call(here, "k", lambda: here.run("inner", inner))
    eventually(lambda: here.peek("k"), what="the outer flight")
    assert here.cancel("k")
    assert isinstance(outer.error(), sfs.FlightCancelledError)
    assert not elsewhere.done
    inner.let_go()
    assert elsewhere.result() == "inner"
    assert inner.runs == 1


def test_a_wait_two_flights_deep_checks_in_for_the_outermost_one(
    here: sfs.SingleFlight, there: sfs.SingleFlight
) -> None:
    inner = Work("inner")
    elsewhere = Call(there, "inner", inner)
    inner.wait_for(1)
    outer = Call(here, "k", lambda: here.run("middle", lambda: here.run("inner", inner)), stall_timeout=0.5)
    eventually(lambda: here.peek("middle"), what="the flight in the middle")
    time.sleep(1.5)  # three times the stall timeout, in which nothing may happen
    inner.let_go()
    assert outer.result() == elsewhere.result() == "inner"


def test_a_cancelled_outer_flight_that_owns_an_inner_one_gives_the_inner_one_up(
    here: sfs.SingleFlight, there: sfs.SingleFlight
) -> None:
    """The function of the inner flight lets the outer one's interruption pass: no outcome, a follower takes over."""
    started: list[int] = []

    def inner(outer_token: sfs.CancelToken) -> str:
        started.append(1)
        while True:
            outer_token.wait(0.02)
            outer_token.checkpoint()

    def outer() -> Any:
        token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
        return here.run("inner", lambda: inner(token), **LONG)

    owner = Call(here, "k", outer)
    eventually(lambda: started, what="the inner execution")
    follower = Call(there, "inner", lambda: "mine", **LONG)
    wait_for_followers(there, "inner", 1)
    assert here.cancel("k")
    assert isinstance(owner.error(), sfs.FlightCancelledError)
    assert follower.result() == "mine"


# Owners that die


def test_a_killed_owner_on_the_same_host_is_replaced_at_once_whatever_its_lease(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight, client: redis.Redis
) -> None:
    owner = running(fly("owner", "wait", options=LONG))
    children = [fly(f"child{number}", "wait", threads=5, options=LONG) for number in range(4)]
    wait_for_followers(here, "k", 4)
    for child in children:
        assert child.process.poll() is None
    killed_at = time.monotonic()
    owner.kill()
    _, second = journal.wait_for(2, within=15)
    assert second.at - killed_at < 10  # and not 60
    heir = next(child for child in children if child.pid == second.pid)
    running(heir)
    heir.release()
    for child in children:
        assert child.result() == [["value", second.who]] * 5
    assert len(journal) == 2
    assert [claim[b"takeovers"] for claim in claims(client)] == [b"0", b"1"]


def test_who_comes_after_the_owner_was_killed_replaces_it_at_once(
    fly: Callable[..., Child], here: sfs.SingleFlight, client: redis.Redis
) -> None:
    owner = running(fly("owner", "wait", options=LONG))
    owner.kill()
    assert client.pttl(META) > 30_000
    newcomers = [Call(here, "k", lambda: "mine") for _ in range(3)]
    assert [newcomer.result() for newcomer in newcomers] == ["mine"] * 3
    assert [claim[b"takeovers"] for claim in claims(client)] == [b"0", b"1"]


def test_owners_that_die_one_after_the_other_are_each_replaced_by_exactly_one(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight
) -> None:
    children = {child.pid: child for child in [fly(f"c{number}", "wait", options=LONG) for number in range(4)]}
    wait_for_followers(here, "k", 3)
    for deaths in range(1, 4):
        owner = journal.wait_for(deaths)[-1]
        assert len(journal) == deaths
        children.pop(owner.pid).kill()
    (last,) = children.values()
    journal.wait_for(4)
    last.release()
    assert last.result() == [["value", journal.notes()[-1].who]]
    assert len(journal) == 4


def test_a_flight_that_kills_its_owners_ends_as_a_failure_for_all(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight
) -> None:
    options = LONG | {"max_takeovers": 1}
    children = {child.pid: child for child in [fly(f"c{number}", "wait", options=options) for number in range(4)]}
    wait_for_followers(here, "k", 3)
    for deaths in range(1, 3):
        owner = journal.wait_for(deaths)[-1]
        children.pop(owner.pid).kill()
    outcomes = [child.result() for child in children.values()]
    assert [outcome[0][:2] for outcome in outcomes] == [["error", "TakeoverLimitError"]] * 2
    newcomer = Call(here, "k", lambda: "mine")
    assert isinstance(newcomer.error(), sfs.TakeoverLimitError)
    assert len(journal) == 2


def test_an_owner_that_cannot_be_watched_is_replaced_when_its_lease_is_over(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight, client: redis.Redis
) -> None:
    """As on another host: nobody here can tell by its id that it is gone."""
    owner = running(fly("owner", "wait", options={"lease": 3, "heartbeat": 1}))
    client.hset(META, "ownerId", "elsewhere/1/1/1/" + 36 * "0")
    children = [fly(f"child{number}", "now", threads=5) for number in range(4)]
    wait_for_followers(here, "k", 4)
    owner.kill()
    left = client.pttl(META) / 1000
    killed_at = time.monotonic()
    _, second = journal.wait_for(2)
    assert second.at - killed_at > left - 0.2
    for child in children:
        assert child.result() == [["value", second.who]] * 5
    assert len(journal) == 2


def test_a_living_owner_is_not_taken_for_dead_when_another_process_of_the_host_dies(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight
) -> None:
    owner = running(fly("owner", "wait"))
    follower = fly("follower")
    doomed = fly("doomed")
    wait_for_followers(here, "k", 2)
    doomed.kill()
    owner.release()
    assert follower.result() == owner.result() == [["value", "owner"]]
    assert len(journal) == 1


def test_an_owner_that_is_released_by_exit_is_replaced_without_waiting_for_its_lease(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    leave = Work("never")

    def function() -> None:
        leave()
        raise SystemExit(3)

    owner = Call(here, "k", function, **LONG)
    leave.wait_for(1)
    neighbour = Call(here, "k", lambda: "next", **LONG)
    follower = Call(there, "k", lambda: "next", **LONG)
    wait_for_followers(there, "k", 1)
    wait_for_callers(here, "k", 1)
    leave.let_go()
    assert isinstance(owner.error(), SystemExit)
    assert neighbour.result() == follower.result() == "next"
    assert [claim[b"takeovers"] for claim in claims(client)] == [b"0", b"1"]


# Clocks


def test_a_jump_of_the_local_wall_clock_changes_nothing(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    follower = Call(there, "k", work, wait_timeout=30)
    wait_for_followers(there, "k", 1)
    real = time.time
    for step in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        wait_for_beat(client, after=beats(client))
        wait_for_beat(client, after=beats(client))
        info = there.peek("k")
        assert info is not None
        assert 0 <= info.age < 60
        assert 0 <= info.heartbeat_age < 30
    monkeypatch.undo()
    work.let_go()
    assert owner.result() == follower.result() == "value"
    assert work.runs == 1


def test_a_jump_of_the_servers_clock_that_ends_all_leases_ends_no_flight(
    here: sfs.SingleFlight, there: sfs.SingleFlight, client: redis.Redis
) -> None:
    works = {key: Work(key) for key in ("k", "l", "m")}
    callers = [Call(group, key, work) for key, work in works.items() for group in (here, there)]
    for key in works:
        wait_for_followers(there, key, 1)
    for _ in range(3):
        for key in works:
            client.pexpire(f"ai:flight:meta:{{{key}}}", 1)
        eventually(lambda: len(there.live()) == 3, what="the flights are back")
    for work in works.values():
        work.let_go()
    assert [caller.result() for caller in callers] == ["k", "k", "l", "l", "m", "m"]
    assert [work.runs for work in works.values()] == [1, 1, 1]


@pytest.mark.parametrize("first", ["the owner", "the followers"])
def test_after_everybody_slept_past_the_lease_all_get_one_outcome(
    fly: Callable[..., Child], journal: Journal, here: sfs.SingleFlight, client: redis.Redis, first: str
) -> None:
    """As a laptop that is suspended: whoever is first to wake, and a second run is allowed."""
    children = [running(fly("owner", "wait"))]
    children += [fly(f"follower{number}", "now", threads=3) for number in range(2)]
    wait_for_followers(here, "k", 2)
    for child in children:
        child.pause()
    lapse(client)
    children[0].release()
    for child in children[1:] if first == "the followers" else []:
        child.resume()
        journal.wait_for(2)
    for child in children:
        child.resume()
    outcomes = [outcome for child in children for outcome in child.result()]
    assert len(outcomes) == 7
    assert len({tuple(outcome) for outcome in outcomes}) == 1
    assert outcomes[0][0] == "value"
    assert len(journal) <= 2
    assert ends(client) == [b"succeeded"]


# Groups that are closed


def test_closing_a_group_releases_its_flights_and_their_callers_keep_their_own_value(
    make: Callable[..., sfs.SingleFlight], there: sfs.SingleFlight, client: redis.Redis
) -> None:
    closed = make(**LONG)
    old, new = Work("old"), Work("new")
    owner = Call(closed, "k", old)
    old.wait_for(1)
    neighbour = Call(closed, "k", new)
    wait_for_callers(closed, "k", 1)
    follower = Call(there, "k", new, **LONG)
    wait_for_followers(there, "k", 1)
    closed.close()
    new.wait_for(1)
    new.let_go()
    assert follower.result() == neighbour.result() == "new"
    assert not owner.done
    old.let_go()
    assert owner.result() == "old"
    assert (old.runs, new.runs) == (1, 1)
    assert [claim[b"takeovers"] for claim in claims(client)] == [b"0", b"0"]
    assert there.get("k") == "new"


def test_closing_a_group_twice_and_with_many_flights_in_the_air_leaves_nothing_held(
    make: Callable[..., sfs.SingleFlight], client: redis.Redis
) -> None:
    closed = make(**LONG)
    works = {f"key {number}": Work(number) for number in range(5)}
    owners = [Call(closed, key, work) for key, work in works.items()]
    for work in works.values():
        work.wait_for(1)
    closed.close()
    closed.close()
    assert client.keys("ai:flight:meta:*") == []
    for work in works.values():
        work.let_go()
    assert [owner.result() for owner in owners] == list(range(5))
    assert closed.run("key 1", lambda: "anew") == "anew"


def test_closing_one_group_leaves_the_flights_of_another_group_of_the_same_server_alone(
    make: Callable[..., sfs.SingleFlight], here: sfs.SingleFlight
) -> None:
    closed = make()
    work = Work("value")
    owner = Call(here, "k", work)
    work.wait_for(1)
    neighbour = Call(closed, "k", work)
    wait_for_callers(here, "k", 1)
    closed.close()
    work.let_go()
    assert owner.result() == neighbour.result() == "value"
    assert work.runs == 1
    assert followers(here, "k") == 0


def test_closing_a_group_does_not_hurt_its_callers_that_follow(
    make: Callable[..., sfs.SingleFlight], there: sfs.SingleFlight
) -> None:
    closed = make()
    work = Work("value")
    owner = Call(there, "k", work)
    work.wait_for(1)
    follower = Call(closed, "k", work)
    wait_for_followers(there, "k", 1)
    closed.close()
    work.let_go()
    assert owner.result() == follower.result() == "value"
    assert work.runs == 1
