"""The demo: true as it stands, false where somebody meddles, and gone without a trace however it ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import terminal
from singleflight_sync.__main__ import main
from singleflight_sync.demo import picture
from singleflight_sync.demo.picture import Span
from singleflight_sync.demo.stage import Stage
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.support.servers import Server

COMMAND = [sys.executable, "-m", "singleflight_sync", "demo"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="not applicable: reads /proc")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory with a short name: a socket in it has to fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that runs, with a directory for temporary files of its own; ended with the test."""
    process = start(tmp_path)
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream
        stream.close()
    for pid in processes_under(tmp_path):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


def start(directory: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "PYTHONUNBUFFERED"}}
    environment = {**inherited, "TMPDIR": str(directory), "PYTHONUTF8": "1", "TERM": "xterm"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([*COMMAND, *words], cwd=ROOT, env=environment, **options)


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"the demo ended without a line with {text!r}: {seen}")


def processes_under(directory: Path) -> list[int]:
    """Every process that was started with this directory for temporary files: callers, supervisor and server."""
    mark, found = f"TMPDIR={directory}\0".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if mark in environment and state != b"Z":
                found.append(int(entry.name))
    return found


def assert_nothing_is_left(directory: Path) -> None:
    eventually(lambda: not processes_under(directory), within=10, what="all its processes are gone")
    assert list(directory.iterdir()) == []


# whole


@linux
@pytest.mark.slow
def test_every_claim_is_true_within_thirty_seconds_and_nothing_is_left(tmp_path: Path) -> None:
    began = time.monotonic()
    process = start(tmp_path)
    out, err = process.communicate(timeout=55)
    assert (process.returncode, err) == (0, "")
    assert time.monotonic() - began < 30
    assert "\x1b" not in out
    assert max(map(terminal.width, out.splitlines())) <= 80
    assert len(re.findall(r"^  ✓ ", out, re.MULTILINE)) == 15
    assert out.endswith("\nAll 15 claims were checked, and are true.\n")
    assert re.search(r"^  a herd +100 +1 +1 +100 +1 +-$", out, re.MULTILINE)
    assert re.search(r"^  a killed owner +100 +2 +1 +75 +1 +\d+\.\d\d s$", out, re.MULTILINE)
    assert re.search(r"^  a stopped owner +100 +2 +2 +100 +1 +\d+\.\d\d s$", out, re.MULTILINE)
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_false_claim_is_shown_and_is_status_one(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """One more computation is counted than the demo has made; the rest of it is true, on a server that was named."""
    meddler = threading.Thread(target=count_one_more, args=(client, "Why is the sky blue?"))
    meddler.start()
    own, its = pty.openpty()
    process = start(tmp_path, "--url", server.url, "--namespace", "some:where", stdout=its)
    os.close(its)
    out = read_terminal(own)
    meddler.join()
    assert process.stderr
    assert (process.wait(20), process.stderr.read()) == (1, "")
    process.stderr.close()
    (false,) = re.findall(r"\x1b\[31m✗\x1b\[0m (.*?)\r\n  \x1b", out, re.DOTALL)
    assert " ".join(false.split()) == (
        "1 computation begun, 1 finished (say Redis and the processes) -- NOT TRUE: "
        "seen (2, 1, 1, 1), where it should be (1, 1, 1, 1)"
    )
    assert "1 of 14 claims were NOT true." in out  # the commands are not claimed where others may send some
    assert "at most " in out
    assert list(client.scan_iter("*:demo:*:owner-seq")) == []


def count_one_more(client: redis.Redis, question: str) -> None:
    def counter() -> bytes | None:
        return next(iter(client.scan_iter(f"some:where:demo:*:begun {question}")), None)

    name = eventually(counter, within=30, what="the demo counts")
    assert name is not None
    client.incr(name)


def read_terminal(descriptor: int) -> str:
    out = b""
    try:
        while piece := os.read(descriptor, 65536):
            out += piece
    except OSError:  # the other side is closed
        pass
    os.close(descriptor)
    return out.decode()


# ended early


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
def test_an_early_end_leaves_nothing(demo: subprocess.Popen[str], tmp_path: Path, number: signal.Signals) -> None:
    read_until(demo, "owns the flight")
    assert len(processes_under(tmp_path)) >= 6  # itself, four callers, the server
    demo.send_signal(number)
    demo.send_signal(number)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (128 + number, "")
    assert "✓" not in out
    assert_nothing_is_left(tmp_path)


@linux
def test_a_stopped_caller_does_not_outlive_a_killed_demo(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    read_until(demo, "owns the flight")
    callers = [pid for pid in processes_under(tmp_path) if b"demo.caller" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(callers) == 4
    os.kill(callers[0], signal.SIGSTOP)
    demo.kill()
    eventually(lambda: not processes_under(tmp_path), within=20, what="callers, supervisor and server are gone")


@linux
def test_a_closed_pipe_is_not_success(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    read_until(demo, "A herd")
    assert demo.stdout
    assert demo.stderr
    demo.stdout.close()
    err = demo.stderr.read()
    assert (demo.wait(20), err) == (130, "")
    assert_nothing_is_left(tmp_path)


@linux
def test_a_caller_that_is_lost_ends_the_demo_as_false(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    read_until(demo, "owns the flight")
    callers = [pid for pid in processes_under(tmp_path) if b"demo.caller" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(callers[-1], signal.SIGKILL)
    out, err = demo.communicate(timeout=50)
    assert (demo.returncode, err) == (1, "")
    assert f"(pid {callers[-1]}) ended by itself" in " ".join(out.split())
    assert_nothing_is_left(tmp_path)


def test_no_server_is_status_three_without_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--url", "redis://:secret@127.0.0.1:1"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "secret" not in err


# claims and pictures


def test_a_claim_is_true_only_if_what_was_seen_is_what_was_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    stage.claim("one and one are two", seen=1 + 1, wanted=2)
    stage.claim("two and two are five", seen=2 + 2, wanted=5)
    assert (stage.claims, stage.false) == (2, 1)
    assert capsys.readouterr().out == (
        "  ✓ one and one are two\n  ✗ two and two are five -- NOT TRUE: seen 4, where it should be 5\n"
    )


def test_a_timeline_is_to_scale_and_within_the_line() -> None:
    spans = [Span(0, 2, "·"), Span(2, 4, "█")]
    first, second, scale = picture.timeline([("a", spans, "x" * 100), ("b", [Span(3.99, 4, "█")], "")], 4)
    assert first.count("·") == first.count("█") == 22
    assert second.count("█") == 1
    assert max(map(terminal.width, (first, second, scale))) <= 78
    assert scale.endswith("4.0 s")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_colours_can_be_declined(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert picture.coloured("x", "good") == "\x1b[32mx\x1b[0m"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert picture.coloured("x", "good") == "x"
