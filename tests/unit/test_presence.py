from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import presence
from tests.support import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"),
    reason=f"{parts.NOT_APPLICABLE}only Linux tells by pidfd that a process is gone",
)

ROOT = Path(__file__).parents[2]
OWNER = """
import sys
from singleflight_sync import presence
print(presence.own_id(), flush=True)
sys.stdin.read()
"""
# What a script of a test may use: `owner()` starts a living owner, `kill(owner)` ends it for good.
HELPERS = f"""
import json, os, subprocess, sys, threading
from singleflight_sync import presence

def owner():
    process = subprocess.Popen(
        [sys.executable, "-c", {OWNER!r}],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()

def kill(process):
    process.kill()
    process.communicate()
"""


class Owner:
    """A real process that could own a flight."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.id = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the process, and leave it a zombie."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def bury(self) -> None:
        self._process.kill()
        self._process.communicate()

    def with_part(self, place: int, part: str) -> str:
        """Return its id with another part; places count from the right, as an id is read."""
        every = self.id.rsplit("/", 4)
        every[place] = part
        return "/".join(every)


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.bury()


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    before = open_fds()
    yield
    assert open_fds() == before
    assert all(not table.processes for table in presence._tables.values())


@pytest.fixture
def forgotten_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_own_ids", {})


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def watched(owner_id: str) -> presence.Watch:
    watch = presence.watch(owner_id)
    assert watch is not None
    return watch


def readable(fd: int | None, timeout_ms: int) -> bool:
    assert fd is not None
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_ms))


def say(script: str, *wrapper: str) -> Any:
    """Run a script in a process of its own and return what it printed as JSON."""
    answer = subprocess.run(
        [*wrapper, sys.executable, "-W", "ignore::DeprecationWarning", "-c", HELPERS + script],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )
    return json.loads(answer.stdout)


def isolated(*options: str) -> tuple[str, ...]:
    """Return the start of a command that runs with namespaces of its own."""
    command = (shutil.which("unshare") or "unshare", *options)
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        parts.missing("namespaces: unshare is not there or not allowed")
    return command


def test_an_owner_id_names_host_pid_start_namespace_and_boot() -> None:
    host, pid, start, namespace, boot = presence.own_id().rsplit("/", 4)

    assert host == socket.gethostname()[:64]
    assert int(pid) == os.getpid()
    assert int(start) > 0
    assert f"pid:[{namespace}]" == str(Path("/proc/self/ns/pid").readlink())
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text()[:18]


@pytest.mark.usefixtures("forgotten_id")
def test_the_host_in_an_owner_id_is_plain_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "we/b\n\udcff1" + "x" * 100)

    assert presence.own_id().rsplit("/", 4)[0] == "web1" + "x" * 60


@pytest.mark.usefixtures("forgotten_id")
def test_a_host_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "/")

    assert presence.own_id().startswith(f"-/{os.getpid()}/")


def test_import_creates_nothing() -> None:
    assert say("print(json.dumps([presence._tables, presence._own_ids]))") == [{}, {}]


def test_a_living_owner_is_not_gone(owner: Owner) -> None:
    watch = watched(owner.id)

    assert not readable(watch.fd, 0)
    assert not watch.gone()

    watch.close()


def test_a_killed_owner_makes_the_descriptor_readable(owner: Owner) -> None:
    watch = watched(owner.id)

    os.kill(owner.pid, signal.SIGKILL)

    assert readable(watch.fd, 5_000)
    assert watch.gone()
    watch.close()
    assert watch.gone()


def test_a_watch_outlasts_its_process(owner: Owner) -> None:
    watch = watched(owner.id)

    owner.bury()

    assert readable(watch.fd, 0)
    assert watch.gone()
    watch.close()


def test_an_owner_that_is_not_there_any_more_is_gone_at_once(owner: Owner) -> None:
    owner.bury()

    watch = watched(owner.id)

    assert watch.fd is None
    assert watch.gone()
    watch.close()


def test_a_zombie_is_gone(owner: Owner) -> None:
    owner.kill()
    assert Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    watch = watched(owner.id)

    assert watch.gone()
    watch.close()


def test_the_owner_is_gone_when_another_process_has_its_pid(owner: Owner) -> None:
    start = int(owner.id.split("/")[-3])

    watch = watched(owner.with_part(2, str(start - 1)))

    assert watch.fd is None
    assert watch.gone()


@pytest.mark.parametrize(
    ("place", "part"),
    [
        pytest.param(0, "elsewhere", id="host"),
        pytest.param(3, "4026531000", id="PID namespace"),
        pytest.param(4, "00000000-0000-4000", id="boot"),
        pytest.param(2, "-", id="unknown start"),
        pytest.param(3, "-", id="unknown PID namespace"),
        pytest.param(4, "-", id="unknown boot"),
        pytest.param(1, "-", id="unknown pid"),
        pytest.param(1, "0", id="pid zero"),
        pytest.param(1, "-1", id="negative pid"),
        pytest.param(1, "99999999999999999999", id="huge pid"),
        pytest.param(1, "٤٢", id="foreign digits"),
        pytest.param(2, "1.5", id="broken start"),
        pytest.param(2, "9" * 5_000, id="huge start"),
    ],
)
def test_nothing_is_said_of_an_owner_that_this_host_cannot_know(owner: Owner, place: int, part: str) -> None:
    assert presence.watch(owner.with_part(place, part)) is None


@pytest.mark.parametrize("text", ["", "-", "/", "////", "a/b/c/d/e", "web1", "\0" * 50, "\udcff/1"])
def test_nothing_is_said_of_text_that_is_no_owner_id(text: str) -> None:
    assert presence.watch(text) is None
    assert presence.watch(presence.own_id() + text + "x") is None


def test_nothing_is_said_of_this_very_process() -> None:
    assert presence.watch(presence.own_id()) is None


def test_nothing_is_said_without_pidfd(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")

    assert presence.watch(owner.id) is None


@pytest.mark.parametrize("spare", [0, 1])
def test_nothing_is_said_when_no_descriptor_is_left(owner: Owner, spare: int) -> None:
    presence.own_id()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, hard))
    try:
        watch = presence.watch(owner.id)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert watch is None


def test_all_watches_on_one_owner_share_a_descriptor(owner: Owner) -> None:
    before = open_fds()

    watches = [watched(owner.id) for _ in range(120)]

    assert len({watch.fd for watch in watches}) == 1
    assert open_fds() == before + 1
    last = watches.pop()
    for watch in watches:
        watch.close()
        watch.close()
    assert open_fds() == before + 1
    owner.kill()
    assert last.gone()
    last.close()
    assert open_fds() == before


def test_a_descriptor_is_not_inherited_by_programs(owner: Owner) -> None:
    watch = watched(owner.id)

    assert watch.fd is not None
    assert not os.get_inheritable(watch.fd)
    watch.close()


def test_a_closed_watch_has_no_descriptor(owner: Owner) -> None:
    watch = watched(owner.id)

    watch.close()
    owner.kill()

    assert watch.fd is None
    assert not watch.gone()


def test_threads_that_come_and_go_leave_nothing_open(owner: Owner) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            watch = watched(owner.id)
            assert not watch.gone()
            watch.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, [100] * 8))


def test_a_forked_child_starts_anew_and_leaves_its_parents_watches_alone() -> None:
    """The lock is held while the child is made, as it may be by another thread."""
    answer = say("""
import select
process, owner_id = owner()
inherited = presence.watch(owner_id)
fd = inherited.fd
reader, writer = os.pipe()
lock = presence._table().lock
lock.acquire()
child = os.fork()
if child == 0:
    said = {"own pid": int(presence.own_id().split("/")[-4]), "inherited fd": inherited.fd}
    own = presence.watch(owner_id)
    said["own fd differs"] = own.fd != fd
    os.kill(process.pid, 9)
    said["own told"] = bool(select.select([own.fd], [], [], 5)[0]) and own.gone()
    own.close()
    said["inherited told"] = inherited.gone()
    inherited.close()
    os.fstat(fd)
    os.write(writer, json.dumps(said).encode())
    os._exit(0)
lock.release()
os.close(writer)
said = json.loads(os.read(reader, 4096))
os.waitpid(child, 0)
said["child"] = child
said["parent told"] = inherited.gone()
inherited.close()
print(json.dumps(said))
""")

    assert answer["own pid"] == answer["child"]
    assert answer["inherited fd"] is None
    assert answer["own fd differs"]
    assert answer["own told"]
    assert not answer["inherited told"]
    assert answer["parent told"]


def test_without_proc_an_owner_id_has_unknown_parts_and_nothing_is_claimed() -> None:
    wrapper = (*isolated("--mount"), "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")

    own, said = say(
        """
process, owner_id = owner()
said = presence.watch(owner_id)
kill(process)
print(json.dumps([presence.own_id(), said]))
""",
        *wrapper,
    )

    assert own.rsplit("/", 4)[2:4] == ["-", "-"]
    assert own.endswith("/-")
    assert said is None


@pytest.mark.parametrize(
    ("options", "known"),
    [
        pytest.param(["--mount-proc"], True, id="its own proc"),
        pytest.param([], False, id="the proc of the host"),
    ],
)
def test_a_pid_namespace_is_known_by_its_own_proc_only(options: list[str], known: bool) -> None:  # noqa: FBT001
    wrapper = isolated("--pid", "--fork", *options)

    same_namespace, other_namespace, gone = say(
        f"""
process, owner_id = owner()
watch = presence.watch(owner_id)
kill(process)
gone = watch is not None and watch.gone()
outside = presence.watch({presence.own_id()!r})
print(json.dumps([watch is not None, outside is not None, gone]))
""",
        *wrapper,
    )

    assert (same_namespace, other_namespace, gone) == (known, False, known)


def test_a_time_namespace_shifts_start_times_so_nothing_is_claimed() -> None:
    wrapper = isolated("--time", "--boottime", "1000", "--fork")

    assert say("print(json.dumps(presence.own_id()))", *wrapper).split("/")[-3] == "-"


def test_an_owner_that_proc_hides_is_not_taken_for_dead(owner: Owner) -> None:
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    wrapper = (*isolated("--mount"), "sh", "-c", mount, "sh")
    look = f"""
os.setgid(65534); os.setuid(65534)
watch = presence.watch({owner.id!r})
print(json.dumps([presence._proc_is_ours(), watch and watch.gone()]))
"""

    assert say(look, *wrapper) == [True, None]
    owner.bury()
    assert say(look, *wrapper) == [True, True]


def test_greenlets_go_on_while_one_waits_for_an_owner_to_die() -> None:
    pytest.importorskip("gevent")

    assert say("""
from gevent import monkey; monkey.patch_all()
import gevent, select
process, owner_id = owner()
watch = presence.watch(owner_id)
poller = select.poll()
poller.register(watch.fd, select.POLLIN)
before = watch.gone()
waiting = gevent.spawn(poller.poll, 5000)
gevent.spawn(process.kill)
told = bool(waiting.get())
print(json.dumps([before, told, watch.gone(), presence.watch(owner_id).gone()]))
""") == [False, True, True, True]
