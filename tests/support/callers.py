"""Groups for one test, what callers are answered, and how they wait, as the server sees it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import redis

from singleflight_sync import SingleFlight, deadline
from tests.support.flights import Work
from tests.support.idle import end_keeper
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server

    Make = Callable[..., SingleFlight]

MANY = 1_000
META = "ai:flight:meta:{k}"
QUICK: dict[str, Any] = {"lease": 1.0, "heartbeat": 0.2}


@contextmanager
def making_groups() -> Iterator[Make]:
    """Yields what makes groups that beat fast and are closed at the end: ``group(client, **options)``."""
    with ExitStack() as stack:
        stack.callback(end_keeper)
        yield lambda *args, **options: stack.enter_context(SingleFlight(*args, **{**QUICK, **options}))


def foreign(server: Server, **options: Any) -> redis.Redis:
    """A client of what counts as another server, as redis-py says ``localhost``: it shares only Redis with ours."""
    return server.client(host="127.0.0.1", **options)


def end_pause(flights: SingleFlight) -> None:
    """Let the time pass for which an unreachable server is left alone."""
    store = flights._runtime().store
    assert store is not None
    assert store._paused_until > deadline.now()
    store._paused_until = deadline.now()


def instant(value: Any) -> Work:
    """A function that returns at once, and whose runs are counted."""
    work = Work(value)
    work.let_go(MANY)
    return work


def answer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the call returned, or what it raised."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any error is an answer
        return error


def wait_for_readers(server: Server, count: int, *, within: float = 10.0) -> None:
    """Wait until exactly ``count`` connections are blocked in a read of a log."""

    def readers() -> int:
        with redis.Redis(port=server.port) as client:
            return int(client.info("clients")["blocked_clients"])

    eventually(lambda: readers() == count, within=within, what=f"{count} pending reads")


def wait_for_beats(client: redis.Redis, count: int = 2, *, within: float = 10.0) -> None:
    """Wait until the flight of the key ``k`` was renewed so often."""

    def beat() -> int:
        return int(client.hget(META, "heartbeatAt") or 0)

    for _ in range(count):
        last = beat()
        eventually(lambda last=last: beat() > last, within=within, what="a beat")  # type: ignore[misc]
