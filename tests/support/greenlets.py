"""What children do under gevent. ``early`` ones import the package before gevent patches the standard library.

Run as ``-m tests.support.greenlets early|late SCENARIO URL JOURNAL``; prints one line of JSON at its end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

if sys.argv[1] == "early":
    import redis  # noqa: F401

    import singleflight_sync  # noqa: F401

import gevent  # type: ignore[import-untyped]
from gevent import monkey

monkey.patch_all()

import threading  # noqa: E402 - patched by now

import singleflight_sync as sfs  # noqa: E402
from tests.support.flights import Journal, outcome_of  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2, "ttl": 0}


def herd(group: sfs.SingleFlight, journal: Journal) -> Any:
    """50 greenlets on one key, 50 on different ones, each flight several leases long."""

    def function(name: str) -> str:
        journal.note(name)
        time.sleep(3 * LEASE)
        return name

    keys = ["one"] * 50 + [f"key{number}" for number in range(50)]
    greenlets = [
        gevent.spawn(lambda key=key: outcome_of(lambda: group.run(key, lambda: function(key)))) for key in keys
    ]
    gevent.joinall(greenlets, timeout=40)
    return {
        "alive": sum(not greenlet.dead for greenlet in greenlets),
        "right": [each.value for each in greenlets] == [["value", key] for key in keys],
    }


def spin(group: sfs.SingleFlight, journal: Journal) -> Any:
    """A function that never yields: no heartbeat can run."""

    def function() -> str:
        journal.note("spin")
        until = time.monotonic() + 5 * LEASE
        while time.monotonic() < until:
            pass
        return "spin"

    greenlets = [gevent.spawn(lambda: outcome_of(lambda: group.run("k", function))) for _ in range(3)]
    gevent.joinall(greenlets, timeout=40)
    return [greenlet.value for greenlet in greenlets]


def kill(group: sfs.SingleFlight, journal: Journal) -> Any:
    """The owner's greenlet is killed, one that waits, and one that leads at Redis."""

    def function(name: str) -> str:
        journal.note(name)
        time.sleep(30 if name == "owner" else 0)
        return name

    owner = gevent.spawn(lambda: group.run("k", lambda: function("owner"), lease=60))
    while not len(journal):
        time.sleep(0.01)
    waiting = [gevent.spawn(lambda: group.run("k", lambda: function("heir"), lease=60)) for _ in range(4)]
    time.sleep(0.3)
    waiting[2].kill()
    owner.kill()
    gevent.joinall([each for each in waiting if each is not waiting[2]], timeout=20)
    return [each.value if not isinstance(each.value, gevent.GreenletExit) else "killed" for each in waiting]


def timeout(group: sfs.SingleFlight, journal: Journal) -> Any:
    """``gevent.Timeout``, a ``BaseException``, hits a caller that follows another process, then the rest go on."""
    hit = gevent.spawn(lambda: _within(0.5, lambda: group.run("k", lambda: "mine")))
    others = [gevent.spawn(lambda: group.run("k", lambda: "mine")) for _ in range(3)]
    gevent.joinall([hit], timeout=20)
    journal.note("timeout")
    gevent.joinall(others, timeout=20)
    return [hit.value, *[each.value for each in others]]


def _within(seconds: float, call: Any) -> Any:
    try:
        with gevent.Timeout(seconds):
            return call()
    except gevent.Timeout:
        return "timeout"


def native(group: sfs.SingleFlight, journal: Journal) -> Any:
    """Greenlets and native threads ask for one key, and share one group."""
    pool = gevent.get_hub().threadpool

    def function() -> str:
        journal.note("run")
        time.sleep(2 * LEASE)
        return "value"

    def call() -> Any:
        return outcome_of(lambda: group.run("k", function, wait_timeout=20))

    jobs = [pool.spawn(call) for _ in range(3)] + [gevent.spawn(call) for _ in range(3)]
    for job in jobs:
        job.get(timeout=30)
    return [job.get() for job in jobs]


def main() -> None:
    """Run the scenario."""
    scenario, url, journal = globals()[sys.argv[2]], sys.argv[3], Journal(sys.argv[4])
    with sfs.SingleFlight(url=url, **QUICK) as group:
        group.run("warm", lambda: 1)
        print(json.dumps(scenario(group, journal)), flush=True)  # noqa: T201 - its report
    eventually(lambda: "singleflight-heartbeat" not in map(_name, threading.enumerate()), what="no heartbeat is left")


def _name(thread: threading.Thread) -> str:
    return thread.name


if __name__ == "__main__":
    main()
