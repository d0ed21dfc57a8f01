"""What children do to try process models: forks, stubs, greenlets. Each function is a child's, see ``processes.py``."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

import singleflight_sync as sfs
from tests.support.flights import Journal, Listener, outcome_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Channel

LEASE = 0.6
QUICK: dict[str, Any] = {"lease": LEASE, "heartbeat": 0.2, "ttl": 0}


def forked(function: Callable[[], Any]) -> int:
    """Fork a child that calls ``function`` and exits with 0 if it returned; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    except BaseException:  # noqa: BLE001 - printed, and told by the exit status
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def reaped(pid: int, *, within: float = 20.0) -> int:
    """Wait for a forked child; return its exit status."""
    found: list[tuple[int, int]] = []

    def ended() -> bool:
        done = os.waitpid(pid, os.WNOHANG)
        if done[0]:
            found.append(done)
        return bool(found)

    try:
        eventually(ended, within=within, what=f"the end of the forked child {pid}")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(found[0][1])


def noting(journal: str, name: str, seconds: float = 0.0) -> Callable[[], str]:
    """A function to share that notes its execution and takes its time."""

    def function() -> str:
        Journal(journal).note(name)
        time.sleep(seconds)
        return name

    return function


def _in_pool(arguments: tuple[str, str]) -> list[Any]:
    journal, key = arguments
    return [os.getpid(), outcome_of(lambda: _group.run(key, noting(journal, key, 3 * LEASE)))]


_group: sfs.SingleFlight


def pool_after_use(channel: Channel, url: str, journal: str) -> list[Any]:
    """Use a group, fork a pool of four, and fly in all five processes at once."""
    global _group  # that is how forked children find it
    with sfs.SingleFlight(url=url, **QUICK) as _group:
        _group.run("warm", noting(journal, "warm", LEASE))
        with multiprocessing.get_context("fork").Pool(4) as pool:
            results = pool.map_async(_in_pool, [(journal, "k")] * 4, chunksize=1)
            own = _group.run("parent", noting(journal, "parent", 3 * LEASE))
            outcomes = results.get(40)
        return [own, *outcomes]


def fork_in_mid_flight(channel: Channel, url: str, journal: str) -> None:
    """A thread of the parent owns a flight when a child is forked, which asks for the same key."""
    with sfs.SingleFlight(url=url, **QUICK) as group:
        go = threading.Event()

        def function() -> str:
            Journal(journal).note("parent")
            assert go.wait(30)
            return "parent"

        values: list[Any] = []
        owner = threading.Thread(target=lambda: values.append(group.run("k", function)))
        owner.start()
        Journal(journal).wait_for(1)

        def child() -> None:
            assert sfs.current_flight() is None
            assert group.run("k", noting(journal, "child")) == "parent"
            group.close()

        pid = forked(child)
        eventually(lambda: (info := group.peek("k")) and info.followers, what="the child follows")
        go.set()
        owner.join()
        assert reaped(pid) == 0
        assert values == ["parent"]


def fork_inside_the_function(channel: Channel, url: str, journal: str) -> list[Any]:
    """The function itself forks; the child comes back from it as if it were the owner."""
    group = sfs.SingleFlight(url=url, lease=60, heartbeat=1, ttl=30)
    parent, children = os.getpid(), []

    def function() -> str:
        pid = os.fork()
        if not pid:
            return "child"
        children.append(pid)
        status = reaped(pid)
        assert status == 0, status
        assert group.peek("k") is not None, "the child ended its parent's flight"
        return "parent"

    try:
        value = group.run("k", function)
        if os.getpid() != parent:
            assert value == "child"
            group.close()
            os._exit(0)
    except BaseException:
        if os.getpid() != parent:
            traceback.print_exc()
            os._exit(1)
        raise
    stored = group.get("k")
    group.close()
    return [value, stored]


def ask_in_a_forked_function(channel: Channel, url: str) -> str:
    """The function forks, as a pool of processes does, and its child asks for the flight's own key."""
    group = sfs.SingleFlight(url=url, lease=60, heartbeat=1)

    def ask() -> None:
        error = outcome_of(lambda: group.run("k", lambda: "child"))
        assert error[:2] == ["error", "ReentrantFlightError"], error
        assert group.run("inner", lambda: "child") == "child"
        group.close()

    def function() -> str:
        assert reaped(forked(ask)) == 0
        return "parent"

    with group:
        return group.run("k", function)


def raise_in_a_forked_function(channel: Channel, url: str, kind: str) -> list[Any]:
    """As before, but the child's copy of the function raises."""
    group = sfs.SingleFlight(url=url, lease=60, heartbeat=1, ttl=30)
    parent = os.getpid()
    error: type[BaseException] = {"Exception": LookupError, "SystemExit": SystemExit}[kind]

    def function() -> str:
        pid = os.fork()
        if not pid:
            raise error("of the child")
        assert reaped(pid) == 0
        assert group.peek("k") is not None, "the child ended its parent's flight"
        return "parent"

    try:
        value = group.run("k", function)
    except BaseException as raised:
        if os.getpid() != parent:
            os._exit(0 if isinstance(raised, error) else 1)
        raise
    stored = group.get("k")
    group.close()
    return [value, stored]


def fork_under_threads(channel: Channel, url: str, forks: int) -> list[int]:
    """Fork while four threads fly without a pause: whatever lock one of them holds, the child is not stuck."""
    with sfs.SingleFlight(url=url, **QUICK) as group:
        stop = threading.Event()
        errors: list[BaseException] = []

        def busy(number: int) -> None:
            try:
                count = 0
                while not stop.is_set():
                    count += 1
                    group.run(f"busy {number % 2}", lambda: 1)
                    group.get("other")
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        threads = [threading.Thread(target=busy, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()

        def child() -> None:
            for key in ("busy 0", "busy 1", "mine"):
                assert group.run(key, lambda: 1) == 1
            group.run("slow", lambda: time.sleep(0.3), wait_timeout=30)

        statuses = [reaped(forked(child)) for _ in range(forks)]
        stop.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return statuses


def child_leaves_connections_alone(channel: Channel, url: str) -> None:
    """Stop before, while and after a forked child flies, closes and ends like a program that exits."""
    group = sfs.SingleFlight(url=url, **QUICK)
    group.run("k", lambda: 1)
    channel.send("used")
    channel.wait()
    (heard, tell), (seen, go_on) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(2, channel._out)  # the pipe to the test is its parent's
        group.run("k", lambda: 2)
        os.write(tell, b"!")
        os.read(seen, 1)
        group.close()
        sys.exit(0)  # with all that an interpreter does at its end
    os.read(heard, 1)
    channel.send("flown")
    channel.wait()
    os.write(go_on, b"!")
    assert reaped(pid) == 0
    assert group.run("k", lambda: 3) == 3
    channel.send("forked")
    channel.wait()
    group.close()


def follow_over_a_fork(channel: Channel, url: str, journal: str) -> None:
    """A thread of the parent follows a foreign flight when children are forked: one ends before, one follows, too."""
    with sfs.SingleFlight(url=url, **QUICK) as group:
        values: list[Any] = []
        follower = threading.Thread(target=lambda: values.append(group.run("k", noting(journal, "parent"))))
        follower.start()
        eventually(lambda: (info := group.peek("k")) and info.followers, what="the parent follows")

        def child() -> None:
            assert group.run("other", noting(journal, "other", 2 * LEASE)) == "other"
            group.close()

        def follow() -> None:
            assert group.run("k", noting(journal, "child")) == "foreign"

        assert reaped(forked(child)) == 0
        pid = forked(follow)
        eventually(lambda: (info := group.peek("k")) and info.followers == 2, what="the child follows, too")
        channel.send("forked")
        follower.join()
        assert values == ["foreign"]
        assert reaped(pid) == 0


def default_group_after_a_fork(channel: Channel, url: str, journal: str) -> list[int]:
    """The module-level functions and the decorator, used before a fork and in grandchildren."""
    sfs.configure(url=url, **QUICK)

    @sfs.single_flight(key="decorated")
    def decorated() -> str:
        return noting(journal, "decorated", 2 * LEASE)()

    assert sfs.run("warm", lambda: 1) == 1

    def grandchild() -> None:
        assert decorated() == "decorated"

    def child() -> None:
        assert sfs.run("warm", lambda: 1) == 1
        pids = [forked(grandchild) for _ in range(2)]
        assert decorated() == "decorated"
        assert [reaped(pid) for pid in pids] == [0, 0]

    pids = [forked(child) for _ in range(2)]
    grandchild()
    statuses = [reaped(pid) for pid in pids]
    sfs.close()
    return statuses


def killed_fork(channel: Channel, url: str, journal: str) -> str:
    """A forked child owns a flight and is killed; its parent, which has not reaped it, takes over."""
    with sfs.SingleFlight(url=url, lease=60, heartbeat=1) as group:
        group.run("warm", lambda: 1)
        pid = forked(lambda: group.run("k", noting(journal, "child", 50)))
        Journal(journal).wait_for(1)
        follower: list[str] = []
        thread = threading.Thread(target=lambda: follower.append(group.run("k", noting(journal, "parent"))))
        thread.start()
        eventually(lambda: (info := group.peek("k")) and info.followers, what="the parent follows")
        os.kill(pid, signal.SIGKILL)
        thread.join(20)
        os.waitpid(pid, 0)
        return follower[0]


def flight_under_uwsgi(
    channel: Channel, url: str, journal: str, opt: dict[str, Any], options: dict[str, Any], seconds: float
) -> Any:
    """A flight in a process that looks like a uWSGI worker; what was seen while it was in the air."""
    stub: Any = types.ModuleType("uwsgi")
    stub.opt = {name: value.encode() if isinstance(value, str) else value for name, value in opt.items()}
    sys.modules["uwsgi"] = stub
    warnings: list[str] = []
    seen: dict[str, Any] = {}
    with sfs.SingleFlight(url=url, **options) as group, Listener(warnings.append):

        def function() -> str:
            Journal(journal).note("uwsgi")
            channel.send("running")
            time.sleep(seconds)
            seen["threads"] = [
                thread.name for thread in threading.enumerate() if thread.name.startswith("singleflight-")
            ]
            info = group.peek("k")
            seen["lease"], seen["lease_left"] = info and info.lease, info and info.lease_left
            return "uwsgi"

        seen["outcome"] = outcome_of(lambda: group.run("k", function))
        seen["second"] = outcome_of(lambda: group.run("second", lambda: 2))
        seen["warnings"] = warnings
    return seen


def _maker(made: list[str], name: str, real: Any) -> Any:
    """``real``, but notes in ``made`` which module of the package calls it."""

    def make(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "threading":
            frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "singleflight_sync":
            made.append(f"{name} by {module}")
        return real(*args, **kwargs)

    return make


def import_locks_of_the_first_flights(channel: Channel, url: str) -> list[str]:
    """Where the package takes a lock of the import system while it flies for the first time."""
    lock: Any = importlib._bootstrap._ModuleLock  # type: ignore[attr-defined]
    real = lock.acquire
    places: list[str] = []

    def acquire(self: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith("singleflight_sync"):
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return real(self)

    lock.acquire = acquire
    with sfs.SingleFlight(url=url, **QUICK) as group:
        group.run("short", lambda: 1)
        group.run("long", lambda: time.sleep(2 * LEASE))
        outcome_of(lambda: group.run("failing", lambda: 1 / 0))
        group.forget("short")
        group.cancel("short")
        group.live()
    lock.acquire = real
    return places


def imports(channel: Channel) -> dict[str, Any]:
    """Import every module of the package anew, and tell what that has made."""
    package = importlib.import_module("singleflight_sync")
    found = pkgutil.walk_packages(package.__path__, "singleflight_sync.")
    names = [module.name for module in found if not module.name.endswith("__main__")]
    for name in [name for name in sys.modules if name.partition(".")[0] == "singleflight_sync"]:
        del sys.modules[name]
    made: list[str] = []
    for name in ("Lock", "RLock", "Event", "Condition", "Semaphore", "local", "Thread", "Timer"):
        setattr(threading, name, _maker(made, name, getattr(threading, name)))
    for place, name in ((socket.socket, "connect"), (socket, "create_connection")):
        setattr(place, name, _maker(made, name, getattr(place, name)))
    skipped = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            skipped.append(name)  # an extra that is not installed
    return {"made": made, "threads": threading.active_count(), "modules": len(names) - len(skipped)}
