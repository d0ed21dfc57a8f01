"""What a URL names: a standalone server, one behind Sentinel, a Cluster, or the embedded one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from singleflight_sync import embedded
from singleflight_sync.connect import Address, Cluster, Server, Single, identity_of
from singleflight_sync.errors import ConfigurationError
from singleflight_sync.pool import ANSWER_TIMEOUT, CONNECT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMITS: dict[str, Any] = {
    "socket_timeout": ANSWER_TIMEOUT,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "retry": Retry(NoBackoff(), 0),
}
"""For what redis-py asks by itself: where the primary is, and which node holds which slots."""


def default_url() -> str:
    """The environment's `SINGLEFLIGHT_URL`, else the embedded server where it is installed, else the local one."""
    return os.environ.get("SINGLEFLIGHT_URL") or ("embedded://" if embedded.available() else "redis://127.0.0.1:6379/0")


def check_url(url: object) -> str:  # noqa: C901, PLR0912 - one line for each way to be wrong
    """Checks a URL without connecting.

    Raises:
        ConfigurationError: it cannot be understood. The message shows no password.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"url is a {type(url).__name__}: pass a string such as 'redis://127.0.0.1:6379/0'")
    if "://" not in url:
        raise ConfigurationError(f"url {redacted(url)!r} has no '://': write it as in 'redis://127.0.0.1:6379/0'")
    try:
        parts = urlsplit(url)
        if "," not in parts.netloc:
            _ = parts.port  # raises where it is no number
    except ValueError as exc:
        raise ConfigurationError(
            f"url {redacted(url)!r} cannot be read: host and port must be as in 'redis://host:6379/0'"
        ) from exc
    if parts.scheme not in _OPENERS:
        known = ", ".join(f"{scheme}://" for scheme in _OPENERS)
        raise ConfigurationError(f"url {redacted(url)!r} has the unknown scheme {parts.scheme!r}: use one of {known}")
    if parts.scheme in {"redis", "rediss"} and parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        raise ConfigurationError(
            f"url {redacted(url)!r} names the database {parts.path.strip('/')!r}: it must be a number, as in redis://host:6379/0"
        )
    if parts.scheme == "unix" and not parts.path:
        raise ConfigurationError(f"url {redacted(url)!r} names no socket: use unix:///path/to/redis.sock")
    if parts.scheme == "redis+sentinel":
        _sentinel_path(url, parts.path)
    if parts.scheme in {"redis+sentinel", "redis+cluster"}:
        _hosts(url)
        if parts.query:
            raise ConfigurationError(
                f"url {redacted(url)!r} has a query string, which is not used here: pass a ready client"
            )
    if parts.scheme in {"redis", "rediss", "unix"}:
        _check_query(url)
    for name, value in parse_qsl(parts.query):
        if name == "db" and not value.isdecimal():
            raise ConfigurationError(f"url {redacted(url)!r} names the database {value!r}: it must be a number")
    return url


def _check_query(url: str) -> None:
    """Have redis-py read all of it and make a connection object, which connects to nothing."""
    try:
        redis.Redis.from_url(url).connection_pool.make_connection()
    except (ValueError, TypeError) as exc:
        raise ConfigurationError(
            f"url {redacted(url)!r} has a query string that redis-py does not take: {exc}"
        ) from None


def redacted(url: str) -> str:
    """The URL without its password, for people."""
    url = re.sub(
        r"(?<=://)([^/?#]*)@",
        lambda match: match[1].split(":")[0] + (":***@" if ":" in match[1] else "@"),
        url,
        count=1,
    )
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", url)


def from_url(url: str) -> Server:
    """The server that a URL names; nothing connects or starts before it is used.

    Raises:
        ConfigurationError: the URL cannot be understood.
    """
    return _OPENERS[urlsplit(check_url(url)).scheme](url)


def _open_single(url: str) -> Server:
    client = redis.Redis.from_url(url)
    return Single(lambda: client, identity_of(client.connection_pool))


def _open_embedded(url: str) -> Server:
    parts = urlsplit(url)
    directory = (parts.netloc + parts.path) or None
    return Single(lambda: redis.Redis(unix_socket_path=embedded.socket_path(directory)), ("embedded", directory))


def _open_sentinel(url: str) -> Server:
    parts = urlsplit(url)
    service, database = _sentinel_path(url, parts.path)
    sentinel = Sentinel(_hosts(url), sentinel_kwargs=_LIMITS, **_credentials(parts.netloc))
    client = sentinel.master_for(service, db=database)
    return Single(lambda: client, identity_of(client.connection_pool))


def _open_cluster(url: str) -> Server:
    hosts = _hosts(url)
    login = _credentials(urlsplit(url).netloc)

    def opened() -> RedisCluster:
        return RedisCluster(startup_nodes=[ClusterNode(*each) for each in hosts], **login, **_LIMITS)

    return Cluster(opened, ("cluster", *sorted(f"{host}:{port}" for host, port in hosts)))


_OPENERS: dict[str, Callable[[str], Server]] = {
    "redis": _open_single,
    "rediss": _open_single,
    "unix": _open_single,
    "redis+sentinel": _open_sentinel,
    "redis+cluster": _open_cluster,
    "embedded": _open_embedded,
}


def _credentials(netloc: str) -> dict[str, Any]:
    user, _, password = netloc.rpartition("@")[0].partition(":")
    login = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in login.items() if value}


def _hosts(url: str) -> list[Address]:
    default = 26379 if url.startswith("redis+sentinel") else 6379
    hosts = []
    for each in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = each.rpartition(":") if ":" in each else (each, "", str(default))
        if not host or not port.isdecimal():
            raise ConfigurationError(
                f"url {redacted(url)!r} names the host {each!r}: write host:port, several with commas"
            )
        hosts.append((host, int(port)))
    return hosts


def _sentinel_path(url: str, path: str) -> tuple[str, int]:
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ConfigurationError(f"url {redacted(url)!r} names no service: use redis+sentinel://host:26379/service/0")
    if database and not database.isdecimal():
        raise ConfigurationError(f"url {redacted(url)!r} names the database {database!r}: it must be a number")
    return service, int(database or 0)
