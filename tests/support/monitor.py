"""Counters as oracles: what a server was asked, and by whom."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.support.servers import Server


class Command(NamedTuple):
    """One command that a client sent."""

    name: str
    text: str
    address: str


class Monitor:
    """Notes the commands that clients send (MONITOR), without what scripts call inside.

    Use it as a context manager; leaving it waits until all that was sent before has been noted.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = redis.Redis(port=server.port, socket_timeout=30)
        self._monitor = self._client.monitor()
        self._end = secrets.token_hex(8)
        self._thread = threading.Thread(target=self._read, name="test-monitor", daemon=True)
        self.commands: list[Command] = []

    def _read(self) -> None:
        while (entry := self._monitor.next_command())["command"] != f"ECHO {self._end}":
            if entry["client_type"] == "lua":
                continue
            name = entry["command"].split(" ", 1)[0].upper()
            address = f"{entry['client_address']}:{entry['client_port']}"
            self.commands.append(Command(name, entry["command"], address))

    def __enter__(self) -> Monitor:
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with redis.Redis(port=self._server.port, single_connection_client=True) as client:
            client.echo(self._end)
            own = str(client.client_info()["addr"])
        self._thread.join(10)
        self._monitor.__exit__(kind, error, traceback)
        self._client.close()
        self.commands = [command for command in self.commands if command.address != own]

    def counts(self, *, without: frozenset[str] = frozenset({"CLIENT", "HELLO", "SELECT"})) -> Counter[str]:
        """How often each command was sent, the handshakes of new connections left out."""
        return Counter(command.name for command in self.commands if command.name not in without)


def command_counts(client: redis.Redis) -> Counter[str]:
    """How often each command was executed so far, calls inside scripts included."""
    statistics: dict[str, Any] = client.info("commandstats")
    return Counter(
        {name.removeprefix("cmdstat_").upper(): row["calls"] for name, row in statistics.items()},
    )


@contextmanager
def counting(server: Server) -> Iterator[Counter[str]]:
    """Fill the counter, at the end, with the commands executed meanwhile, scripts' included."""
    spent: Counter[str] = Counter()
    with redis.Redis(port=server.port) as client:
        before = command_counts(client)
        yield spent
        spent.update(command_counts(client) - before)
    del spent["INFO"]


def connections(server: Server) -> list[dict[str, str]]:
    """The open connections of the package, by library or client name."""
    with redis.Redis(port=server.port) as client:
        rows: list[dict[str, str]] = client.client_list()
    return [row for row in rows if "singleflight" in f"{row.get('lib-name')} {row['name']}".lower()]


def wait_for_connections(server: Server, count: int, *, within: float = 5.0) -> None:
    """Wait until the package has exactly ``count`` connections to ``server``."""
    eventually(
        lambda: len(connections(server)) == count,
        within=within,
        what=f"{count} connections of the package",
    )


def lasting_keys(server: Server) -> list[str]:
    """Keys that would stay for ever, the number dispensers excepted."""
    with redis.Redis(port=server.port) as client:
        keys = [key for key in client.scan_iter(count=1_000) if not key.endswith(b":owner-seq")]
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        lives = pipeline.execute()
    return [repr(key) for key, life in zip(keys, lives, strict=True) if life == -1]
