"""What other processes of the project do; see the fixture ``start``."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import django
from django.core.cache import cache
from django.db import connection, transaction

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.child import Channel


def own(channel: Channel, keys: list[str], value: Any, timeout: float | None = 60) -> dict[str, Any]:
    """Compute all keys, each in a thread; go on with them at the test's word."""
    django.setup()
    channel.send("ready")
    channel.wait()
    running, go_on = threading.Barrier(len(keys) + 1, timeout=20), threading.Event()

    def compute() -> Any:
        running.wait()
        assert go_on.wait(60)
        return value

    with ThreadPoolExecutor(len(keys)) as pool:
        calls = {key: pool.submit(cache.get_or_set, key, compute, timeout) for key in keys}
        running.wait()
        channel.send("running")
        channel.wait()
        go_on.set()
        return {key: call.result(30) for key, call in calls.items()}


def ask(channel: Channel, keys: list[str], value: Any, timeout: float | None = 60) -> dict[str, Any]:
    """Ask for all keys, each in a thread; count what was computed here."""
    django.setup()
    channel.send("ready")
    channel.wait()
    computed = []

    def compute(key: str) -> Any:
        computed.append(key)
        return value

    with ThreadPoolExecutor(len(keys)) as pool:
        calls = {key: pool.submit(cache.get_or_set, key, lambda key=key: compute(key), timeout) for key in keys}
        values = {key: call.result(30) for key, call in calls.items()}
    return {"values": values, "computed": sorted(computed)}


def delete(channel: Channel, key: str) -> bool:
    """Delete the key at the test's word."""
    django.setup()
    channel.send("ready")
    channel.wait()
    return bool(cache.delete(key))


def write_before_the_backend_is_there(channel: Channel) -> list[Any]:
    """Write in a transaction, then import the backend; what was computed, and what is stored."""
    django.setup()
    assert "django_singleflight.cache" not in sys.modules
    assert "django_singleflight.transactions" not in sys.modules
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE row (id INTEGER)")
        return [cache.get_or_set("k", lambda: 1), cache.get("k")]


def fork_after_use(channel: Channel, count: int) -> dict[str, Any]:
    """Use the cache, then fork: children and parent ask for one key at the same time."""
    django.setup()
    assert cache.get_or_set("before", lambda: 1) == 1
    context = multiprocessing.get_context("fork")
    answers, barrier, runs = context.Queue(), context.Barrier(count + 1), context.Value("i", 0)

    def compute() -> str:
        with runs.get_lock():
            runs.value += 1
        eventually(lambda: cache.flights.peek(cache.make_key("k")).followers == count, within=20)
        return "value"

    def ask() -> str:
        barrier.wait(20)
        value: str = cache.get_or_set("k", compute)
        return value

    children = [context.Process(target=lambda: answers.put(ask())) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, which is what is tried
        for child in children:
            child.start()
    own = ask()
    found = [answers.get(timeout=20) for _ in children]
    for child in children:
        child.join(20)
    return {"parent": own, "children": found, "runs": runs.value}
