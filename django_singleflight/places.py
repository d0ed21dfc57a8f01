"""Which database a URL or the settings of a cache mean, found without connecting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

Place = tuple[str, ...]


def servers_of(config: Mapping[str, Any]) -> list[str]:
    """The servers that a cache's ``LOCATION`` names, as Django's Redis backend reads it."""
    location = config.get("LOCATION") or ""
    return re.split("[;,]", location) if isinstance(location, str) else list(location)


def of_cache(config: Mapping[str, Any]) -> Place | None:
    """The database of a cache, by its settings; None if it is in none that we know of."""
    servers = servers_of(config)
    return of_url(servers[0], config.get("OPTIONS", {}).get("db")) if servers else None


def of_url(url: object, number: object = None) -> Place | None:
    """The database that ``url`` means; ``number``: the one that is meant where the URL names none."""
    try:
        parts = urlsplit(str(url))
        named = parse_qs(parts.query).get("db", [""])[0]
        if parts.scheme == "unix":
            return "unix", parts.path, named or str(number or 0)
        if parts.scheme not in {"redis", "rediss"}:
            return None
        host = (parts.hostname or "localhost").replace("127.0.0.1", "localhost")
        return host, str(parts.port or 6379), named or parts.path.strip("/") or str(number or 0)
    except ValueError:
        return None
