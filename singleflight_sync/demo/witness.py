"""Counters in Redis: what happened is read there, not believed."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

from singleflight_sync import urls, wire
from singleflight_sync.errors import StoreError

_LIFE_MS = b"600000"
# What the package itself sends; the scripts that it has run send none of these.
_SENT = {"EVAL": "scripts", "EVALSHA": "scripts", "XREAD": "blocked reads"}
_GREETINGS = {"HELLO", "AUTH", "SELECT", "CLIENT|SETINFO", "CLIENT|SETNAME"}
_STATISTIC = re.compile(rb"cmdstat_([^:]+):calls=(\d+)")


class Witness:
    """Counts under one prefix. Thread-safe."""

    def __init__(self, url: str, prefix: str) -> None:
        self._server = urls.from_url(url)
        self._prefix = prefix
        self._seen: set[str] = set()

    def count(self, what: str) -> int:
        """Count one more ``what``, and return how many there are."""
        name = self._name(what)
        number = int(self._send(name, b"INCR", name))
        self._send(name, b"PEXPIRE", name, _LIFE_MS)
        return number

    def counted(self, what: str) -> int:
        """How many ``what`` there are."""
        self._seen.add(what)
        return int(self._send(self._name(what), b"GET", self._name(what)) or 0)

    def commands(self) -> Counter[str] | None:
        """What the server was sent so far, by kind; None on a Cluster, where no one node knows."""
        if self._server.is_cluster:
            return None
        kinds: Counter[str] = Counter()
        for name, calls in _STATISTIC.findall(self._send(b"", b"INFO", b"commandstats")):
            command = name.decode().upper()
            kind = "greetings" if command in _GREETINGS else _SENT.get(command)
            if kind:
                kinds[kind] += int(calls)
        return kinds

    def clear(self, *others: str) -> None:
        """Remove the counters, and other keys."""
        for name in [*map(self._name, self._seen), *(each.encode() for each in others)]:
            self._send(name, b"DEL", name)

    def end_server(self) -> None:
        """End the server, which is ours alone."""
        with contextlib.suppress(StoreError):  # it is gone before it can answer
            self._send(b"", b"SHUTDOWN", b"NOSAVE")

    def close(self) -> None:
        """Close its connections."""
        self._server.close()

    def _name(self, what: str) -> bytes:
        return f"{self._prefix}:{what}".encode()

    def _send(self, key: bytes, *words: bytes) -> Any:
        try:
            return wire.exchange(self._server, key, wire.command(len(words), wire.bulk(*words)))
        except wire.ERRORS as exc:
            raise wire.translate(exc, "count", key.decode()) from exc
