"""Servers that change places in mid-flight: Sentinel promotes another one, a Cluster moves its slots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.sentinel import Sentinel

from tests.support.callers import answer, instant, making_groups
from tests.support.flights import Call, Work, wait_for_followers
from tests.support.liar import nowhere
from tests.support.servers import Server
from tests.support.topologies import Cluster
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.callers import Make
    from tests.support.topologies import SentinelSet

META, STREAM, RESULT, LIVE = "ai:flight:meta:{k}", "ai:flight:stream:{k}", "ai:flight:result:{k}", "ai:flight:live"
SHARED = ("value", "value", 1)


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


class Pair:
    """An owner in the air and a follower that waits for it, as two processes would be."""

    def __init__(self, here: Any, there: Any) -> None:
        self.work, self.second = Work("value"), instant("second")
        self.owner = Call(here, "k", self.work)
        self.work.wait_for(1)
        self.follower = Call(there, "k", self.second)
        wait_for_followers(here, "k", 1)

    def land(self) -> tuple[Any, Any, int]:
        """Let the function end: what the owner's caller and the follower got, and how often a function ran."""
        self.work.let_go()
        return self.owner.result(), self.follower.result(), self.work.runs + self.second.runs


# Sentinel


def sentinel_pair(sentinel: SentinelSet, group: Make, **options: Any) -> Pair:
    """The follower asks fewer sentinels, and so counts as another process."""
    fewer = Sentinel(sentinel.addresses[:2]).master_for(sentinel.service)
    sentinel.primary.keep(fewer)
    pair = Pair(group(sentinel.client(), **options), group(fewer, **options))
    assert sentinel.primary.client().wait(1, 5_000) == 1
    return pair


@pytest.mark.sentinel
def test_a_flight_goes_on_at_the_promoted_replica(sentinel: SentinelSet, group: Make) -> None:
    pair = sentinel_pair(sentinel, group, lease=15.0, heartbeat=0.5)
    client: Any = sentinel.replica.client()
    token = client.hget(META, "ownerToken")
    sentinel.primary.kill()
    sentinel.wait_for_failover()
    client.script_flush()
    beat = client.hget(META, "heartbeatAt")
    eventually(lambda: client.hget(META, "heartbeatAt") > beat, within=10, what="a beat at the new primary")
    assert (pair.land(), client.get(RESULT)) == (SHARED, token + b":svalue")


@pytest.mark.sentinel
def test_a_flight_goes_on_when_its_primary_is_only_demoted(sentinel: SentinelSet, group: Make) -> None:
    """The old connections stay open; what is written through them is refused."""
    pair = sentinel_pair(sentinel, group, lease=15.0, heartbeat=0.5)
    redis.Redis(port=sentinel.sentinels[0].port).sentinel_failover(sentinel.service)
    sentinel.wait_for_failover()
    eventually(lambda: sentinel.primary.client().role()[0] == b"slave", within=15, what="the old primary is a replica")
    assert pair.land() == SHARED
    assert group(sentinel.client(), ttl=60).run("next", instant("value")) == "value"


@pytest.mark.sentinel
def test_a_value_that_is_ready_during_the_failover_is_published_after_it(sentinel: SentinelSet, group: Make) -> None:
    pair = sentinel_pair(sentinel, group, lease=15.0, heartbeat=0.5)
    sentinel.primary.kill()
    assert pair.land() == SHARED


@pytest.mark.sentinel
def test_fencing_tokens_grow_over_a_failover(sentinel: SentinelSet, group: Make) -> None:
    seen: list[int] = []
    flights = group(sentinel.client(), on_store_error="raise", lease=4)
    flights.subscribe(lambda event: seen.append(event.fencing_token or 0))
    flights.run("k", instant("value"), ttl=0)
    sentinel.replica.client().replicaof("NO", "ONE")  # cut off, and so behind the primary
    flights.run("k", instant("value"), ttl=0)
    sentinel.replica.client().delete("ai:flight:owner-seq")
    sentinel.primary.kill()
    sentinel.wait_for_failover()
    eventually(lambda: answer(flights.run, "k", instant("value"), ttl=0) == "value", within=15)
    assert seen == sorted(seen)


@pytest.mark.sentinel
@pytest.mark.parametrize("flavour", ["client", "url"])
@pytest.mark.parametrize("state", ["gone", "silent"])
def test_sentinels_that_do_not_answer_cost_about_one_timeout(
    sentinel: SentinelSet, group: Make, flavour: str, state: str
) -> None:
    flights = group(sentinel.client()) if flavour == "client" else group(url=sentinel.url)
    for server in [sentinel.primary, *sentinel.sentinels]:
        server.kill() if state == "gone" else server.pause()
    begin = time.monotonic()
    assert [flights.run(f"k{number}", instant("value")) for number in range(10)] == 10 * ["value"]
    assert time.monotonic() - begin < 8


@pytest.mark.sentinel
def test_the_second_sentinel_is_asked_where_the_first_is_gone(sentinel: SentinelSet, group: Make) -> None:
    sentinel.sentinels[0].kill()
    flights = group(url=sentinel.url, ttl=60, on_store_error="raise")
    begin = time.monotonic()
    assert (flights.run("k", instant("value")), flights.get("k")) == ("value", "value")
    assert time.monotonic() - begin < 8


# Cluster


class Migration:
    """Moves the slot of a key from its node to another one, in steps."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.slot = int(cluster.client().keyslot(key))
        self._cluster = cluster
        owner = cluster.client().get_node_from_key(key)
        self.source = next(node for node in cluster.nodes if node.port == owner.port)
        self.target = next(node for node in cluster.nodes if node is not self.source)

    def _set(self, node: Server, *words: object) -> None:
        with redis.Redis(port=node.port) as client:
            client.execute_command("CLUSTER", "SETSLOT", self.slot, *words)

    def id_of(self, node: Server) -> str:
        """The name of a node."""
        with redis.Redis(port=node.port) as client:
            return bytes(client.execute_command("CLUSTER", "MYID")).decode()

    def begin(self) -> None:
        """The source answers ASK for keys that are not there (any more)."""
        self._set(self.target, "IMPORTING", self.id_of(self.source))
        self._set(self.source, "MIGRATING", self.id_of(self.target))

    def carry(self, *keys: str) -> None:
        """Carry keys to the target; all of the slot without any named."""
        with redis.Redis(port=self.source.port) as client:
            for key in keys or client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
                client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5_000)

    def end(self) -> None:
        """Give the slot to the target: the source answers MOVED."""
        self.carry()
        for node in (self.target, self.source, *self._cluster.nodes):
            self._set(node, "NODE", self.id_of(self.target))


@pytest.fixture
def migration(cluster: Cluster) -> Iterator[Migration]:
    yield (step := Migration(cluster, "{k}"))
    step.end()
    eventually(cluster._is_complete, within=15, what="the Cluster is complete")


@pytest.fixture
def pair(cluster: Cluster, group: Make) -> Pair:
    """The follower is given another node, and so counts as another process."""
    there = group(url=f"redis+cluster://127.0.0.1:{cluster.nodes[1].port}", lease=20.0)
    return Pair(group(cluster.client(), lease=20.0), there)


def beat_at(server: Server) -> int:
    with redis.Redis(port=server.port) as client:
        return int(client.execute_command("HGET", META, "heartbeatAt") or 0)


@pytest.mark.cluster
def test_a_flight_goes_on_when_its_slot_moves(migration: Migration, pair: Pair) -> None:
    migration.begin()
    migration.end()
    before = beat_at(migration.target)
    eventually(lambda: beat_at(migration.target) > before, what="a beat at the new node")
    assert pair.land() == SHARED


def refusals(node: Server, word: str) -> int:
    """How often the node has answered with an error that begins so."""
    with redis.Redis(port=node.port) as client:
        errors: dict[str, dict[str, int]] = client.info("errorstats")
    return errors.get(f"errorstat_{word}", {}).get("count", 0)


def wait_for_retries(node: Server, count: int = 2) -> None:
    """Wait until the node has said so often that a script is to be tried again: some of its keys are elsewhere."""
    before = refusals(node, "TRYAGAIN")
    eventually(lambda: refusals(node, "TRYAGAIN") >= before + count, what="a script is tried again")


@pytest.mark.cluster
def test_a_value_is_published_once_its_slot_has_moved(migration: Migration, pair: Pair) -> None:
    migration.begin()
    migration.carry()
    pair.work.let_go()
    wait_for_retries(migration.target)
    migration.end()
    assert pair.land() == SHARED


@pytest.mark.cluster
def test_a_slot_half_moved_is_waited_for(migration: Migration, pair: Pair) -> None:
    migration.begin()
    migration.carry(META)
    pair.work.let_go()
    wait_for_retries(migration.source)
    migration.end()
    assert pair.land() == SHARED


@pytest.mark.cluster
def test_a_follower_reads_again_while_the_slot_moves(migration: Migration, pair: Pair) -> None:
    """Its read was lost with the connection, and the old node says ASK to the new one."""
    migration.begin()
    migration.carry()
    asked = refusals(migration.source, "ASK")
    with redis.Redis(port=migration.source.port) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: refusals(migration.source, "ASK") > asked, what="ASK is said")
    pair.work.let_go()
    wait_for_retries(migration.target)
    migration.end()
    assert pair.land() == SHARED


@pytest.mark.cluster
def test_a_newcomer_claims_once_the_slot_has_moved(migration: Migration, cluster: Cluster, group: Make) -> None:
    migration.begin()
    flights = group(cluster.client(), on_store_error="raise", ttl=60)
    call = Call(flights, "k", instant("value"))
    wait_for_retries(migration.target)
    migration.end()
    assert (call.result(), flights.get("k")) == ("value", "value")


@pytest.mark.cluster
def test_a_fresh_result_is_found_while_its_slot_moves(migration: Migration, cluster: Cluster, group: Make) -> None:
    flights = group(cluster.client(), on_store_error="raise", ttl=60)
    flights.run("k", instant("value"))
    migration.begin()
    migration.carry()
    assert flights.get("k") == "value"


@pytest.mark.cluster
def test_the_listing_follows_the_index_to_its_new_node(cluster: Cluster, group: Make) -> None:
    flights, work = group(cluster.client()), Work("value")
    assert flights.live() == []
    move = Migration(cluster, LIVE)
    move.begin()
    move.end()
    owner = Call(group(url=cluster.url), "k", work)
    work.wait_for(1)
    eventually(lambda: [info.key for info in flights.live()] == ["k"], what="it is listed")
    assert flights.peek("k") is not None
    work.let_go()
    assert owner.result() == "value"


@pytest.mark.cluster
def test_operators_follow_a_key_to_its_new_node(cluster: Cluster, group: Make) -> None:
    flights = group(cluster.client(), ttl=60, on_store_error="raise")
    flights.run("k", instant("value"))
    move = Migration(cluster, "{k}")
    move.begin()
    move.end()
    assert (flights.peek("k"), flights.forget("k"), flights.get("k")) == (None, True, None)
    work = Work("value")
    owner = Call(group(url=cluster.url), "k", work)
    work.wait_for(1)
    back = Migration(cluster, "{k}")
    back.begin()
    back.end()
    assert (flights.peek("k").key, flights.cancel("k")) == ("k", True)  # type: ignore[union-attr]
    work.let_go()
    owner.error()


@pytest.mark.cluster
def test_tokens_are_issued_by_the_node_that_now_has_the_numbers(cluster: Cluster, group: Make) -> None:
    flights = group(cluster.client(), on_store_error="raise")
    assert flights.run("k", instant("value"), ttl=0) == "value"
    move = Migration(cluster, "ai:flight:owner-seq")
    move.begin()
    move.carry()
    assert flights.run("k", instant("second"), ttl=0) == "second"
    move.end()
    assert flights.run("k", instant("third"), ttl=0) == "third"


@pytest.fixture
def own_cluster(server_binary: str) -> Iterator[Cluster]:
    """A Cluster of the test's own, which may be broken at will."""
    made = Cluster()
    yield made
    made.stop()


@pytest.mark.cluster
def test_a_flight_goes_on_at_the_replica_of_its_node(own_cluster: Cluster, group: Make) -> None:
    place = Migration(own_cluster, "{k}")
    replica = Server(cluster_enabled="yes", cluster_node_timeout=2_000, repl_diskless_sync_delay=0)
    try:
        client: Any = replica.client()
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", place.source.port)
        home = place.id_of(place.source)
        eventually(lambda: home.encode() in client.execute_command("CLUSTER", "NODES"), within=20, what="it is met")
        eventually(lambda: answer(client.execute_command, "CLUSTER", "REPLICATE", home) == b"OK", within=20)
        eventually(lambda: client.info("replication").get("master_link_status") == "up", within=20)
        there = group(url=f"redis+cluster://127.0.0.1:{place.target.port}", lease=20.0)
        pair = Pair(group(own_cluster.client(), lease=20.0), there)
        assert place.source.client().wait(1, 5_000) == 1
        place.source.kill()
        eventually(lambda: client.role()[0] == b"master", within=20, what="the replica is promoted")
        before = beat_at(replica)
        eventually(lambda: beat_at(replica) > before, within=20, what="a beat at the new node")
        assert pair.land() == SHARED
    finally:
        replica.stop()


@pytest.mark.cluster
def test_a_node_that_hangs_costs_about_one_timeout(cluster: Cluster, group: Make) -> None:
    flights = group(cluster.client())
    node = Migration(cluster, "{k}").source
    node.pause()
    try:
        begin = time.monotonic()
        assert [flights.run("k", instant("value")) for _ in range(10)] == 10 * ["value"]
        assert time.monotonic() - begin < 8
    finally:
        node.resume()
        eventually(cluster._is_complete, within=20, what="the Cluster is complete")


@pytest.mark.cluster
def test_a_cluster_that_is_gone_costs_about_one_timeout(server_binary: str, group: Make) -> None:
    with nowhere() as port:
        flights = group(url=f"redis+cluster://127.0.0.1:{port}")
        begin = time.monotonic()
        assert [flights.run(f"k{number}", instant("value")) for number in range(10)] == 10 * ["value"]
        assert time.monotonic() - begin < 8
