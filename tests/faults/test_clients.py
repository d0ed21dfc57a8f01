"""Every client that users bring, and those that cannot be used."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from singleflight_sync import ConfigurationError, PickleCodec, SingleFlight, StoreError
from tests.support.callers import answer, foreign, instant, making_groups, wait_for_beats, wait_for_readers
from tests.support.flights import Call, Work, wait_for_followers
from tests.support.tls import certificate, tls_in_front_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.callers import Make
    from tests.support.child import Channel
    from tests.support.processes import Child
    from tests.support.servers import Server
    from tests.support.topologies import Cluster, SentinelSet

HERE = "tests.faults.test_clients"
VALUES: list[Any] = [
    "text ü €",
    b"\x00\xff\xfe binary",
    {"nested": [1, None, 2.5, "ü"]},
    None,
    "",
    b"",
    0,
    False,
    [],
    "x" * 40_000,
]


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


def flavours(server: Server) -> dict[str, Callable[[], redis.Redis]]:
    """Clients of one server, by name."""
    port = server.port
    path = server.socket_path
    return {
        "defaults": lambda: redis.Redis(port=port),
        "decode_responses": lambda: redis.Redis(port=port, decode_responses=True),
        "latin-1": lambda: redis.Redis(port=port, encoding="latin-1", decode_responses=True),
        "strict utf-16": lambda: redis.Redis(port=port, encoding="utf-16"),
        "RESP3": lambda: redis.Redis(port=port, protocol=3),
        "RESP3 decoded": lambda: redis.Redis(port=port, protocol=3, decode_responses=True),
        "RESP2": lambda: redis.Redis(port=port, protocol=2),
        "short socket_timeout": lambda: redis.Redis(port=port, socket_timeout=0.05, socket_connect_timeout=5),
        "no socket_timeout": lambda: redis.Redis(port=port, socket_timeout=None),
        "max_connections": lambda: redis.Redis(port=port, max_connections=3),
        "BlockingConnectionPool": lambda: redis.Redis(
            connection_pool=redis.BlockingConnectionPool(port=port, max_connections=3, timeout=1)
        ),
        "single connection": lambda: redis.Redis(port=port, single_connection_client=True),
        "unix socket": lambda: redis.Redis(unix_socket_path=path),
        "unix socket pool": lambda: redis.Redis(
            connection_pool=redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
        ),
        "from_url": lambda: redis.Redis.from_url(
            f"redis://127.0.0.1:{port}/0?socket_timeout=1&health_check_interval=1"
        ),
        "StrictRedis": lambda: redis.StrictRedis(port=port),
        "retries": lambda: redis.Redis(
            port=port, retry=Retry(ExponentialBackoff(), 5), retry_on_error=[redis.TimeoutError]
        ),
        "health checks": lambda: redis.Redis(port=port, health_check_interval=1),
        "named": lambda: redis.Redis(port=port, client_name="mine"),
        "keepalive": lambda: redis.Redis(port=port, socket_keepalive=True),
        "subclass": lambda: type("Mine", (redis.Redis,), {})(port=port),
        "default user": lambda: redis.Redis(port=port, username="default", password=""),
        "credential provider": lambda: redis.Redis(port=port, credential_provider=_Credentials()),
    }


class _Credentials(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return ("default", "anything")


class _Nobody:
    socket_path = ""
    port = 0


NAMES = list(flavours(_Nobody()))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_each_flavour_of_client_shares_flights(server: Server, group: Make, name: str) -> None:
    """As owner and as follower, hitting, forgetting, listing; all values come back the same."""
    work, there = Work("value"), server.client(unix_socket_path=server.socket_path, db=0)
    if name.startswith("unix"):
        there = foreign(server)
    client = server.keep(flavours(server)[name]())
    mine, other = group(client, on_store_error="raise", ttl=60), group(there, ttl=60)
    owner = Call(mine, "k", work)
    work.wait_for(1)
    follower = Call(other, "k", instant("second"))
    wait_for_readers(server, 1)
    wait_for_beats(server.client(), 1)
    eventually(mine.live, what="it is listed")
    work.let_go()
    assert (owner.result(), follower.result(), mine.run("k", instant("second"))) == ("value", "value", "value")
    assert (mine.forget("k"), mine.get("k")) == (True, None)

    work = Work("theirs")
    owner = Call(other, "k2", work)
    work.wait_for(1)
    follower = Call(mine, "k2", instant("second"))
    wait_for_readers(server, 1)
    work.let_go()
    assert (owner.result(), follower.result()) == ("theirs", "theirs")
    for number, value in enumerate(VALUES):
        assert mine.run(f"v{number}", instant(value)) == value
        assert other.run(f"v{number}", instant("second")) == value
        assert mine.get(f"v{number}", "default") == value


@pytest.mark.parametrize("name", ["decode_responses", "latin-1", "RESP3 decoded", "defaults"])
def test_pickled_bytes_survive_clients_that_decode(server: Server, group: Make, name: str) -> None:
    codec = PickleCodec("secret of sixteen bytes or more")
    mine = group(server.keep(flavours(server)[name]()), codec=codec, ttl=60, on_store_error="raise")
    there = group(server.client(unix_socket_path=server.socket_path), codec=codec, ttl=60)
    value = {(1, "ü"): b"\xff\x80"}
    assert [each.run("k", instant(value)) for each in (mine, there, mine)] == 3 * [value]
    unicode_key = "ключ {a} ü \x00"
    assert [each.run(unicode_key, instant(value)) for each in (mine, there)] == 2 * [value]


def test_the_given_client_is_left_as_it_is(server: Server, group: Make) -> None:
    client = server.client(decode_responses=True, socket_timeout=1)
    before = dict(client.connection_pool.connection_kwargs)
    flights = group(client)
    flights.run("k", instant("value"))
    flights.close()
    assert client.connection_pool.connection_kwargs == before
    assert client.ping() is True
    assert flights.run("k", instant("second")) == "value", "a closed group connects anew"


def test_the_database_of_the_client_is_used(server: Server, group: Make) -> None:
    flights = group(server.client(db=3), ttl=60)
    flights.run("k", instant("value"))
    assert (server.client(db=3).exists("ai:flight:result:{k}"), server.client().exists("ai:flight:result:{k}")) == (
        1,
        0,
    )
    assert group(server.client(), ttl=60).run("k", instant("other")) == "other"
    server.client(db=3).flushdb()


# Flights longer than the client's patience


def follow(channel: Channel, flavour: str, port: int, path: str) -> Any:
    """In a child: follow with one flavour of client."""
    place = _Nobody()
    place.port, place.socket_path = port, path
    with SingleFlight(flavours(place)[flavour](), on_store_error="raise") as flights:  # type: ignore[arg-type]
        return flights.run("k", lambda: "second")


@pytest.mark.slow
def test_a_flight_of_six_seconds_outlasts_every_socket_timeout(
    server: Server, spawn: Callable[..., Child], group: Make
) -> None:
    patient = [
        "defaults",
        "short socket_timeout",
        "no socket_timeout",
        "RESP3",
        "BlockingConnectionPool",
        "health checks",
    ]
    flights, work = group(server.client(), lease=3.0, heartbeat=1.0), Work("value")
    owner = Call(flights, "k", work)
    work.wait_for(1)
    children = [spawn(f"{HERE}:follow", flavour=each, port=server.port, path=server.socket_path) for each in patient]
    wait_for_followers(flights, "k", len(patient))
    wait_for_readers(server, len(patient))
    before = server.client().info("stats")["total_connections_received"]
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 6, within=10)
    info = server.client().info("stats")
    assert info["total_connections_received"] - before < 400, "no storm of new connections, this test's own apart"
    wait_for_readers(server, len(patient))
    work.let_go()
    assert [owner.result(), *(child.result() for child in children)] == 7 * ["value"]


def test_120_keys_are_followed_at_once_by_one_process(server: Server, group: Make) -> None:
    """More than the 100 connections that redis-py gives by default."""
    keys = [f"k{number}" for number in range(120)]
    work, other = Work("value"), instant("second")
    options: dict[str, Any] = {"lease": 60.0, "heartbeat": 20.0}
    owners, mine = group(foreign(server), **options), group(server.client(), on_store_error="raise", **options)
    owned = [Call(owners, key, work) for key in keys]
    work.wait_for(120)
    followers = [Call(mine, key, other) for key in keys]
    wait_for_readers(server, 120, within=30)
    assert mine.run("one more", instant("value")) == "value"
    work.let_go(120)
    assert [each.result() for each in owned + followers] == 240 * ["value"]
    assert other.runs == 0


# URLs


def test_each_scheme_of_url_shares_flights(server: Server, group: Make, tmp_path: Path) -> None:
    urls = [server.url, f"redis://127.0.0.1:{server.port}", server.unix_url, f"redis://localhost:{server.port}?db=0"]
    for number, url in enumerate(urls):
        for other in urls:
            key = f"{number} {other}"
            assert group(url=url, ttl=60, on_store_error="raise").run(key, instant("value")) == "value"
            assert group(url=other, ttl=60).run(key, instant("second")) == "value"


def test_credentials_in_a_url_are_used(start_server: Callable[..., Server], group: Make) -> None:
    server = start_server()
    server.client().acl_setuser(
        "us:er", enabled=True, passwords=["+p@ss:w/rd"], keys=["ai:flight:*"], commands=["+@all"]
    )
    server.client().config_set("requirepass", "right")
    url = f"redis://us%3Aer:p%40ss%3Aw%2Frd@127.0.0.1:{server.port}/0"
    assert group(url=url, on_store_error="raise").run("k", instant("value")) == "value"
    assert group(url=f"redis://:right@127.0.0.1:{server.port}/0", on_store_error="raise").run("k2", instant("v")) == "v"
    found = answer(
        group(url=f"redis://:wrong-one@127.0.0.1:{server.port}/0", on_store_error="raise").run, "k", instant("v")
    )
    assert isinstance(found, StoreError)
    assert "wrong-one" not in str(found)


def test_tls_is_spoken_by_url_and_by_client(server: Server, group: Make, tmp_path: Path) -> None:
    paths = certificate(tmp_path)
    with tls_in_front_of(server, paths) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={paths[0]}"
        clients: list[dict[str, Any]] = [
            {"url": url},
            {"client": server.keep(redis.Redis(port=port, ssl=True, ssl_ca_certs=str(paths[0])))},
        ]
        big = "x" * 3_000_000
        for number, given in enumerate(clients):
            mine, there = group(**given, ttl=60, on_store_error="raise"), group(foreign(server), ttl=60)
            for value in ("small", big):
                work, key = Work(value), f"{number} {len(value)}"
                owner = Call(there, key, work)
                work.wait_for(1)
                follower = Call(mine, key, instant("second"))
                wait_for_readers(server, 1)
                work.let_go()
                assert (owner.result(), follower.result()) == (value, value)
                assert mine.run(f"own {key}", instant(value)) == value
                assert there.run(f"own {key}", instant("second")) == value
        refused = group(url=f"rediss://localhost:{port}/0", on_store_error="raise")
        assert isinstance(answer(refused.run, "k", instant("value")), StoreError), "an unknown certificate"
        for made in (mine, refused):
            made.close()


# Sentinel and Cluster


@pytest.mark.sentinel
def test_sentinel_by_client_and_by_url(sentinel: SentinelSet, group: Make) -> None:
    master = sentinel.client(decode_responses=True, socket_timeout=0.2)
    by_client = group(master, ttl=60, on_store_error="raise")
    by_url = group(url=sentinel.url, ttl=60, on_store_error="raise")
    work = Work("value")
    owner = Call(by_client, "k", work)
    work.wait_for(1)
    follower = Call(by_url, "k", instant("second"))
    work.let_go()
    assert (owner.result(), follower.result()) == ("value", "value")
    assert [by_url.get("k"), by_client.get("k"), sentinel.primary.client().exists("ai:flight:result:{k}")] == [
        "value",
        "value",
        1,
    ]
    assert group(url=sentinel.url.removesuffix("/0") + "/2", ttl=60).run("k", instant("other")) == "other"


@pytest.mark.sentinel
def test_a_client_of_replicas_is_refused(sentinel: SentinelSet) -> None:
    with pytest.raises(ConfigurationError, match="replicas"):
        SingleFlight(sentinel.discovery().slave_for(sentinel.service))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode_responses": True},
        {"protocol": 3},
        {"socket_timeout": 0.2},
        {"read_from_replicas": True},
        {"max_connections": 10},
        {"encoding": "latin-1", "decode_responses": True},
    ],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_each_flavour_of_cluster_client_shares_flights(cluster: Cluster, group: Make, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # read_from_replicas, in some releases
        client = cluster.client(**options)
    mine, there = (
        group(client, ttl=60, on_store_error="raise"),
        group(url=f"redis+cluster://localhost:{cluster.nodes[1].port}", ttl=60),
    )
    work = Work("value")
    owner = Call(mine, "k", work)
    work.wait_for(1)
    follower = Call(there, "k", instant("second"))
    wait_for_followers(mine, "k", 1)
    eventually(mine.live, what="it is listed")
    work.let_go()
    assert (owner.result(), follower.result()) == ("value", "value")
    for number, value in enumerate(VALUES):
        assert [each.run(f"v{number}", instant(value)) for each in (mine, there)] == 2 * [value]
    assert (mine.forget("k"), mine.get("k"), mine.cancel("k")) == (True, None, False)


@pytest.mark.cluster
def test_any_key_works_on_a_cluster(cluster: Cluster, group: Make) -> None:
    keys = [
        "a",
        "user:{42}",
        "{}",
        "}{",
        "{a}{b}",
        "{",
        "}",
        "ключ",
        "nul\x00nul",
        "x" * 10_000,
        "x" * 9_999 + "y",
        " ",
        "\r\n",
    ]
    mine = group(cluster.client(), ttl=60, on_store_error="raise")
    assert [mine.run(key, instant(f"value of {key}")) for key in keys] == [f"value of {key}" for key in keys]
    assert [mine.get(key) for key in keys] == [f"value of {key}" for key in keys]


@pytest.mark.cluster
def test_a_cluster_url_lives_with_a_node_that_is_gone(cluster: Cluster, group: Make) -> None:
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[2].port}"
    assert group(url=url, on_store_error="raise").run("k", instant("value")) == "value"


# What cannot be used


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda server: redis.asyncio.Redis(port=server.port), "redis.asyncio"),
        (lambda server: redis.Redis(port=server.port).pipeline(), "ipeline"),
        (lambda server: redis.Redis(port=server.port).connection_pool, "ConnectionPool"),
        (lambda server: redis.Redis(port=server.port).pubsub(), "PubSub"),
        (lambda _: redis.Redis, "Redis"),
        (lambda server: server.url, "url="),
        (lambda server: server.url.encode(), "bytes"),
        (lambda _: Sentinel([("127.0.0.1", 1)]), "Sentinel"),
        (lambda _: object(), "object"),
        (lambda _: 42, "int"),
    ],
)
def test_what_is_no_client_is_refused_at_construction(server: Server, make: Callable[[Server], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        SingleFlight(make(server))
    assert "\n" not in str(caught.value)


@pytest.mark.cluster
def test_a_cluster_pipeline_is_refused_at_construction(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="ClusterPipeline"):
        SingleFlight(cluster.client().pipeline())


@pytest.mark.cluster
def test_an_asynchronous_cluster_client_is_refused_at_construction(cluster: Cluster) -> None:
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    with pytest.raises(ConfigurationError, match="asyncio"):
        SingleFlight(client)


def test_a_client_and_a_url_together_are_refused(server: Server) -> None:
    with pytest.raises(ConfigurationError, match="one of them"):
        SingleFlight(server.client(), url=server.url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6379/0",
        "127.0.0.1:6379",
        "redis://127.0.0.1:port/0",
        "redis://:hidden@127.0.0.1:port/0",
        "redis://127.0.0.1:6379/zero",
        "redis://127.0.0.1:6379/0?db=zero",
        "redis://127.0.0.1:6379/0?socket_timeout=long",
        "redis://127.0.0.1:6379/0?no_such_option=1",
        "redis+sentinel://127.0.0.1:26379",
        "redis+sentinel://127.0.0.1:26379/primary/zero",
        "redis+sentinel:///primary/0",
        "redis+cluster://",
        "redis+cluster://127.0.0.1:port",
        "unix://",
        "",
        42,
    ],
)
def test_a_url_that_cannot_be_read_is_refused_at_construction(url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SingleFlight(url=url)
    assert "hidden" not in str(caught.value)


def test_a_url_connects_to_nothing_before_the_first_call() -> None:
    with ExitStack() as stack:
        for url in (
            "redis://127.0.0.1:1/0",
            "rediss://127.0.0.1:1/0",
            "unix:///nowhere",
            "redis+sentinel://127.0.0.1:1/primary/0",
            "redis+cluster://127.0.0.1:1",
        ):
            stack.enter_context(SingleFlight(url=url))


def test_a_cluster_client_is_recognised_by_its_class(cluster: Cluster) -> None:
    assert isinstance(cluster.client(), RedisCluster)
    SingleFlight(cluster.client()).close()
