"""Is the owner's process still there?

The owner id names a process so exactly (host, boot, PID namespace, pid, start time) that another
process of the same host can ask the kernel about it. The answer comes as a file descriptor that a
follower polls together with its Redis socket: no thread, no polling interval.

"Gone" is only said when the kernel says so. In every doubt nothing is said, and the lease decides.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_UNKNOWN = "-"
_HOST_CHARACTERS = 64
# What the kernel calls the time namespace that every machine starts in (PROC_TIME_INIT_INO).
_FIRST_TIME_NAMESPACE = 0xEFFFFFFA
# The last four parts hold no slash. An id with an unknown part does not match.
_COMPLETE = re.compile(
    r"(?P<host>.*)/(?P<pid>[1-9][0-9]{0,6})/(?P<start>[0-9]{1,20})"
    r"/(?P<namespace>[0-9]{1,20})/(?P<boot>[0-9a-f-]{18})",
    re.DOTALL,
)

# By pid, so that a forked child does not find its parent's.
_own_ids: dict[int, str] = {}
os.register_at_fork(after_in_child=_own_ids.clear)  # a descendant may get the pid of a dead ancestor


def own_id() -> str:
    """Return the owner id of this process.

    Returns:
        ``"{hostname}/{pid}/{start_ticks}/{pid_ns_inode}/{boot_id}"``. A part that this system does
        not tell is ``-``, and such a process is never watched. To be read from the right: only the
        host name is free text (without slashes and control characters, at most 64 characters).

    Safe to call from any thread. A forked child gets an id of its own.
    """
    pid = os.getpid()
    known = _own_ids.get(pid)
    if known is None:
        parts = (_told(_host), str(pid), _told(_own_start), _told(_pid_namespace), _told(_boot))
        known = _own_ids[pid] = "/".join(parts)
    return known


class Watch:
    """One follower's watch on one owner's process.

    To be used by one thread at a time, and closed by who asked for it. In a forked child a watch of
    the parent says nothing any more.
    """

    __slots__ = ("_gone", "_process")

    def __init__(self, process: _Process | None) -> None:
        """Watch ``process``; None stands for one that was found to be gone."""
        self._process = process
        self._gone = process is None

    @property
    def fd(self) -> int | None:
        """What to poll: readable when the process is gone. None if there is nothing to wait for."""
        process = self._process
        return process.fd if process is not None and process.is_ours() else None

    def gone(self) -> bool:
        """Return whether the process has ended (a zombie has). Does not block; True is final."""
        if not self._gone:
            fd = self.fd
            self._gone = fd is not None and _has_ended(fd)
        return self._gone

    def close(self) -> None:
        """Give the file descriptor back; the last watch on a process closes it. May be repeated."""
        process, self._process = self._process, None
        if process is not None and process.is_ours():
            process.leave()


def watch(owner_id: str) -> Watch | None:
    """Watch the process that ``owner_id`` names.

    Args:
        owner_id: What `own_id` returned in the owner's process; any other text says nothing.

    Returns:
        None when nothing can be said: another host, boot or PID namespace, this very process, a
        system without pidfd, a ``/proc`` that hides the process or shows other ones, no file
        descriptor left. Else a `Watch`, whose process may be gone already.

    Never raises and never blocks; safe to call from any thread. Virtual machines that were cloned
    from one running snapshot must differ in host name: all else in an owner id is cloned with them.
    """
    mine, theirs = _COMPLETE.fullmatch(own_id()), _COMPLETE.fullmatch(owner_id)
    if mine is None or theirs is None or mine[0] == theirs[0]:
        return None
    if mine.group("host", "namespace", "boot") != theirs.group("host", "namespace", "boot"):
        return None
    try:
        return Watch(_table().join(int(theirs["pid"]), int(theirs["start"])))
    except (OSError, ValueError, IndexError):
        return None


class _Process:
    """A process that is followed: one pidfd, shared by all watches on it."""

    __slots__ = ("fd", "table", "users", "who")

    def __init__(self, table: _Table, who: tuple[int, int], fd: int) -> None:
        self.table = table
        self.who = who
        self.fd = fd  # open while users > 0
        self.users = 0  # guarded by table.lock

    def is_ours(self) -> bool:
        """Whether this very process opened the fd, and not a parent of it."""
        return self.table.pid == os.getpid()

    def leave(self) -> None:
        with self.table.lock:
            self.users -= 1
            if not self.users:
                del self.table.processes[self.who]
                with contextlib.suppress(OSError):
                    os.close(self.fd)


class _Table:
    """All that one process follows.

    A forked child makes a table of its own and leaves alone what it inherits (open until it ends).
    Nothing in here yields to another greenlet while the lock is held.
    """

    __slots__ = ("lock", "pid", "processes")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.processes: dict[tuple[int, int], _Process] = {}  # guarded by lock

    def join(self, pid: int, start: int) -> _Process | None:
        """Return the process, counted once more, or None if it is gone.

        Raises:
            OSError, ValueError, IndexError: Nothing can be said.
        """
        who = (pid, start)
        with self.lock:
            process = self.processes.get(who)
            if process is None:
                fd = _open(pid, start)
                if fd is None:
                    return None
                process = self.processes[who] = _Process(self, who, fd)
            process.users += 1
            return process


# By owner id, which no child shares with its parent. Of several threads, setdefault lets one win.
_tables: dict[str, _Table] = {}


def _table() -> _Table:
    own = own_id()
    return _tables.get(own) or _tables.setdefault(own, _Table())


def _open(pid: int, start: int) -> int | None:
    """Return a pidfd of the process with this pid and start time, None if there is none."""
    if not hasattr(os, "pidfd_open") or not _proc_is_ours():
        raise ValueError("nothing can be said here")
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Only now that the fd holds on to one process is its start time compared: had the pid changed
    # hands before, the time differs; if it does so from now on, the fd still means the first one.
    try:
        same = _start(pid) == start
    except BaseException:
        os.close(fd)
        raise
    if not same:
        os.close(fd)
    return fd if same else None


def _has_ended(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    try:
        return any(event & select.POLLIN for _, event in poller.poll(0))
    except OSError:
        return False


def _proc_is_ours() -> bool:
    """Whether ``/proc`` shows this PID namespace, and so this very process under its own pid.

    The line NSpid lists the pids of a process from the namespace of ``/proc`` down to its own.
    """
    lines = _read("/proc/self/status").splitlines()
    pids = [line.split()[1:] for line in lines if line.startswith(b"NSpid:")]
    return pids == [[b"%d" % os.getpid()]]


def _start(pid: int | str) -> int:
    """Return when a process started, in clock ticks since boot."""
    stat = _read(f"/proc/{pid}/stat")
    # Field 22; the second, the program's name, is free text in parentheses, so count behind it.
    return int(stat.rpartition(b")")[2].split()[22 - 3])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - a third of the time that Path takes
        return file.read()


def _told(part: Callable[[], str]) -> str:
    try:
        return part() or _UNKNOWN
    except (OSError, ValueError, IndexError):
        return _UNKNOWN


def _host() -> str:
    name = "".join(c for c in socket.gethostname() if c.isprintable() and c != "/")
    return name[:_HOST_CHARACTERS]


def _own_start() -> str:
    """Return the start time of this process, "" if a time namespace shows others another one."""
    return str(_start("self")) if _time_namespace() == _FIRST_TIME_NAMESPACE else ""


def _time_namespace() -> int:
    try:
        return Path("/proc/self/ns/time").stat().st_ino
    except FileNotFoundError:  # before Linux 5.6 there was only one
        return _FIRST_TIME_NAMESPACE


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _boot() -> str:
    # Half of it tells boots apart well enough, and keeps the notice board in Redis' compact form.
    return _read("/proc/sys/kernel/random/boot_id").decode()[:18]
