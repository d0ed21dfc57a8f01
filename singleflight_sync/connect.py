"""Connections of our own to the server that a URL or a ready client names.

The settings come from the client that we are given (address, TLS, credentials, database); the timeouts, the
protocol and the retries are ours. Connections are held on a stack without a limit: a heartbeat or a
publication never queues behind a blocked follower.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterPipeline, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from singleflight_sync.errors import ConfigurationError
from singleflight_sync.pool import ANSWER_TIMEOUT, CONNECT_TIMEOUT, Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_OURS = re.compile(
    "retry|retry_on_.*|maint_.*|maintenance_.*|orig_.*|oss_.*|event_dispatcher|legacy_responses|cache.*|socket_timeout|"
    "socket_connect_timeout|protocol|decode_responses|health_check_interval|himport_registry|lib_.*|driver_info|"
    "server_type|redis_connect_func"
)
# Shown by CLIENT LIST. Not CLIENT SETNAME, which a user of few rights may not call.
_SIGNATURE: dict[str, Any] = (
    {"driver_info": redis.DriverInfo().add_upstream_driver("singleflight-sync", "1")}
    if hasattr(redis, "DriverInfo")
    else {"lib_name": "redis-py(singleflight-sync_v1)"}
)

Address = tuple[str, int]


class Server(Protocol):
    """Where the keys live. Knows its identity at once, and connects at the first use. Thread-safe."""

    identity: Hashable
    is_cluster: bool

    def pool(self, key: bytes) -> Pool:
        """The pool of the server that holds ``key``."""

    def pool_at(self, address: Address) -> Pool:
        """The pool of one node of a Cluster."""

    def moved(self, key: bytes, address: Address) -> None:
        """A Cluster node said that ``key`` lives elsewhere."""

    def refresh(self) -> None:
        """The server could not be reached: forget what was learnt of it."""

    def close(self) -> None:
        """Close all connections."""


class Single:
    """A standalone server, or the primary that Sentinel names."""

    is_cluster = False

    def __init__(self, opened: Callable[[], redis.Redis], identity: Hashable) -> None:
        """``opened`` gives the client, and may start what it connects to."""
        self._opened = opened
        self._pool: Pool | None = None
        self._closed = False
        self.identity = identity

    def pool(self, key: bytes) -> Pool:  # noqa: ARG002 - there is but one
        """The pool of the one server."""
        pool = self._pool
        if pool is None:
            pool = self._pool = Pool(_maker(self._opened().connection_pool))
            if self._closed:  # for a late heartbeat: what it opens is closed behind it
                pool.close()
        return pool

    def pool_at(self, address: Address) -> Pool:  # noqa: ARG002 - there is but one
        """The same."""
        return self.pool(b"")

    def moved(self, key: bytes, address: Address) -> None:
        """Never happens: only Cluster nodes redirect."""

    def refresh(self) -> None:
        """Begin anew with the next connection: what ``opened`` starts may have to be started again."""
        self._drop()

    def close(self) -> None:
        """Close all connections, now and behind who is late."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class Cluster:
    """A Redis Cluster, its slots as redis-py's client knows them."""

    is_cluster = True

    def __init__(self, opened: Callable[[], RedisCluster], identity: Hashable) -> None:
        """``opened`` gives the client, and may connect."""
        self._opened = opened
        self._known: RedisCluster | None = None
        self._pools: dict[Address, Pool] = {}
        self._moved: dict[int, Address] = {}
        self._closed = False
        self.identity = identity

    @property
    def _client(self) -> RedisCluster:
        if self._known is None:
            self._known = self._opened()
        return self._known

    def pool(self, key: bytes) -> Pool:
        """The pool of the node that holds ``key``."""
        address = self._moved.get(self._client.keyslot(key))
        if address is None:
            node = self._client.get_node_from_key(key)
            if node is None:
                raise redis.ConnectionError("no node of the Cluster covers this key")
            address = (str(node.host), int(node.port))
        return self.pool_at(address)

    def pool_at(self, address: Address) -> Pool:
        """The pool of one node."""
        pool = self._pools.get(address) or self._pools.setdefault(address, Pool(self._maker(address)))
        if self._closed:
            pool.close()
        return pool

    def _maker(self, address: Address) -> Callable[[], Any]:
        node = self._client.get_node(*address) or self._client.get_default_node()
        source = self._client.get_redis_connection(node).connection_pool
        settings = _settings(source.connection_kwargs) | {"host": address[0], "port": address[1]}
        parser = getattr(redis.cluster, "ClusterParser", None)
        if parser is not None:  # redis-py 5 and 6: the others do not know redirects
            settings["parser_class"] = parser
        return lambda: source.connection_class(**settings)

    def moved(self, key: bytes, address: Address) -> None:
        """A node said that ``key`` lives elsewhere."""
        self._moved[self._client.keyslot(key)] = address

    def refresh(self) -> None:
        """Ask the nodes anew which slots they hold."""
        self._moved.clear()
        for pool in list(self._pools.values()):
            pool.drain()
        if self._known is not None:
            self._known.nodes_manager.initialize()

    def close(self) -> None:
        """Close all connections, now and behind who is late."""
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()


def _maker(pool: redis.ConnectionPool) -> Callable[[], Any]:
    """Make connections to where this pool's lead."""
    if isinstance(pool, SentinelConnectionPool):
        pool = _own_sentinel(pool)
        settings = pool.connection_kwargs
    else:
        settings = _settings(pool.connection_kwargs)
    return lambda: pool.connection_class(**settings)


def _own_sentinel(theirs: SentinelConnectionPool) -> SentinelConnectionPool:
    """Ask the same sentinels, with time-outs of ours."""
    given = theirs.sentinel_manager
    sentinel = Sentinel([], min_other_sentinels=given.min_other_sentinels)
    for each in given.sentinels:
        asked = each.connection_pool
        pool = redis.ConnectionPool(connection_class=asked.connection_class, **_settings(asked.connection_kwargs))
        sentinel.sentinels.append(redis.Redis(connection_pool=pool))
    settings = _settings(theirs.connection_kwargs)
    settings.pop("connection_pool", None)
    return SentinelConnectionPool(theirs.service_name, sentinel, connection_class=theirs.connection_class, **settings)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in given.items() if not _OURS.fullmatch(name)}
    settings |= {
        "socket_timeout": ANSWER_TIMEOUT,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    } | _SIGNATURE
    connect = given.get("redis_connect_func")
    if connect is not None and not isinstance(getattr(connect, "__self__", None), RedisCluster):
        settings["redis_connect_func"] = connect
    return settings


def from_client(client: object) -> Server:
    """Take a ready client of redis-py as it is.

    Raises:
        ConfigurationError: it is something else: an asyncio client, a pipeline, a client of replicas, a URL.
    """
    if isinstance(client, RedisCluster) and not isinstance(client, ClusterPipeline):
        nodes = client.nodes_manager.startup_nodes
        return Cluster(lambda: client, ("cluster", *sorted(nodes)))
    if isinstance(client, redis.Redis) and not isinstance(client, redis.client.Pipeline):
        if not getattr(client.connection_pool, "is_master", True):
            raise ConfigurationError(
                "this client reads from replicas, where nothing can be claimed: pass Sentinel(...).master_for(...)"
            )
        return Single(lambda: client, identity_of(client.connection_pool))
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    raise ConfigurationError(
        f"client is a {kind}: pass redis.Redis(...), redis.RedisCluster(...) or Sentinel(...).master_for(...)"
    )


def identity_of(pool: redis.ConnectionPool) -> Hashable:
    """Name the server and database, so that groups of one process that mean the same share their flights."""
    settings = pool.connection_kwargs
    database = int(settings.get("db") or 0)
    sentinels = getattr(pool, "sentinel_manager", None)
    if sentinels is not None:
        hosts = sorted(_address_of(each.connection_pool.connection_kwargs) for each in sentinels.sentinels)
        return ("sentinel", *hosts, str(getattr(pool, "service_name", "")), database)
    return ("single", settings.get("path") or _address_of(settings), database)


def _address_of(settings: dict[str, Any]) -> Address:
    return str(settings.get("host", "localhost")), int(settings.get("port", 6379))
