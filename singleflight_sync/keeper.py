"""The timer thread of a process: gives each flight its heartbeat thread once it has lived for a quarter of a beat.

To start a thread costs about as much as a round trip to Redis. A short flight ends before the keeper finds it
and never pays for one.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from singleflight_sync import deadline

if TYPE_CHECKING:
    from singleflight_sync.heartbeat import Lease

logger = logging.getLogger("singleflight_sync")

IDLE = 2.0
"""How many seconds the thread stays without a flight."""


class Keeper:
    """One per process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._young: dict[int, Lease] = {}  # no thread yet. Guarded by _lock
        self._tended: list[Lease] = []  # could get no thread: the keeper beats for them. The thread's alone
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._wake = threading.Event()
        self._tick = 60.0  # seconds, only ever shorter. Guarded by _lock
        self._wanted_at = 0.0

    def ready(self, heartbeat: float) -> bool:
        """Have the thread run; False where no thread can."""
        self._wanted_at = deadline.now()
        if self._thread is not None and self._tick <= heartbeat / 4:
            return True
        return self._start(heartbeat)

    def _start(self, heartbeat: float) -> bool:
        if not _threads_run():
            return False
        with self._lock:
            if heartbeat / 4 < self._tick:
                self._tick = heartbeat / 4
                self._wake.set()
            if self._thread is not None and self._thread.is_alive():
                return True
            thread = threading.Thread(target=self._run, name="singleflight-keeper", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                return False
            self._thread = thread
            return True

    def watch(self, lease: Lease) -> None:
        """Give this flight a heartbeat when it is old enough."""
        with self._lock:
            self._young[id(lease)] = lease
            gone = self._thread is None
        if gone:
            self._start(lease.heartbeat)

    def leave(self, lease: Lease) -> None:
        """The flight is over."""
        with self._lock:
            self._young.pop(id(lease), None)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._tick)
            self._wake.clear()
            try:
                self._look_round()
            except Exception:
                logger.exception("the keeper of heartbeats failed, and goes on")
            with self._lock:
                idle = not self._young and not self._tended and deadline.now() - self._wanted_at > IDLE
                if idle:
                    self._thread, self._tick = None, 60.0
                    return

    def _look_round(self) -> None:
        with self._lock:
            grown = [lease for lease in self._young.values() if lease.age() >= lease.heartbeat / 4]
            for lease in grown:
                del self._young[id(lease)]
        self._tended += [lease for lease in grown if not lease.start_heartbeat()]
        self._tended = [lease for lease in self._tended if self._tend(lease)]

    def _tend(self, lease: Lease) -> bool:
        """Beat for a flight; whether it goes on."""
        try:
            return lease.tend() is not None
        except Exception:
            logger.exception("heartbeat of key %r failed, and goes on", lease.names.key)
            return True


_keepers: dict[int, Keeper] = {}
"""By pid: a forked child finds none and makes its own. Of several threads, ``setdefault`` lets one win."""
os.register_at_fork(after_in_child=_keepers.clear)  # a descendant may get the pid of a dead ancestor


def keeper() -> Keeper:
    """The keeper of this process."""
    pid = os.getpid()
    return _keepers.get(pid) or _keepers.setdefault(pid, Keeper())


def _threads_run() -> bool:
    """Whether threads can be relied on: without its flag, uWSGI holds the interpreter between two requests."""
    options = getattr(sys.modules.get("uwsgi"), "opt", None)
    if options is None:
        return True
    threads = options.get("threads", b"0")
    return options.get("enable-threads", b"0") in {True, b"true", b"1"} or (threads.isdigit() and int(threads) > 1)


@functools.cache
def warn_once() -> None:
    """Say that nobody beats here."""
    logger.warning(
        "no thread can run in this process: flights take a lease as long as their hard_timeout, and nobody renews it. "
        "A dead owner is noticed late. Under uWSGI, set enable-threads = true"
    )
