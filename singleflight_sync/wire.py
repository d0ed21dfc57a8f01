"""How a command goes out, and what its failure means.

Retries are ours: every script is idempotent and may be sent again, but never for longer than its caller can
wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.exceptions import AskError, BusyLoadingError, MovedError, RedisClusterException, RedisError, ResponseError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from singleflight_sync import deadline
from singleflight_sync.errors import StoreError
from singleflight_sync.pool import LATELY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight_sync.connect import Server
    from singleflight_sync.pool import Link, Pool

T = TypeVar("T")
Command = tuple[bytes, tuple[bytes, ...]]
"""A key that says where a command goes, and its parts."""

_REDIRECTS = 5
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_COPIED_BYTES = 65536
_LONGEST_TEXT = 300

# redis-py makes classes of these words, and strips them from the text.
_WORDS = {
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "AskError": "TRYAGAIN",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
}

# What a server says that cannot serve now, but may soon; by itself, or inside the error of a script.
_FOR_NOW = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCKED", "BUSY ")
_FORBIDDEN = "the server's ACL forbids it: give this user the commands and the key pattern of the namespace"
_REMEDIES = {
    "OOM": "the server's memory is full: raise maxmemory, or let it evict",
    "NOPERM": _FORBIDDEN,
    "ACL failure": _FORBIDDEN,
    "NOAUTH": "the server wants a password: put it into the URL or the client",
    "WRONGPASS": "the server refuses this user or password",
    "READONLY": "the server is a replica: point to the primary",
    "LOADING": "the server is still loading its data",
    "invalid bulk length": "the value is larger than the server's proto-max-bulk-len: lower max_bytes or raise that",
}


class UnreachableError(StoreError):
    """Raised when Redis cannot be reached, or answers that it cannot serve for now.

    Attributes:
        answered: Whether it answered.
        pauses: Whether it had better be left alone; not where a slot of a Cluster is just on the move.
    """

    answered = False
    pauses = True


def bulk(*parts: bytes) -> bytes:
    """Pack parts of a command."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def pack(parts: Sequence[bytes]) -> list[bytes]:
    """Pack parts of a command; a large one is not copied."""
    chunks: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < _COPIED_BYTES:
            small.append(part)
        else:
            chunks += [bulk(*small) + b"$%d\r\n" % len(part), part, b"\r\n"]
            small = []
    return [*chunks, bulk(*small)]


def command(count: int, *packed: bytes) -> list[bytes]:
    """Put a command of ``count`` parts together in few pieces; a large one is not copied."""
    pieces, head = [], b"*%d\r\n" % count
    for chunk in packed:
        if len(chunk) < _COPIED_BYTES:
            head += chunk
        else:
            pieces += [head, chunk]
            head = b""
    return [*pieces, head]


def exchange(server: Server, key: bytes, chunks: Sequence[bytes], size: int = 0) -> Any:
    """Send a packed command to where ``key`` lives and return the reply, following a Cluster's redirects.

    Raises:
        redis.RedisError: what the client or the server says.
    """
    pool, asking = server.pool(key), False
    for _ in range(_REDIRECTS):
        try:
            return _ask(pool, [_ASKING, *chunks] if asking else chunks, size, replies=1 + asking)
        except AskError as exc:
            pool, asking = server.pool_at((exc.host, exc.port)), True
        except MovedError as exc:
            server.moved(key, (exc.host, exc.port))
            pool, asking = server.pool(key), False
    raise RedisClusterException("the Cluster redirects in circles")


def _ask(pool: Pool, chunks: Sequence[bytes], size: int, replies: int) -> Any:
    return _on_a_link(pool, lambda link: _talk(pool, link, chunks, size, replies))


def _on_a_link(pool: Pool, use: Callable[[Link], T]) -> T:
    """Replace the connection once if it turns out to be cut, or was not used lately and gives no answer."""
    link = pool.take()
    stale = not link.fresh and deadline.now() - link.used_at > LATELY
    try:
        return use(link)
    except redis.TimeoutError:
        if not stale:
            raise
    except redis.ConnectionError as exc:
        if isinstance(exc, (BusyLoadingError, redis.AuthenticationError)):
            raise
    pool.drain()
    return use(pool.take())


def _talk(pool: Pool, link: Link, chunks: Sequence[bytes], size: int, replies: int) -> Any:
    try:
        link.send(chunks, size)
        for _ in range(replies):
            reply = link.receive(size)
    except ResponseError as exc:
        if replies > 1 or is_for_now(exc):
            link.close()  # a new connection may lead to a server that can serve
        else:
            pool.give(link)
        raise
    except BaseException:
        link.close()
        raise
    pool.give(link)
    return reply


def is_for_now(exc: Exception) -> bool:
    """Whether the server may do later what it refuses now."""
    return any(word in _said(exc) for word in _FOR_NOW)


def _said(exc: Exception) -> str:
    return f"{_WORDS.get(type(exc).__name__, '')} {exc}"


def is_wrong_type(exc: BaseException | None) -> bool:
    """Whether a key of ours holds something else, which must have been planted."""
    return "WRONGTYPE" in str(exc)


def translate(exc: Exception, operation: str, key: str) -> StoreError:
    """Our error for the client's or the server's: names the operation, the key, the cause and the remedy."""
    answered = isinstance(exc, (ResponseError, BusyLoadingError))
    passing = not isinstance(exc, (ResponseError, redis.AuthenticationError)) or is_for_now(exc)
    remedy = next((text for word, text in _REMEDIES.items() if word in _said(exc)), "")
    if not remedy:
        remedy = (
            "check that the server is up and can be reached from here" if passing else "the server refused the command"
        )
    about = f" for key {key!r}" if key else ""
    text = str(exc).partition(" : ")[0][:_LONGEST_TEXT]  # behind that, Sentinel's errors show whole clients
    error = (UnreachableError if passing else StoreError)(
        f"cannot {operation}{about}: {remedy} ({type(exc).__name__}: {text})"
    )
    if isinstance(error, UnreachableError):
        error.answered = answered
        error.pauses = "TRYAGAIN" not in _said(exc)
    return error


def persist(attempt: Callable[[], T], seconds: float) -> T:
    """Repeat an attempt that finds Redis unreachable, for ``seconds``; at least once.

    Raises:
        StoreError: the last one.
    """
    until = deadline.now() + seconds
    try:
        return attempt()  # the common case, without the machinery
    except UnreachableError:
        left = until - deadline.now()
        if left <= 0:
            raise
    retrying = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after_delay(left),
        wait=wait_random_exponential(multiplier=0.02, max=0.25),
        reraise=True,
    )
    return retrying(attempt)


ERRORS = (RedisError, RedisClusterException, OSError, UnicodeError)
"""What can come out of an exchange."""


def pipeline(server: Server, commands: Sequence[Command]) -> list[Any]:
    """Many commands, each with the key that says where it goes: one round trip per server.

    Returns:
        The replies in order; an error that the server answered stands in the place of its reply.
    """
    places: dict[Pool, list[int]] = {}
    for place, (key, _) in enumerate(commands):
        places.setdefault(server.pool(key), []).append(place)
    replies: list[Any] = [None] * len(commands)
    for pool, mine in places.items():
        answers = _on_a_link(pool, lambda link: _talk_of_many(pool, link, [commands[each][1] for each in mine]))  # noqa: B023
        for place, answer in zip(mine, answers, strict=True):
            replies[place] = answer
    for place, (key, parts) in enumerate(commands):
        if isinstance(replies[place], (MovedError, AskError)):
            packed = command(len(parts), *pack(parts))
            replies[place] = _reply(lambda: exchange(server, key, packed))  # noqa: B023 - called at once
    return replies


def _talk_of_many(pool: Pool, link: Link, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
    block = b"".join([b"*%d\r\n" % len(parts) + bulk(*parts) for parts in commands])
    try:
        link.send([block], len(block))
        answers = [_reply(link.receive) for _ in commands]
    except BaseException:
        link.close()
        raise
    pool.give(link)
    return answers


def _reply(receive: Callable[[], Any]) -> Any:
    try:
        return receive()
    except ResponseError as exc:
        return exc
