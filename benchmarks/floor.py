"""What Redis, redis-py and threads cost by themselves: the floor that the budgets are ratios of.

Each function does the bare thing a few times and returns seconds, one figure a call (of a herd: a
caller). They are cheap enough to be interleaved with what is compared, which they must be: a
machine's speed changes within minutes. ``python -m benchmarks.floor [URL]`` prints them all.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

VALUE = b"x" * 100
PATIENCE = 30.0  # seconds until a benchmark whose partner died fails instead of hanging


def get(url: str, calls: int = 1_000) -> list[float]:
    """``GET`` of a value of 100 bytes."""
    key = unique_name()
    with redis.Redis.from_url(url) as client:
        client.set(key, VALUE, ex=60)
        return timed(lambda: client.get(key), calls)


def set_nx_set(url: str, calls: int = 500) -> list[float]:
    """``SET NX`` of a key that is not there, then ``SET`` of a value: a miss without any safety."""
    names = iter([unique_name() for _ in range(calls + 1)])
    with redis.Redis.from_url(url) as client:

        def miss() -> None:
            key = next(names)
            client.set(key, b"1", nx=True, px=3_000)
            client.set(key + ":result", VALUE, px=5_000)

        return timed(miss, calls)


def wake_up(url: str, calls: int = 200) -> list[float]:
    """From before ``XADD`` in one process until ``XREAD`` in another has returned the value."""
    stream = unique_name()
    with redis.Redis.from_url(url) as client, processes_together(1) as pool:
        reading = pool.submit(_read_all, url, stream, calls)
        for _ in range(calls):
            until_blocked(client, stream)
            client.xadd(stream, {"value": VALUE, "sent": repr(time.monotonic())})
        client.expire(stream, 60)
        return reading.result()


def herd(url: str, processes: int = 4, threads: int = 25, work: float = 0.1) -> list[float]:
    """From the end of a function of ``work`` seconds until each of its callers has the value.

    The bare design: ``SET NX`` elects the owner, one ``XREAD`` a process waits for it, one Event a
    thread hands the value on.
    """
    keys = [unique_name(), unique_name()]  # the first round warms the processes up and is thrown away
    with processes_together(processes) as pool:
        joined = [pool.submit(_join_herds, url, keys, threads, work) for _ in range(processes)]
        return [seconds for one in joined for seconds in one.result()]


def event(threads: int = 300, work: float = 0.1) -> list[float]:
    """From the end of a function of ``work`` seconds until each thread on one Event goes on."""
    done, ready = threading.Event(), threading.Barrier(threads + 1)
    woken: list[float] = []

    def wait() -> None:
        ready.wait(PATIENCE)
        done.wait(PATIENCE)
        woken.append(time.monotonic())

    waiting = [threading.Thread(target=wait) for _ in range(threads)]
    for thread in waiting:
        thread.start()
    ready.wait(PATIENCE)
    time.sleep(work)
    end = time.monotonic()
    done.set()
    for thread in waiting:
        thread.join()
    return [at - end for at in woken]


def unique_name() -> str:
    """Return a key that nobody else uses."""
    return f"floor:{uuid.uuid4().hex}"


def timed(call: Callable[[], Any], calls: int) -> list[float]:
    """Return the seconds of each of many calls, after a first one that is not counted."""
    call()  # connects
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


together: list[Barrier] = []  # in a process of a pool: where all its processes meet


def processes_together(count: int) -> ProcessPoolExecutor:
    """Return a pool whose processes can wait for each other, at ``together[0]``."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    return ProcessPoolExecutor(count, context, initializer=_enter, initargs=(barrier,))


def _enter(barrier: Barrier) -> None:
    together.append(barrier)


def _reader(url: str, name: str) -> redis.Redis:
    """Return a client whose blocked read is not ended by redis-py's own socket timeout."""
    return redis.Redis.from_url(url, socket_timeout=PATIENCE, client_name=name)


def until_blocked(client: redis.Redis, name: str) -> None:
    """Wait until the reader of this name is blocked inside the server."""
    deadline = time.monotonic() + PATIENCE
    while not any(c["name"] == name and "b" in c["flags"] for c in client.client_list()):
        if time.monotonic() > deadline:
            raise TimeoutError("the reader did not come")


def _read_all(url: str, stream: str, calls: int) -> list[float]:
    seconds: list[float] = []
    last = b"0-0"
    with _reader(url, stream) as client:
        for _ in range(calls):
            last, fields = _read(client, stream, last)
            seconds.append(time.monotonic() - float(fields[b"sent"]))
    return seconds


def _read(client: redis.Redis, stream: str, last: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    answer: Any = client.xread({stream: last}, block=0)
    ((_, ((last, fields),)),) = answer
    return last, fields


def _join_herds(url: str, keys: list[str], threads: int, work: float) -> list[float]:
    with _reader(url, keys[0]) as client:
        client.ping()
        return [_join_herd(client, key, threads, work) for key in keys][-1]


def _join_herd(client: redis.Redis, key: str, threads: int, work: float) -> list[float]:
    events = [threading.Event() for _ in range(threads - 1)]
    woken: list[float] = []

    def follow(event: threading.Event) -> None:
        event.wait(PATIENCE)
        woken.append(time.monotonic())

    following = [threading.Thread(target=follow, args=(event,)) for event in events]
    for thread in following:
        thread.start()
    together[0].wait(PATIENCE)
    end = _own_or_read(client, key, work)
    woken.append(time.monotonic())
    for event in events:
        event.set()
    for thread in following:
        thread.join()
    return [at - end for at in woken]


def _own_or_read(client: redis.Redis, key: str, work: float) -> float:
    """Run the function or wait for who does, and return when it ended."""
    stream = key + ":stream"
    if client.set(key, b"1", nx=True, px=60_000):
        time.sleep(work)
        end = time.monotonic()
        client.xadd(stream, {"value": VALUE, "end": repr(end)})
        client.expire(stream, 60)
        return end
    return float(_read(client, stream, b"0-0")[1][b"end"])


def main(url: str) -> None:
    """Print the median, the 99th percentile and the largest figure of each, in milliseconds."""
    figures = {
        "GET": get(url),
        "SET NX + SET": set_nx_set(url),
        "XADD -> XREAD": wake_up(url),
        "herd of 4 x 25": herd(url),
        "300 threads on an Event": event(),
    }
    print(f"{'milliseconds':24} {'calls':>6} {'median':>8} {'p99':>8} {'last':>8}")
    for name, seconds in figures.items():
        p99 = statistics.quantiles(seconds, n=100)[98]
        spread = (statistics.median(seconds), p99, max(seconds))
        print(f"{name:24} {len(seconds):6}", *(f"{s * 1_000:8.3f}" for s in spread))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from tests.support.servers import Server

        server = Server()
        try:
            main(server.url)
        finally:
            server.stop()
