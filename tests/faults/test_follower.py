"""What can go wrong while a follower waits: lost wake-ups, time-outs, connections, keys that stay behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis

from singleflight_sync import SingleFlight, WaitTimeoutError
from tests.support.callers import foreign, instant, making_groups, wait_for_beats, wait_for_readers
from tests.support.flights import Call, Work, wait_for_callers, wait_for_followers
from tests.support.monitor import Monitor, connections
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.callers import Make
    from tests.support.child import Channel
    from tests.support.processes import Child
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

HERE = "tests.faults.test_follower"
STREAM = "ai:flight:stream:{k}"
LONG = {"lease": 20.0, "heartbeat": 10.0}


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


def is_read(raw: bytes) -> bool:
    return b"XREAD" in raw


# The gap between the claim and the read


def test_an_outcome_that_comes_before_the_read_is_found_by_it(server: Server, proxy: Proxy, group: Make) -> None:
    held = proxy.hold(is_read)
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), **LONG), "k", second)
    held.wait()
    work.let_go()
    assert owner.result() == "value"
    held.release()
    assert (follower.result(within=5), second.runs) == ("value", 0)


@pytest.mark.parametrize("ttl", [0, 60])
def test_the_same_when_a_next_flight_has_begun_meanwhile(server: Server, proxy: Proxy, group: Make, ttl: float) -> None:
    """The follower gets the outcome of the flight that it was told of, and does not wait for the next one."""
    held = proxy.hold(is_read)
    flights, work, third = group(server.client(), **LONG, ttl=ttl), Work("value"), Work("third")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), **LONG), "k", instant("second"))
    held.wait()
    work.let_go()
    assert owner.result() == "value"
    flights.forget("k")
    next_owner = Call(flights, "k", third)
    third.wait_for(1)
    held.release()
    assert follower.result(within=5) == "value"
    third.let_go()
    assert next_owner.result() == "third"


def test_a_failure_that_comes_before_the_read_is_found_by_it(server: Server, proxy: Proxy, group: Make) -> None:
    held = proxy.hold(is_read)
    work, second = Work("value"), instant("second")

    def fail() -> None:
        work()
        raise ValueError("on purpose")

    owner = Call(group(server.client(), **LONG), "k", fail)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), **LONG), "k", second)
    held.wait()
    work.let_go()
    assert str(owner.error()) == "on purpose"
    held.release()
    assert (str(follower.error(within=5)), second.runs) == ("on purpose", 0)


def test_an_outcome_that_comes_while_the_connection_is_cut_is_found(server: Server, proxy: Proxy, group: Make) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), **LONG), "k", second)
    wait_for_readers(server, 1)
    proxy.refuse()
    wait_for_readers(server, 0)
    work.let_go()
    assert owner.result() == "value"
    proxy.forward()
    assert (follower.result(within=5), second.runs) == ("value", 0)


@pytest.mark.parametrize("how", ["cut", "reset", "half_close", "kill"])
def test_a_lost_connection_is_replaced_and_costs_nothing(server: Server, proxy: Proxy, group: Make, how: str) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=proxy.port), **LONG), "k", second)
    wait_for_readers(server, 1)
    for round_ in range(1, 4):
        before = proxy.connections
        if how == "kill":
            server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        elif how == "half_close":
            proxy.half_close()
        else:
            proxy.cut(reset=how == "reset")
        eventually(lambda before=before: proxy.connections > before, what=f"connection {round_} is made")  # type: ignore[misc]
        wait_for_readers(server, 1)
    assert proxy.connections <= 8, "no storm"
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


# What waiting costs


def test_a_follower_polls_nothing(server: Server, group: Make) -> None:
    """One look per lease less a heartbeat at most; here beats come every 0.2 s of a lease of 1 s."""
    work, second = Work("value"), instant("second")
    owner = Call(group(server.client()), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server)), "k", second)
    wait_for_readers(server, 1)
    readers = {row["addr"] for row in connections(server) if row["cmd"] == "xread"}
    with Monitor(server) as monitor:
        wait_for_beats(server.client(), 10)
    claims = [command for command in monitor.commands if " 4 ai:flight:result" in command.text]
    reads = [command for command in monitor.commands if command.address in readers]
    assert (len(claims) <= 4, reads) == (True, [])
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


def test_ten_callers_of_a_process_wait_on_one_connection(server: Server, group: Make) -> None:
    work = Work("value")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    there = group(foreign(server), **LONG)
    followers = [Call(there, "k", instant("second")) for _ in range(10)]
    wait_for_callers(there, "k", 9)
    wait_for_readers(server, 1)
    assert there.peek("k").followers == 1  # type: ignore[union-attr]
    work.let_go()
    assert [owner.result(), *(each.result() for each in followers)] == 11 * ["value"]


def own_many(channel: Channel, url: str, keys: list[str]) -> None:
    """In a child: own all keys until told, each in a thread of its own."""
    work = Work("theirs")
    with SingleFlight(url=url, lease=20) as flights:
        calls = [Call(flights, key, work) for key in keys]
        work.wait_for(len(keys))
        channel.send("owning")
        channel.wait()
        work.let_go(len(keys))
        assert [call.result() for call in calls] == len(keys) * ["theirs"]


BOUNDED: dict[str, Callable[[int], redis.ConnectionPool]] = {
    "raises when full": lambda port: redis.ConnectionPool(port=port, max_connections=3),
    "blocks when full": lambda port: redis.BlockingConnectionPool(port=port, max_connections=3, timeout=1),
}


@pytest.mark.parametrize("pool", BOUNDED)
def test_owners_never_queue_behind_followers_for_a_connection(
    server: Server, spawn: Callable[..., Child], group: Make, pool: str
) -> None:
    keys = [f"theirs {number}" for number in range(12)]
    child = spawn(f"{HERE}:own_many", url=server.url, keys=keys)
    assert child.receive() == "owning"
    client = server.keep(redis.Redis(connection_pool=BOUNDED[pool](server.port)))
    flights, work = group(client, on_store_error="raise", ttl=60), Work("ours")
    followers = [Call(flights, key, instant("second")) for key in keys]
    wait_for_readers(server, 12)
    owners = [Call(flights, f"ours {number}", work) for number in range(3)]
    work.wait_for(3)
    eventually(lambda: all(flights.peek(f"ours {number}").heartbeat_age < 0.2 for number in range(3)))  # type: ignore[union-attr]
    work.let_go(3)
    assert [owner.result() for owner in owners] == 3 * ["ours"]
    assert [flights.get(f"ours {number}") for number in range(3)] == 3 * ["ours"]
    child.release()
    assert [follower.result() for follower in followers] == 12 * ["theirs"]


def test_the_given_pool_stays_free_for_its_owner(server: Server, group: Make) -> None:
    """None of our connections is taken from the client that we were given."""
    client = server.keep(redis.Redis(connection_pool=redis.ConnectionPool(port=server.port, max_connections=1)))
    work = Work("value")
    owner = Call(group(client, **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server), **LONG), "k", instant("second"))
    wait_for_readers(server, 1)
    with client.pipeline() as pipeline:
        pipeline.watch("other")  # holds the pool's one connection
        work.let_go()
        assert (owner.result(), follower.result()) == ("value", "value")


# Who gives up


def test_a_follower_that_gives_up_leaves_nothing_pending(server: Server, group: Make) -> None:
    work = Work("value")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    there = group(foreign(server), **LONG)
    with pytest.raises(WaitTimeoutError, match="'k'"):
        there.run("k", instant("second"), wait_timeout=0.2)
    wait_for_readers(server, 0)
    assert not there._runtime().shared.rooms.is_open("k")
    work.let_go()
    assert owner.result() == "value"


def test_a_leader_that_gives_up_hands_its_read_to_the_next(server: Server, group: Make) -> None:
    work = Work("value")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    there = group(foreign(server), **LONG)
    leader = Call(there, "k", instant("second"), wait_timeout=1.5)
    wait_for_readers(server, 1)
    others = [Call(there, "k", instant("second")) for _ in range(3)]
    wait_for_callers(there, "k", 3)
    reader = {row["addr"] for row in connections(server) if row["cmd"] == "xread"}
    assert isinstance(leader.error(), WaitTimeoutError)
    assert {row["addr"] for row in connections(server) if row["cmd"] == "xread"} == reader
    assert there.peek("k").followers == 1  # type: ignore[union-attr]
    work.let_go()
    assert [owner.result(), *(each.result() for each in others)] == 4 * ["value"]


def test_the_next_flight_is_not_woken_by_the_end_of_the_last(server: Server, proxy: Proxy, group: Make) -> None:
    """The first flight's follower left; its event comes late, when the second flight has followers of its own."""
    flights, first = group(server.client(), ttl=0, **LONG), Work("first")
    owner = Call(flights, "k", first)
    first.wait_for(1)
    there = group(foreign(server), ttl=0, **LONG)
    with pytest.raises(WaitTimeoutError):
        there.run("k", instant("x"), wait_timeout=0.1)
    token = flights.peek("k").fencing_token  # type: ignore[union-attr]
    first.let_go()
    assert owner.result() == "first"
    second = Work("second")
    owner = Call(flights, "k", second)
    second.wait_for(1)
    follower = Call(there, "k", instant("x"))
    wait_for_readers(server, 1)
    for event in ("succeeded", "released", "cancelled", "forgotten", "unheard-of"):
        server.client().xadd(STREAM, {"event": event, "token": str(token), "value": "slate"})
    server.client().xadd(STREAM, {"nonsense": "1"})
    assert not threading.Event().wait(0.2)
    assert not follower.done
    second.let_go()
    assert (owner.result(), follower.result()) == ("second", "second")


# What stays behind


def test_every_key_of_hundreds_of_flights_dies_in_time(server: Server, group: Make) -> None:
    flights, there = group(server.client(), ttl=2, error_ttl=3), group(foreign(server), ttl=2)
    for number in range(300):
        flights.run(f"value {number}", instant("value"))
        Call(flights, f"failure {number}", lambda: 1 // 0).error()
    work = Work("value")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    for _ in range(3):
        with pytest.raises(WaitTimeoutError):
            there.run("k", instant("x"), wait_timeout=0.05)
    eventually(flights.live, what="it is listed")
    work.let_go()
    assert owner.result() == "value"
    client = server.client()
    longest = {"meta": 1_000, "result": 2_000, "stream": 13_000, "live": 11_000}
    lives: dict[str, list[int]] = {}
    for key in client.scan_iter(count=1_000):
        kind = key.decode().split(":")[2]
        if kind != "owner-seq":
            lives.setdefault(kind, []).append(client.pttl(key))
    assert {kind: 0 <= max(each) <= longest[kind] and min(each) != -1 for kind, each in lives.items()} == dict.fromkeys(
        lives, True
    )
    assert set(lives) <= set(longest)


def test_the_log_of_a_busy_key_does_not_grow(server: Server, group: Make) -> None:
    flights = group(server.client(), ttl=0)
    client: Any = server.client()
    for _ in range(50):
        flights.run("k", instant("value"))
    first, _ = client.xrange(STREAM, count=1)[0]
    long_ago = int(first.split(b"-")[0]) - 60_000
    entries = client.xrange(STREAM)
    client.delete(STREAM)
    for number, (_, fields) in enumerate(entries):
        client.xadd(STREAM, fields, id=f"{long_ago}-{number}")
    client.expire(STREAM, 10)
    flights.run("k", instant("value"))
    assert client.xlen(STREAM) <= 4


def test_departed_processes_leave_no_pending_read(server: Server, spawn: Callable[..., Child], group: Make) -> None:
    keys = [f"theirs {number}" for number in range(5)]
    flights, work = group(server.client(), lease=20), Work("value")
    owners = [Call(flights, key, work) for key in keys]
    work.wait_for(5)
    child = spawn(f"{HERE}:own_many", url=server.url, keys=keys)
    wait_for_readers(server, 5)
    child.kill()
    wait_for_readers(server, 0)
    work.let_go(5)
    assert [owner.result() for owner in owners] == 5 * ["value"]


def test_followers_in_the_queue_are_counted_once_each(server: Server, group: Make) -> None:
    """A follower looks again at the end of each lease that it knows, and keeps its place."""
    flights, work = group(server.client()), Work("value")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    clients = (foreign(server), server.client(unix_socket_path=server.socket_path))
    followers = [Call(group(client), "k", instant("x")) for client in clients]
    wait_for_followers(flights, "k", 2)
    wait_for_beats(server.client(), 8)
    info: Any = flights.peek("k")
    assert info.followers == 2
    work.let_go()
    assert [owner.result(), *(each.result() for each in followers)] == 3 * ["value"]
