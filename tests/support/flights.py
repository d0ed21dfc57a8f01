"""Flights to break: callers in threads, callers in child processes, and a journal of who ran the function.

A child's function is described by words, since no function travels to it:

========================  =============================================================
``now``                   return at once
``wait``                  return when the test says so (``Child.release``)
``sleep SECONDS``         sleep, in Python, whatever happens
``grip SECONDS``          sleep in C without giving up the interpreter lock, so that nothing
                          else runs; in a child of a test, when the test says so
``poll``                  poll the cancel token until it fires, and return all the same
``checkpoint``            call ``checkpoint()`` until it raises
========================  =============================================================
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import singleflight_sync as sfs
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Channel


class Note(NamedTuple):
    """One line of a journal: who, in which process, at which moment of the monotonic clock."""

    who: str
    pid: int
    at: float


class Journal:
    """A file to which any process may add a line; what was added stays, whoever is killed."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def note(self, who: str) -> None:
        """Add a line."""
        line = f"{who} {os.getpid()} {time.monotonic()}\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def notes(self) -> list[Note]:
        """All lines so far, oldest first."""
        path = Path(self.path)
        lines = path.read_text().splitlines() if path.exists() else []
        return [Note(who, int(pid), float(at)) for who, pid, at in (line.rsplit(" ", 2) for line in lines)]

    def wait_for(self, count: int, *, within: float = 20.0) -> list[Note]:
        """Wait until there are ``count`` lines; return all."""
        eventually(lambda: len(self.notes()) >= count, within=within, what=f"{count} executions")
        return self.notes()

    def __len__(self) -> int:
        return len(self.notes())


class Call:
    """One call of ``run`` in a thread of the test."""

    def __init__(self, group: sfs.SingleFlight, key: str, function: Callable[[], Any], **options: Any) -> None:
        self._outcome: dict[str, Any] = {}
        self._thread = threading.Thread(
            target=self._run, args=(group, key, function, options), name="test-call", daemon=True
        )
        self._thread.start()

    def _run(self, group: sfs.SingleFlight, key: str, function: Callable[[], Any], options: dict[str, Any]) -> None:
        try:
            self._outcome["value"] = group.run(key, function, **options)
        except BaseException as error:  # noqa: BLE001 - it is raised by result()
            # Its traceback would hold on to this call, and so keep in a cycle whatever was in use.
            self._outcome["error"] = error.with_traceback(None)
        self._outcome["at"] = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether it has returned."""
        return not self._thread.is_alive()

    @property
    def ended_at(self) -> float:
        """When it returned, by the monotonic clock."""
        return float(self._outcome["at"])

    def result(self, *, within: float = 20.0) -> Any:
        """What it returned; raises what it raised."""
        self._thread.join(within)
        assert self.done, f"a caller hangs for more than {within} s"
        if "error" in self._outcome:
            raise self._outcome["error"]
        return self._outcome["value"]

    def error(self, *, within: float = 20.0) -> BaseException:
        """What it raised."""
        try:
            value = self.result(within=within)
        except BaseException as error:  # noqa: BLE001 - asked for
            return error
        raise AssertionError(f"no error, but {value!r}")


class Work:
    """A function to share: counts its executions, and goes on when it is let go."""

    made: ClassVar[list[Work]] = []

    def __init__(self, *values: Any) -> None:
        self.made.append(self)
        self._values = list(values)
        self._lock = threading.Lock()
        self._go = threading.Semaphore(0)
        self.runs = 0
        self.flight: Any = None

    def __call__(self) -> Any:
        with self._lock:
            value = self._values[min(self.runs, len(self._values) - 1)]
            self.runs += 1
            self.flight = sfs.current_flight()
        assert self._go.acquire(timeout=50)
        return value

    def wait_for(self, runs: int, *, within: float = 20.0) -> None:
        """Wait until it was called so often."""
        eventually(lambda: self.runs >= runs, within=within, what=f"{runs} executions")

    @classmethod
    def let_all_go(cls) -> None:
        """At the end of a test, however it went: nothing keeps running into the next one."""
        while cls.made:
            cls.made.pop().let_go(1_000)

    def let_go(self, times: int = 1) -> None:
        """Let executions, running ones or later ones, return."""
        self._go.release(times)


class Listener(logging.Handler):
    """Calls ``hear`` with each warning of the package, in the thread that gives it; a context manager."""

    def __init__(self, hear: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a warning on."""
        self._hear(record.getMessage())

    def __enter__(self) -> Listener:
        logging.getLogger("singleflight_sync").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("singleflight_sync").removeHandler(self)


def grip(seconds: float) -> None:
    """Sleep in C without giving up the interpreter lock; a signal does not end it, as it would end ``usleep``."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # zeros: an unlocked one
    until = time.time() + seconds
    moment = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_timedlock(mutex, moment)


def _poll() -> str:
    token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
    while not token.wait(0.05):
        pass
    return str(token.reason.value)  # type: ignore[union-attr]


def _checkpoint() -> None:
    token = sfs.current_flight().cancel_token  # type: ignore[union-attr]
    while True:
        token.checkpoint()
        time.sleep(0.02)


def do(work: str, channel: Channel | None = None) -> str | None:
    """Do what the words say."""
    word, _, number = work.partition(" ")
    if word == "wait":
        assert channel is not None
        channel.wait()
    elif word == "sleep":
        time.sleep(float(number))
    elif word == "grip":
        if channel is not None:
            channel.wait()
        grip(float(number))
    elif word == "poll":
        return _poll()
    elif word == "checkpoint":
        _checkpoint()
    else:
        assert word == "now", work
    return None


def outcome_of(call: Callable[[], Any]) -> list[Any]:
    """``["value", value]`` or ``["error", class name, text]``."""
    try:
        return ["value", call()]
    except Exception as error:  # noqa: BLE001 - reported
        return ["error", type(error).__name__, str(error)]


def fly(
    channel: Channel,
    *,
    url: str,
    key: str,
    journal: str,
    name: str,
    work: str = "now",
    threads: int = 1,
    times: int = 1,
    options: dict[str, Any] | None = None,
) -> list[list[Any]]:
    """In a child: call ``run`` in ``threads`` threads, ``times`` times each; return all outcomes.

    Sends ``running`` when the function begins, and what it has learnt from its cancel token.
    """

    def function() -> str:
        Journal(journal).note(name)
        channel.send("running")
        learnt = do(work, channel)
        if learnt is not None:
            channel.send(learnt)
        return name

    outcomes: list[list[Any]] = []

    def caller() -> None:
        outcomes.extend(outcome_of(lambda: group.run(key, function)) for _ in range(times))

    with sfs.SingleFlight(url=url, **(options or {})) as group:
        others = [threading.Thread(target=caller) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        caller()
        for thread in others:
            thread.join()
    return outcomes


def followers(group: sfs.SingleFlight, key: str) -> int:
    """How many processes have joined the live flight of ``key``."""
    info = group.peek(key)
    return 0 if info is None else info.followers


def wait_for_followers(group: sfs.SingleFlight, key: str, count: int, *, within: float = 20.0) -> None:
    """Wait until ``count`` processes have joined the live flight of ``key``."""
    eventually(lambda: followers(group, key) >= count, within=within, what=f"{count} followers of {key!r}")


def waiting_here(group: sfs.SingleFlight, key: str) -> int:
    """How many callers of this process wait in the room of ``key``."""
    room = group._runtime().shared.rooms._rooms.get(key)
    return 0 if room is None else len(room.waiting)


def wait_for_callers(group: sfs.SingleFlight, key: str, count: int, *, within: float = 20.0) -> None:
    """Wait until ``count`` callers of this process wait in the room of ``key``."""
    eventually(lambda: waiting_here(group, key) >= count, within=within, what=f"{count} waiting callers")
