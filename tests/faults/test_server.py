"""A server that answers, but not as one would like: without scripts, as a replica, loading, full, forbidding."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from singleflight_sync import FlightCancelledError, StoreError, sender
from tests.support.callers import (
    META,
    answer,
    foreign,
    instant,
    making_groups,
    wait_for_beats,
    wait_for_readers,
)
from tests.support.flights import Call, Work, wait_for_followers
from tests.support.liar import Liar
from tests.support.monitor import Monitor
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.callers import Make
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

    Start = Callable[..., Server]

NOBODY = ("127.0.0.1", 1)  # where no server is
LONG: dict[str, Any] = {"lease": 20.0, "heartbeat": 0.2}


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


class Pair:
    """An owner in the air and a follower that waits for it, as two processes would be."""

    def __init__(self, server: Server, group: Make, proxy: Proxy | None = None, **options: Any) -> None:
        self.work, self.second = Work("value"), instant("second")
        port = server.port if proxy is None else proxy.port
        self.group = group(server.client(port=port), **options)
        self.owner = Call(self.group, "k", self.work)
        self.work.wait_for(1)
        self.follower = Call(group(foreign(server), **options), "k", self.second)
        wait_for_readers(server, 1)

    def land(self) -> tuple[Any, Any, int]:
        """Let the function end: what the owner's caller and the follower got, and how often a function ran."""
        self.work.let_go()
        return self.owner.result(), self.follower.result(), self.work.runs + self.second.runs


SHARED = ("value", "value", 1)


# Scripts that the server does not know (any more)


def test_the_heartbeat_goes_on_after_the_scripts_are_gone(server: Server, group: Make) -> None:
    pair, client = Pair(server, group), server.client()
    wait_for_beats(client, 1)
    client.script_flush()
    wait_for_beats(client)
    assert pair.land() == SHARED


def test_a_value_is_published_after_the_scripts_are_gone(server: Server, group: Make) -> None:
    pair = Pair(server, group, lease=20, heartbeat=10)
    server.client().script_flush()
    assert pair.land() == SHARED


@pytest.mark.parametrize(("error", "follower_gets"), [(ValueError, ValueError), (KeyboardInterrupt, "second")])
def test_a_flight_ends_without_a_value_after_the_scripts_are_gone(
    server: Server, group: Make, error: type[BaseException], follower_gets: object
) -> None:
    work = Work("value")

    def fail() -> None:
        work()
        raise error

    owner = Call(group(server.client()), "k", fail, lease=20)
    work.wait_for(1)
    follower = Call(group(foreign(server)), "k", lambda: "second", lease=20)
    wait_for_readers(server, 1)
    server.client().script_flush()
    work.let_go()
    assert type(owner.error()) is error
    found = answer(follower.result, within=10)
    assert (type(found) if isinstance(found, Exception) else found) == follower_gets


def test_a_takeover_works_after_the_scripts_are_gone(server: Server, proxy: Proxy, group: Make) -> None:
    pair = Pair(server, group, proxy)
    proxy.black_hole()
    server.client().script_flush()
    assert pair.follower.result() == "second"
    proxy.forward()
    pair.work.let_go()
    assert pair.owner.result() == "second"


@pytest.mark.parametrize("act", ["cancel", "forget"])
def test_operators_can_act_after_the_scripts_are_gone(server: Server, group: Make, act: str) -> None:
    flights, work = group(server.client()), Work("value")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    server.client().script_flush()
    assert getattr(flights, act)("k") is True
    work.let_go()
    found = answer(owner.result)
    assert isinstance(found, FlightCancelledError) if act == "cancel" else found == "value"


def test_each_script_is_sent_whole_once(server: Server, group: Make) -> None:
    flights = group(server.client())
    server.client().script_flush()
    with Monitor(server) as monitor:
        for number in range(5):
            flights.run(f"k{number}", instant("value"))
    assert monitor.counts() == {"EVALSHA": 10, "EVAL": 2}


# A primary that becomes a replica


def demote(server: Server, to: tuple[str, int] = NOBODY) -> None:
    server.client().replicaof(*to)


def promote(server: Server) -> None:
    server.client().replicaof("NO", "ONE")


def test_a_short_demotion_is_lived_through(server: Server, group: Make) -> None:
    pair = Pair(server, group, lease=6)
    demote(server)
    try:
        # The read of the follower is ended by the server, and begun again.
        wait_for_readers(server, 1)
    finally:
        promote(server)
    wait_for_beats(server.client(), 1)
    assert pair.land() == SHARED


def test_a_flight_that_lapsed_during_a_demotion_goes_on(server: Server, group: Make) -> None:
    work, flights = Work("value"), group(server.client())
    owner = Call(flights, "k", work)
    work.wait_for(1)
    token = server.client().hget(META, "ownerToken")
    demote(server)
    try:
        eventually(lambda: not server.client().exists(META), what="the lease is over")
    finally:
        promote(server)
    eventually(lambda: server.client().hget(META, "ownerToken") == token, what="the lease is back")
    work.let_go()
    assert (owner.result(), work.runs, flights.get("k")) == ("value", 1, "value")


def test_a_demotion_that_wipes_the_data_costs_no_second_execution(start_server: Start, group: Make) -> None:
    server, empty = start_server(), start_server(repl_diskless_sync_delay=0)
    pair = Pair(server, group, lease=8)
    demote(server, ("127.0.0.1", empty.port))
    client = server.client()
    eventually(lambda: client.info("replication")["master_link_status"] == "up" and not client.dbsize(), within=15)
    promote(server)
    eventually(lambda: client.hget(META, "forgotten") == b"1", what="the owner claims anew")
    assert pair.land() == SHARED


@pytest.mark.parametrize("policy", ["run", "raise"])
def test_a_replica_by_mistake_is_named_and_costs_about_one_attempt(
    start_server: Start, group: Make, policy: str
) -> None:
    server = start_server("--replicaof", *map(str, NOBODY))
    flights = group(server.client(), on_store_error=policy)
    begin = time.monotonic()
    answers = [answer(flights.run, f"k{number}", instant("value")) for number in range(5)]
    assert time.monotonic() - begin < 6
    if policy == "run":
        assert answers == 5 * ["value"]
    else:
        assert [type(each).__mro__.index(StoreError) >= 0 for each in answers] == 5 * [True]
        assert "replica" in str(answers[0])


def test_a_replica_still_serves_what_is_fresh(server: Server, group: Make) -> None:
    flights = group(server.client(), on_store_error="raise", ttl=60)
    flights.run("k", instant("value"))
    demote(server)
    try:
        assert (flights.run("k", instant("second")), flights.get("k")) == ("value", "value")
    finally:
        promote(server)


# A server that cannot serve for now, by its own word

FOR_NOW = [
    b"-LOADING Redis is loading the dataset in memory",
    b"-READONLY You can't write against a read only replica.",
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    b"-CLUSTERDOWN The cluster is down",
    b"-TRYAGAIN Multiple keys request during rehashing of slot",
    b"-BUSY Redis is busy running a script.",
    b"-NOREPLICAS Not enough good replicas to write.",
    b"-ERR max number of clients reached",
]


@pytest.fixture
def liar(server: Server) -> Iterator[Liar]:
    with contextlib.closing(Liar(server)) as proxy:
        yield proxy


@pytest.mark.parametrize("word", FOR_NOW, ids=lambda word: word.split()[0].decode().strip("-"))
@pytest.mark.parametrize("policy", ["run", "raise"])
def test_a_refusal_for_now_is_retried_and_then_the_policy_applies(
    server: Server, liar: Liar, group: Make, monkeypatch: pytest.MonkeyPatch, word: bytes, policy: str
) -> None:
    monkeypatch.setattr(sender, "PATIENCE", 0.3)
    liar.answer = word
    flights = group(server.client(port=liar.port), on_store_error=policy)
    found = answer(flights.run, "k", instant("value"))
    if policy == "run":
        assert found == "value"
    else:
        assert isinstance(found, StoreError)
        assert word.split(b" ", 1)[1].decode() in str(found)


@pytest.mark.parametrize("word", FOR_NOW[:4], ids=lambda word: word.split()[0].decode().strip("-"))
def test_a_request_with_ten_calls_pays_once_for_a_refusal_for_now(
    server: Server, liar: Liar, group: Make, word: bytes
) -> None:
    """But TRYAGAIN, which concerns one slot, and not the server."""
    liar.answer = word
    flights = group(server.client(port=liar.port))
    begin = time.monotonic()
    assert [flights.run(f"k{number}", instant("value")) for number in range(10)] == 10 * ["value"]
    assert time.monotonic() - begin < 6


@pytest.mark.parametrize("word", FOR_NOW[:-1], ids=lambda word: word.split()[0].decode().strip("-"))
def test_a_claim_outlives_a_refusal_for_now(server: Server, liar: Liar, group: Make, word: bytes) -> None:
    flights = group(server.client(port=liar.port), ttl=60, on_store_error="raise")
    flights.run("warm", instant("value"))
    before = liar.commands.total()
    liar.answer = word
    call = Call(flights, "k", instant("value"))
    eventually(lambda: liar.commands.total() >= before + 3, what="the claim is repeated")
    liar.answer = b""
    assert (call.result(), flights.get("k")) == ("value", "value")


@pytest.mark.parametrize("word", FOR_NOW[:-1], ids=lambda word: word.split()[0].decode().strip("-"))
def test_a_flight_outlives_a_refusal_for_now(server: Server, liar: Liar, group: Make, word: bytes) -> None:
    """In the middle of beats and publishing; new connections are refused like the old ones."""
    work, second = Work("value"), instant("second")
    flights = group(server.client(port=liar.port), **LONG)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server), **LONG), "k", second)
    wait_for_readers(server, 1)
    wait_for_beats(server.client(), 1)
    before = liar.commands.total()
    liar.answer = word
    work.let_go()
    eventually(lambda: liar.commands.total() >= before + 5, what="it is repeated")
    liar.answer = b""
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


def is_loading(server: Server) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1) as probe:
        probe.sendall(b"PING\r\n")
        return probe.recv(64).startswith(b"-LOADING")
    return False


def test_a_server_that_loads_its_data_is_waited_for(start_server: Start, group: Make) -> None:
    """For a second; the flight in the air is in the data."""
    server = start_server(key_load_delay=500, loading_process_events_interval_bytes=1024)
    client: Any = server.client()
    client.eval("for i = 1, 2000 do redis.call('SET', 'filling' .. i, string.rep('x', 100)) end", 0)
    work, second, there = Work("value"), instant("second"), group(foreign(server), on_store_error="raise", **LONG)
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    client.save()

    def newcome() -> str:
        eventually(lambda: is_loading(server), within=20)
        return str(there.run("k", second))

    newcomer = Call(group(server.client(unix_socket_path=server.socket_path)), "other", newcome)
    server.restart()
    work.let_go()
    assert (owner.result(), newcomer.result(), second.runs) == ("value", "value", 0)


# A restart in mid-flight


def test_a_restart_without_data_costs_no_second_execution(start_server: Start, group: Make) -> None:
    server = start_server()
    pair = Pair(server, group, lease=6)
    client: Any = server.client()
    token = int(client.hget(META, "ownerToken"))
    server.restart()
    eventually(lambda: client.hget(META, "forgotten") == b"1", what="the owner claims anew")
    assert int(client.hget(META, "ownerToken")) > token
    wait_for_readers(server, 1)
    assert pair.land() == SHARED
    assert client.exists("ai:flight:result:{k}") == 0


def test_a_restart_with_data_goes_unnoticed(start_server: Start, group: Make) -> None:
    server = start_server()
    pair = Pair(server, group, lease=6)
    client = server.client()
    token = client.hget(META, "ownerToken")
    client.save()
    server.restart()
    wait_for_readers(server, 1)
    wait_for_beats(client)
    assert client.hget(META, "ownerToken") == token
    assert pair.land() == SHARED


def test_after_a_restart_without_data_newcomers_start_a_flight_of_their_own(start_server: Start, group: Make) -> None:
    """Nobody knows of the old flight but its owner, which is fenced off, and whose caller gets the new outcome."""
    server = start_server()
    work, flights = Work("value"), group(server.client(), lease=20, heartbeat=10)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    server.restart()
    assert group(foreign(server), ttl=60).run("k", instant("newer")) == "newer"
    work.let_go()
    assert (owner.result(), flights.get("k"), work.runs) == ("newer", "newer", 1)


def test_an_owner_whose_data_are_lost_before_it_publishes_keeps_its_value(start_server: Start, group: Make) -> None:
    server = start_server()
    pair = Pair(server, group, lease=4, heartbeat=2)
    server.restart()
    pair.work.let_go()
    assert pair.owner.result() == "value"
    assert pair.follower.result() in {"value", "second"}
    assert (pair.work.runs, pair.second.runs <= 1) == (1, True)


# Memory that is full


def fill(server: Server) -> None:
    server.client().config_set("maxmemory", "1mb")


@pytest.fixture
def roomy(start_server: Start) -> Server:
    return start_server(maxmemory="100mb", maxmemory_policy="noeviction")


@pytest.mark.parametrize("policy", ["run", "raise"])
def test_a_claim_that_finds_memory_full_applies_the_policy_at_once(roomy: Server, group: Make, policy: str) -> None:
    flights = group(roomy.client(), on_store_error=policy)
    fill(roomy)
    with Monitor(roomy) as monitor:
        found = answer(flights.run, "k", instant("value"))
    assert monitor.counts()["EVALSHA"] + monitor.counts()["EVAL"] <= 2
    if policy == "run":
        assert found == "value"
    else:
        assert isinstance(found, StoreError)
        assert "memory is full" in str(found)


def test_a_lease_is_renewed_when_memory_is_full(roomy: Server, group: Make) -> None:
    pair = Pair(roomy, group)
    fill(roomy)
    wait_for_beats(roomy.client(), 8)
    roomy.client().config_set("maxmemory", "100mb")
    assert pair.land() == SHARED


def test_a_lapsed_flight_is_renewed_when_memory_is_full(roomy: Server, group: Make) -> None:
    work = Work("value")
    owner = Call(group(roomy.client()), "k", work)
    work.wait_for(1)
    fill(roomy)
    client = roomy.client()
    client.delete(META)
    eventually(lambda: client.exists(META), what="the lease is back")
    work.let_go()
    assert owner.result() == "value"


def test_a_value_that_memory_has_no_room_for_wakes_the_followers(roomy: Server, group: Make) -> None:
    pair = Pair(roomy, group, **LONG)
    fill(roomy)
    begin = time.monotonic()
    assert pair.land() == ("value", "second", 2)
    assert time.monotonic() - begin < 10, "not left to the end of the lease"
    assert roomy.client().exists(META) == 0


def test_a_failure_is_shared_when_memory_is_full(roomy: Server, group: Make) -> None:
    work, second = Work("value"), instant("second")

    def fail() -> None:
        work()
        raise ValueError("on purpose")

    owner = Call(group(roomy.client(), **LONG), "k", fail)
    work.wait_for(1)
    follower = Call(group(foreign(roomy), **LONG), "k", second)
    wait_for_readers(roomy, 1)
    fill(roomy)
    work.let_go()
    assert [type(owner.error()), type(follower.error()), second.runs] == [ValueError, ValueError, 0]


@pytest.mark.parametrize("act", ["cancel", "forget"])
def test_operators_can_act_when_memory_is_full(roomy: Server, group: Make, act: str) -> None:
    pair = Pair(roomy, group, **LONG)
    fill(roomy)
    assert getattr(pair.group, act)("k") is True
    if act == "cancel":
        assert isinstance(pair.follower.error(), FlightCancelledError)
    roomy.client().config_set("maxmemory", "100mb")
    pair.work.let_go()
    if act == "cancel":
        assert isinstance(pair.owner.error(), FlightCancelledError)
    else:
        assert (pair.owner.result(), pair.follower.result()) == ("value", "value")


def test_a_forgotten_result_is_gone_when_memory_is_full(roomy: Server, group: Make) -> None:
    flights = group(roomy.client(), ttl=60)
    flights.run("k", instant("value"))
    fill(roomy)
    assert (flights.forget("k"), flights.get("k")) == (True, None)


def test_newcomers_follow_and_hit_when_memory_is_full(roomy: Server, group: Make) -> None:
    flights = group(roomy.client(), **LONG, ttl=60)
    flights.run("fresh", instant("fresh"))
    pair = Pair(roomy, group, **LONG)
    fill(roomy)
    third = Call(group(roomy.client(unix_socket_path=roomy.socket_path), **LONG), "k", instant("third"))
    wait_for_followers(flights, "k", 2)
    assert flights.run("fresh", instant("second")) == "fresh"
    roomy.client().config_set("maxmemory", "100mb")
    assert (pair.land(), third.result()) == (SHARED, "value")


# Rights

RULE = (
    "evalsha eval get getrange set del exists pexpire pttl time hmget hset hincrby hgetall "
    "xadd xrange xrevrange xread zadd zcard zrange zrem zremrangebyscore"
)
EVERYTHING = RULE.split()


def login(server: Server, commands: Iterable[str] = EVERYTHING, pattern: str = "~ai:flight:*") -> redis.Redis:
    """A client of a user that has these rights and no others."""
    rights = [f"+{name}" for name in commands]
    server.client().execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", pattern, *rights)
    return server.client(host="127.0.0.1", username="few", password="secret")


@pytest.fixture
def guarded(server: Server) -> Iterator[Server]:
    server.client().script_flush()
    yield server
    server.client().execute_command("ACL", "DELUSER", "few")


def test_these_rights_are_enough(guarded: Server, group: Make) -> None:
    """No CLIENT, HELLO, SELECT, PING, INFO or SCRIPT; no key outside the namespace."""
    few = group(login(guarded), on_store_error="raise", ttl=60)
    work = Work("value")
    owner = Call(few, "k", work)
    work.wait_for(1)
    wait_for_beats(guarded.client())
    follower = Call(group(guarded.client(), ttl=60), "k", instant("second"))
    wait_for_readers(guarded, 1)
    eventually(few.live, what="it is listed")
    assert few.peek("k") is not None
    assert few.forget("k") is True
    work.let_go()
    assert (owner.result(), follower.result()) == ("value", "value")
    assert answer(few.run, "broken", lambda: 1 // 0).__class__ is ZeroDivisionError
    assert (few.run("k2", instant("value")), few.get("k2"), few.cancel("k2")) == ("value", "value", False)
    guarded.client().delete(META)


def test_a_follower_of_few_rights_gets_the_value(guarded: Server, group: Make) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(guarded.client()), "k", work)
    work.wait_for(1)
    follower = Call(group(login(guarded), on_store_error="raise"), "k", second)
    wait_for_readers(guarded, 1)
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == ("value", "value", 0)


def without(*names: str) -> list[str]:
    return [name for name in EVERYTHING if name not in names]


def test_without_eval_scripts_that_others_have_loaded_serve(guarded: Server, group: Make) -> None:
    group(guarded.client()).run("warm", instant("value"))
    flights = group(login(guarded, commands=without("eval")), on_store_error="raise")
    assert (flights.run("k", instant("value")), flights.get("k")) == ("value", "value")


@pytest.mark.parametrize(
    ("commands", "pattern", "named"),
    [
        (without("eval"), "~ai:flight:*", "eval"),
        (without("eval", "evalsha"), "~ai:flight:*", "evalsha"),
        (without("hset"), "~ai:flight:*", "hset"),
        (without("xadd"), "~ai:flight:*", "xadd"),
        (EVERYTHING, "~other:*", "key"),
        (EVERYTHING, "~ai:flight:result:*", "key"),
    ],
)
@pytest.mark.parametrize("policy", ["run", "raise"])
def test_a_missing_right_is_named(
    guarded: Server, group: Make, commands: list[str], pattern: str, named: str, policy: str
) -> None:
    flights = group(login(guarded, commands=commands, pattern=pattern), on_store_error=policy)
    found = answer(flights.run, "k", instant("value"))
    if policy == "run":
        assert found == "value"
        return
    assert isinstance(found, StoreError)
    assert "ACL" in str(found)
    assert named in str(found)
    assert "secret" not in str(found)


def test_a_follower_that_may_not_read_the_log_obeys_the_policy(guarded: Server, group: Make) -> None:
    work = Work("value")
    owner = Call(group(guarded.client()), "k", work)
    work.wait_for(1)
    client = login(guarded, commands=without("xread"))
    found = answer(group(client, on_store_error="raise").run, "k", instant("second"))
    assert isinstance(found, StoreError)
    assert "xread" in str(found)
    work.let_go()
    assert owner.result() == "value"


def test_rights_that_are_lost_in_mid_flight_cost_the_owner_nothing(guarded: Server, group: Make) -> None:
    work, second = Work("value"), instant("second")
    owner = Call(group(login(guarded)), "k", work)
    work.wait_for(1)
    follower = Call(group(guarded.client()), "k", second)
    wait_for_readers(guarded, 1)
    guarded.client().execute_command("ACL", "SETUSER", "few", "-@all")
    work.let_go()
    assert owner.result() == "value"
    assert follower.result() == "second", "it takes over when the lease is over"


@pytest.mark.parametrize(
    ("login", "named"),
    [
        ({}, "password"),
        ({"password": "wrong-secret"}, "password"),
        ({"username": "nobody", "password": "wrong-secret"}, "password"),
    ],
)
def test_a_wrong_password_is_named_and_not_shown(
    start_server: Start, group: Make, login: dict[str, Any], named: str
) -> None:
    server = start_server()
    server.client().config_set("requirepass", "right")
    found = answer(group(redis.Redis(port=server.port, **login), on_store_error="raise").run, "k", instant("value"))
    assert isinstance(found, StoreError)
    assert named in str(found)
    assert "wrong-secret" not in str(found)
    assert group(redis.Redis(port=server.port, **login)).run("k", instant("value")) == "value"
