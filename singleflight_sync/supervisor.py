"""Keeps the embedded server alive while it has users; run as a program of its own, standard library only.

``supervisor.py SERVER GRACE``, in the server's directory. A user is whoever holds a shared lock on that
directory, so the kernel itself says when the last one is gone, however it ended. "ready" on stdout says that
the server takes connections; anything else there says why it does not.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

SOCKET = "valkey.sock"
LOG = "valkey.log"
START_TIMEOUT = 15.0  # seconds
PR_SET_PDEATHSIG = 1

OPTIONS = {
    "port": "0",
    "unixsocket": SOCKET,
    "unixsocketperm": "600",
    "save": "",
    "appendonly": "no",
    "daemonize": "no",
    "logfile": LOG,
    "loglevel": "warning",
}


def listens(path: str) -> bool:
    """Whether a server listens at ``path``; a busy or stopped one does, a stale socket file does not."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:  # its queue of new connections is full
            return True
        return True


def main(server: str, grace: float) -> None:
    """Start ``server`` and end it ``grace`` seconds after its last user has gone."""
    if os.fork():
        os._exit(0)  # the starter waits for this process alone
    os.setsid()  # an interrupt at the starter's terminal is not for us
    pid = start(server)
    if problem := wait_until_ready(pid):
        os.write(1, problem.encode())
        sys.exit(1)
    os.write(1, b"ready")
    silence()
    threading.Thread(target=end_with, args=(pid,), daemon=True).start()
    with_last_user(grace)
    # The lock is held until we end, so that a newcomer finds either a server that stays or none.
    Path(SOCKET).unlink(missing_ok=True)
    os.kill(pid, signal.SIGKILL)  # it has nothing to save
    end_with(pid)


def start(server: str) -> int:
    """Start the server, which is not to outlive us (on Linux not even if we are killed)."""
    Path(LOG).unlink(missing_ok=True)
    supervisor = os.getpid()
    if pid := os.fork():
        return pid
    die_with(supervisor)
    silence()
    words = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    try:
        os.execv(server, [server, *words])  # noqa: S606 - no shell is the point
    finally:
        os._exit(127)


def die_with(parent: int) -> None:
    """Have the kernel end this process together with ``parent``."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - some builds of Python lack it; nothing else here needs it

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def silence() -> None:
    """Let go of the starter's streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def wait_until_ready(pid: int) -> str:
    """Wait until the server takes connections; say what went wrong, or nothing."""
    deadline = time.monotonic() + START_TIMEOUT
    while not listens(SOCKET):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return f"it ended at once. {last_words()}"
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return f"it took no connection within {START_TIMEOUT:.0f} s. {last_words()}"
        time.sleep(0.002)
    return ""


def last_words() -> str:
    """The end of the server's log."""
    log = Path(LOG)
    return log.read_text(errors="replace")[-1000:] if log.exists() else ""


def end_with(pid: int) -> None:
    """Wait for the end of the server, then end too."""
    os.waitpid(pid, 0)
    os._exit(0)


def with_last_user(grace: float) -> None:
    """Return, holding the lock alone, when for ``grace`` seconds nobody has wanted the server."""
    directory = os.open(".", os.O_RDONLY)
    while True:
        fcntl.flock(directory, fcntl.LOCK_EX)
        fcntl.flock(directory, fcntl.LOCK_UN)
        time.sleep(grace)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
