"""A real Cluster and a real Sentinel set-up, built from single servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

from tests.support.servers import Server
from tests.support.waiting import eventually

SLOTS = 16_384


class Cluster:
    """Three primaries that share the slots, without replicas."""

    def __init__(self, nodes: int = 3) -> None:
        self._stack = ExitStack()
        self.nodes: list[Server] = []
        with self._stack:
            for _ in range(nodes):
                node = Server(cluster_enabled="yes", cluster_node_timeout=2_000)
                self._stack.callback(node.stop)
                self.nodes.append(node)
            self._join()
            self._stack = self._stack.pop_all()

    def _join(self) -> None:
        share = SLOTS // len(self.nodes)
        for place, node in enumerate(self.nodes):
            first = place * share
            last = SLOTS - 1 if node is self.nodes[-1] else first + share - 1
            with redis.Redis(port=node.port) as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        eventually(self._is_complete, within=30, what="the Cluster is complete")

    def _is_complete(self) -> bool:
        return all(self._sees_all(node) for node in self.nodes)

    def _sees_all(self, node: Server) -> bool:
        with redis.Redis(port=node.port, decode_responses=True) as client:
            text: str = client.execute_command("CLUSTER", "INFO")
        info = dict(line.split(":", 1) for line in text.split())
        counts = (info["cluster_known_nodes"], info["cluster_slots_ok"])
        return info["cluster_state"] == "ok" and counts == (str(len(self.nodes)), str(SLOTS))

    @property
    def url(self) -> str:
        """The Cluster's address, by its first node."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def client(self, **options: Any) -> RedisCluster:
        """A new Cluster client, closed by ``close_clients``."""
        client = RedisCluster(host="127.0.0.1", port=self.nodes[0].port, **options)
        return self.nodes[0].keep(client)

    def flush(self) -> None:
        """Empty all nodes."""
        for node in self.nodes:
            node.flush()

    def close_clients(self) -> None:
        """Close every client that ``client`` has made."""
        for node in self.nodes:
            node.close_clients()

    def stop(self) -> None:
        """End all nodes."""
        self._stack.close()


class SentinelSet:
    """A primary, a replica, and three sentinels that watch them under the name ``primary``."""

    service = "primary"

    def __init__(self) -> None:
        self._stack = ExitStack()
        with self._stack:
            self.primary = self._add(Server(repl_diskless_sync_delay=0))
            self.replica = self._add(
                Server("--replicaof", "127.0.0.1", str(self.primary.port)),
            )
            self.sentinels = [self._add(self._sentinel()) for _ in range(3)]
            eventually(self._is_ready, within=30, what="the sentinels know the replica")
            self._stack = self._stack.pop_all()

    def _add(self, server: Server) -> Server:
        self._stack.callback(server.stop)
        return server

    def _sentinel(self) -> Server:
        config = [
            f"sentinel monitor {self.service} 127.0.0.1 {self.primary.port} 2",
            f"sentinel down-after-milliseconds {self.service} 500",
            f"sentinel failover-timeout {self.service} 2000",
        ]
        return Server("--sentinel", config=config)

    def _is_ready(self) -> bool:
        return all(self._knows_all(server) for server in self.sentinels) and self._replicates()

    def _knows_all(self, server: Server) -> bool:
        with redis.Redis(port=server.port) as client:
            state = client.sentinel_masters()[self.service]
        counts = (state["num-slaves"], state["num-other-sentinels"])
        return bool(counts == (1, len(self.sentinels) - 1))

    def _replicates(self) -> bool:
        with redis.Redis(port=self.replica.port) as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels listen."""
        return [("127.0.0.1", server.port) for server in self.sentinels]

    @property
    def url(self) -> str:
        """The address of the watched service."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    def wait_for_failover(self, *, within: float = 20.0) -> None:
        """Wait until the sentinels name the replica as the primary."""
        address = ("127.0.0.1", self.replica.port)
        eventually(lambda: self._named() == address, within=within, what="a failover")

    def _named(self) -> tuple[str, int] | None:
        with redis.Redis(port=self.sentinels[0].port, decode_responses=True) as client:
            state = client.sentinel_masters()[self.service]
        return state["ip"], int(state["port"])

    def discovery(self, **options: Any) -> Sentinel:
        """A Sentinel client, closed at the end."""
        discovery = Sentinel(self.addresses, **options)
        for client in discovery.sentinels:
            self.primary.keep(client)
        return discovery

    def client(self, **options: Any) -> redis.Redis:
        """A new client of whoever is the primary."""
        client: redis.Redis = self.discovery(**options).master_for(self.service)
        return self.primary.keep(client)

    def stop(self) -> None:
        """End all servers."""
        self._stack.close()
