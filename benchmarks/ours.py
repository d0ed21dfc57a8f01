"""What the package costs: the counterparts of ``floor``.

Each function flies ``calls`` flights of one kind and returns seconds, one figure a flight; of a herd, its last
caller's.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import redis

from benchmarks.floor import PATIENCE, VALUE, processes_together, timed, together, unique_name, until_blocked
from singleflight_sync import SingleFlight

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event


def hit(url: str, calls: int) -> list[float]:
    """``run`` of a key whose value of 100 bytes is fresh."""
    key = unique_name()
    with SingleFlight(url=url, ttl=60) as flights:
        return timed(lambda: flights.run(key, lambda: VALUE), calls)


def miss(url: str, calls: int) -> list[float]:
    """``run`` of a key that nobody knows, with a function that costs nothing."""
    names = iter([unique_name() for _ in range(calls + 1)])
    with SingleFlight(url=url) as flights:
        return timed(lambda: flights.run(next(names), lambda: VALUE), calls)


def wake_up(url: str, calls: int) -> list[float]:
    """From the end of the owner's function until a follower in another process has the value."""
    reader = unique_name()
    with processes_together(1) as pool, redis.Redis.from_url(url) as client, _patient(client) as flights:

        def wake() -> float:
            key = unique_name()
            following: list[Future[float]] = []

            def function() -> str:
                following.append(pool.submit(_follow, url, reader, key))
                until_blocked(client, reader)
                return _stamp()

            flights.run(key, function)
            return following[0].result()

        return [wake() for _ in range(calls)]


def herd(url: str, calls: int, processes: int = 4, threads: int = 25, work: float = 0.1) -> list[float]:
    """From the end of a function of ``work`` seconds until the last caller in all processes has the value."""
    keys = [unique_name() for _ in range(calls + 1)]  # the first round warms the processes up and is thrown away
    with processes_together(processes) as pool:
        joined = [pool.submit(_join_herds, url, keys, threads, work) for _ in range(processes)]
        lasts = [one.result() for one in joined]
    return [max(round_) for round_ in zip(*lasts, strict=True)][1:]


def killed(url: str, calls: int) -> list[float]:
    """From SIGKILL of the owner, on this host, until the function of the follower that takes over has started."""
    return [_kill(url) for _ in range(calls)]


def threads_of_one_process(url: str, calls: int, threads: int = 300, work: float = 0.2) -> list[float]:
    """From the end of a function of ``work`` seconds until the last of its callers in this process has the value."""
    with SingleFlight(url=url) as flights:
        return [_join_herd(flights, unique_name(), threads, work) for _ in range(calls)]


def _stamp() -> str:
    """Now, as a value of 100 bytes."""
    return repr(time.monotonic()).ljust(len(VALUE))


def _since(stamp: str) -> float:
    return time.monotonic() - float(stamp)


def _patient(client: redis.Redis) -> SingleFlight:
    """Return a group whose flights never live long enough for a heartbeat, which would be counted."""
    return SingleFlight(client, lease=100, heartbeat=40)


@functools.cache
def _follower(url: str, name: str) -> SingleFlight:
    return _patient(redis.Redis.from_url(url, client_name=name))


def _follow(url: str, name: str, key: str) -> float:
    return _since(_follower(url, name).run(key, lambda: "a follower became the owner"))


def _join_herds(url: str, keys: list[str], threads: int, work: float) -> list[float]:
    with SingleFlight(url=url) as flights:
        lasts = []
        for key in keys:
            together[0].wait(PATIENCE)
            lasts.append(_join_herd(flights, key, threads, work))
        return lasts


def _join_herd(flights: SingleFlight, key: str, threads: int, work: float) -> float:
    start = threading.Barrier(threads)

    def function() -> str:
        time.sleep(work)
        return _stamp()

    def call() -> float:
        start.wait(PATIENCE)
        return _since(flights.run(key, function))

    with ThreadPoolExecutor(threads) as pool:
        return max([call.result() for call in [pool.submit(call) for _ in range(threads)]])


def _kill(url: str) -> float:
    key = unique_name()
    context = multiprocessing.get_context("spawn")
    owning = context.Event()
    owner = context.Process(target=_own, args=(url, key, owning), daemon=True)
    owner.start()
    with (
        redis.Redis.from_url(url, client_name=key) as client,
        _patient(client) as flights,
        ThreadPoolExecutor(1) as pool,
    ):
        if not owning.wait(PATIENCE):
            raise TimeoutError("the owner did not start")
        taking_over = pool.submit(flights.run, key, time.monotonic)
        until_blocked(client, key)
        dead_at = time.monotonic()
        os.kill(owner.pid or 0, signal.SIGKILL)
        seconds = taking_over.result(PATIENCE) - dead_at
    owner.join()
    return seconds


def _own(url: str, key: str, owning: Event) -> None:
    def function() -> None:
        owning.set()
        time.sleep(PATIENCE)

    with redis.Redis.from_url(url) as client, _patient(client) as flights:
        flights.run(key, function)
