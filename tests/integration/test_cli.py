"""The command line, in this process where it prints and ends, in one of its own where signals and pipes matter."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import FlightCancelledError, FlightInfo, SingleFlight, terminal
from singleflight_sync.__main__ import main
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server

FIELDS = [field.name for field in dataclasses.fields(FlightInfo)]
BEATS = {"lease": 5.0, "heartbeat": 0.4}
PROGRAM = [sys.executable, "-m", "singleflight_sync"]
PLAIN = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "PYTHONUNBUFFERED"}}


class Ran:
    """What one command line came to."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def one_line(self) -> str:
        """The one line of stderr of a command that failed."""
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err
        return self.err


@pytest.fixture
def cli(server: Server, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command line on the server: ``cli("show", "k")``; ``url=None`` leaves that option out."""

    def run(*words: str, url: str | None = server.url) -> Ran:
        try:
            status = main([*words, *([] if url is None else ["--url", url])])
        except SystemExit as exc:
            status = int(str(exc.code))
        return Ran(status, *capsys.readouterr())

    return run


@contextmanager
def flying(server: Server, *keys: str) -> Iterator[dict[str, Any]]:
    """A live flight, listed, of each key. What its caller gets stands under the key afterwards."""
    landing, outcomes = threading.Event(), dict[str, Any]()
    with SingleFlight(url=server.url, **BEATS) as flights:  # type: ignore[arg-type]

        def call(key: str) -> None:
            try:
                outcomes[key] = flights.run(key, lambda: landing.wait(30))
            except FlightCancelledError as exc:
                outcomes[key] = exc

        threads = [threading.Thread(target=call, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: len(flights.live()) == len(keys), what="all are listed")
            yield outcomes
        finally:
            landing.set()
            for thread in threads:
                thread.join()


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *words], cwd=ROOT, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


# list


def test_an_empty_list_is_done(cli: Callable[..., Ran]) -> None:
    ran = cli("list")
    assert (ran.status, ran.out, ran.err) == (0, "no live flights\n", "")


def test_an_empty_list_has_no_json_line(cli: Callable[..., Ran]) -> None:
    ran = cli("list", "--json")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_list_prints_a_row_for_each_live_flight(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "report:42", "report:43"):
        ran = cli("list")
    header, *rows = ran.out.splitlines()
    assert ran.status == 0
    assert header.split() == ["AGE", "LEASE", "FOLLOWERS", "TAKEOVERS", "STATUS", "TOKEN", "OWNER", "KEY"]
    assert sorted(row.split()[-1] for row in rows) == ["report:42", "report:43"]
    assert all(f":{os.getpid()} " in row for row in rows)


def test_json_has_exactly_the_fields_of_the_info(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "report:42", "a b"):
        ran = cli("list", "--json")
    objects = [json.loads(line) for line in ran.out.splitlines()]
    assert [list(each) for each in objects] == [FIELDS, FIELDS]
    assert {each["key"] for each in objects} == {"report:42", "a b"}
    assert {type(each["fencing_token"]) for each in objects} == {int}


def test_match_selects_by_glob(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "report:42", "page:42", "Report:1"):
        ran = cli("list", "--json", "--match", "report:*")
    assert [json.loads(line)["key"] for line in ran.out.splitlines()] == ["report:42"]


def test_options_may_stand_before_and_after_the_command(
    server: Server, cli: Callable[..., Ran], capsys: pytest.CaptureFixture[str]
) -> None:
    with flying(server, "k"):
        for words in (
            ["--url", server.url, "--namespace", "ai:flight", "--json", "list"],
            ["list", "--json", "--namespace", "ai:flight", "--url", server.url],
            ["--json", "--url", server.url, "list", "--match", "k"],
        ):
            assert main(words) == 0
            assert json.loads(capsys.readouterr().out)["key"] == "k"
        assert cli("--namespace", "other", "list").out == "no live flights\n"
        assert cli("--namespace", "other", "list", "--namespace", "ai:flight").out != "no live flights\n"


def test_the_environment_names_the_server(
    cli: Callable[..., Ran], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGLEFLIGHT_URL", server.url)
    with flying(server, "k"):
        assert cli("show", "k", url=None).status == 0


def test_columns_stay_aligned_with_long_and_wide_keys(cli: Callable[..., Ran], server: Server) -> None:
    keys = ["k", "東京の天気 🌧", "e\u0301te\u0301", "x" * 500, "tab\there"]
    with flying(server, *keys):
        header, *rows = cli("list").out.splitlines()
    place = terminal.width(header[: header.index("KEY")])
    printed = sorted(map(terminal.printable, keys))
    assert sorted(row[-len(key) :] for row in rows for key in printed if row.endswith(f"  {key}")) == printed
    for row in rows:
        key = next(key for key in printed if row.endswith(f"  {key}"))
        assert terminal.width(row[: -len(key)]) == place


def test_keys_with_control_characters_are_printed_escaped(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "a\nb\x1b[2J\u202e \\ c "):
        for words in ("list",), ("watch", "--count", "1"):
            row = cli(*words).out.splitlines()[-1 if words == ("list",) else -2]
            assert row.endswith(r"  a\nb\x1b[2J\u202e \\ c\x20")


def test_widths_are_those_of_a_terminal() -> None:
    texts = ["", "ascii", "東京", "e\u0301", "🌍", "ﾊﾝ"]
    assert [terminal.width(text) for text in texts] == [0, 5, 4, 1, 2, 2]
    assert [terminal.cut(text, 3) for text in texts] == ["", "as…", "東…", "e\u0301", "🌍", "ﾊﾝ"]
    assert terminal.table([("東京", "1"), ("ab", "22")], right=(1,)) == ["東京   1", "ab    22"]


# KEY


def test_the_key_as_list_prints_it_names_the_flight(cli: Callable[..., Ran], server: Server) -> None:
    keys = ["a\nb", "C:\\new\\table", " padded ", "nul\x00", "東京", "a b", "{x}", "\\x41"]
    with flying(server, *keys):
        printed = [line.split("  ")[-1] for line in cli("list").out.splitlines()[1:]]
        meant = [json.loads(cli("show", text, "--json").out)["key"] for text in printed]
    assert sorted(meant) == sorted(keys)


def test_the_key_as_it_is_names_the_flight(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "C:\\new\\table"):
        assert json.loads(cli("show", "C:\\new\\table", "--json").out)["key"] == "C:\\new\\table"


def test_the_digest_names_the_flight_with_and_without_its_tag(cli: Callable[..., Ran], server: Server) -> None:
    digest = digest_of("a long\nquestion")
    with flying(server, "a long\nquestion", "other one"):
        for text in digest, f"sha256 {digest}":
            assert json.loads(cli("show", text, "--json").out)["key"] == "a long\nquestion"
        assert cli("cancel", digest).status == 0
        assert cli("show", digest).status == 1


def test_a_key_that_looks_like_a_digest_names_itself(cli: Callable[..., Ran], server: Server) -> None:
    digest = digest_of("a b")
    with flying(server, digest, "a b"):
        assert json.loads(cli("show", digest, "--json").out)["key"] == digest


def test_a_key_may_begin_with_a_hyphen(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "--json"):
        assert main(["show", "--url", server.url, "--", "--json"]) == 0
    assert cli("show").status == 2


# show, cancel, forget


def test_show_prints_all_fields(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "report:42"):
        ran = cli("show", "report:42")
    assert ran.status == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == FIELDS
    assert ran.out.splitlines()[0].split() == ["key", "report:42"]


@pytest.mark.parametrize("command", ["show", "cancel", "forget"])
def test_what_is_not_there_is_status_one(cli: Callable[..., Ran], command: str) -> None:
    ran = cli(command, "nobody\nknows")
    assert ran.status == 1
    assert r"nobody\nknows" in ran.one_line()


def test_cancel_ends_the_flight(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "k") as outcomes:
        ran = cli("cancel", "k")
        assert cli("cancel", "k").status == 1
    assert (ran.status, ran.out) == (0, "cancelled k\n")
    assert isinstance(outcomes["k"], FlightCancelledError)


@pytest.mark.parametrize(("command", "done"), [("cancel", "cancelled"), ("forget", "forgotten")])
def test_a_token_means_that_flight_only(cli: Callable[..., Ran], server: Server, command: str, done: str) -> None:
    with flying(server, "k"):
        token = json.loads(cli("show", "k", "--json").out)["fencing_token"]
        other = cli(command, "k", "--token", str(token + 1))
        ran = cli(command, "k", "--token", str(token), "--json")
    assert other.status == 1
    assert f"token {token + 1}" in other.one_line()
    assert ran.status == 0
    assert json.loads(ran.out) == {"key": "k", done: True}


def test_forget_drops_the_result(cli: Callable[..., Ran], server: Server) -> None:
    with SingleFlight(url=server.url) as flights:
        flights.run("two\nlines", lambda: 42)
        assert flights.get("two\nlines") == 42
        assert cli("forget", r"two\nlines").out == "forgotten two\\nlines\n"
        assert flights.get("two\nlines") is None


def test_list_says_that_a_flight_is_forgotten(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "k") as outcomes:
        cli("forget", "k")
        row = cli("list").out.splitlines()[1]
    assert "RUNNING forgotten" in row
    assert outcomes["k"] is True


# errors


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["list", "extra"],
        ["list", "--jso"],
        ["show"],
        ["show", ""],
        ["show", "\udcff"],
        ["cancel", "k", "--token", "x"],
        ["forget", "k", "--token"],
        ["watch", "--interval", "0"],
        ["watch", "--interval", "nan"],
        ["watch", "--count", "0"],
        ["list", "--namespace", "a{b"],
        ["list", "--namespace", ""],
        ["list", "--url", ""],
        ["list", "--url", "redis://u:secret@host:x/0"],
        ["list", "--url", "nope://u:secret@host"],
        ["list", "redis://u:secret@host"],
        ["redis://u:se cr/secret@host"],
        ["list", "--ur", "redis://u:secret@host"],
        ["list", "unix:///s?password=secret"],
        ["demo", "--json"],
    ],
    ids=repr,
)
def test_usage_errors_are_one_line_without_a_password(cli: Callable[..., Ran], words: list[str]) -> None:
    ran = cli(*words, url=None)
    assert ran.status == 2
    assert "secret" not in ran.one_line()
    assert "cr/" not in ran.err


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (["list"], "redis://user:secret@127.0.0.1:1/0"),
        (["show", "k"], "redis://user:secret@127.0.0.1:1/0"),
        (["cancel", "k"], "redis://user:secret@127.0.0.1:1/0"),
        (["forget", "k"], "redis://user:secret@127.0.0.1:1/0"),
        (["watch"], "unix://user:secret@/nonexistent/s"),
        (["list"], "redis+sentinel://user:secret@127.0.0.1:1/service"),
        (["show", "k"], "redis+cluster://user:secret@127.0.0.1:1"),
        (["list"], f"redis://user:secret@{'a' * 80}/0"),
    ],
    ids=repr,
)
def test_an_unreachable_store_is_status_three(cli: Callable[..., Ran], words: list[str], url: str) -> None:
    ran = cli(*words, url=url)
    assert ran.status == 3
    assert ran.one_line().startswith("singleflight_sync: cannot ")
    assert "secret" not in ran.err


@pytest.mark.parametrize("words", [["show", "k"], ["cancel", "a\\nb"]], ids=repr)
def test_a_store_that_gives_no_answer_costs_a_few_seconds(
    cli: Callable[..., Ran], start_server: Callable[..., Server], words: list[str]
) -> None:
    silent = start_server()
    silent.pause()
    began = time.monotonic()
    ran = cli(*words, url=silent.url)
    assert ran.status == 3
    assert ran.one_line()
    assert time.monotonic() - began < 10


def test_an_error_of_the_server_is_one_line(cli: Callable[..., Ran], start_server: Callable[..., Server]) -> None:
    locked = start_server()
    locked.client().config_set("requirepass", "secret")
    ran = cli("list", url=locked.url)
    assert ran.status == 3
    assert "password" in ran.one_line()
    assert cli("list", url=locked.url.replace("://", "://:wrong-secret@")).status == 3
    assert cli("list", url=locked.url.replace("://", "://:secret@")).status == 0


# watch


def test_watch_prints_a_block_for_each_draw(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "k"):
        ran = cli("watch", "--count", "2", "--interval", "0.01")
    blocks = ran.out.split("\n\n")
    assert ran.status == 0
    assert ran.out.count("live flights in ai:flight: 1") == 2
    assert sum(block.endswith("  k") for block in blocks) == 2
    assert "\x1b" not in ran.out


def test_watch_prints_json_for_programs(cli: Callable[..., Ran], server: Server) -> None:
    with flying(server, "k", "other"):
        ran = cli("watch", "--count", "2", "--interval", "0.01", "--json", "--match", "k")
    assert [json.loads(line)["key"] for line in ran.out.splitlines()] == ["k", "k"]


def test_watch_ends_cleanly_on_an_interrupt(server: Server) -> None:
    process = start("watch", "--url", server.url, "--interval", "600")
    assert process.stdout
    process.stdout.readline()  # it draws at once, also into a pipe
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("words", [["watch", "--interval", "0.05"], ["list"], ["list", "--json"]], ids=repr)
def test_a_closed_pipe_is_a_clean_end(server: Server, words: list[str]) -> None:
    with flying(server, "k"):
        process = start(*words, "--url", server.url)
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert (process.wait(20), err) == (0, b"")


def test_a_full_disk_is_one_line(server: Server) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("not applicable: no /dev/full")
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*PROGRAM, "list", "--url", server.url],
            cwd=ROOT,
            env=PLAIN,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 2
    assert b"No space left" in ran.stderr
    assert ran.stderr.count(b"\n") == 1


def test_watch_redraws_a_terminal_and_keeps_within_it(server: Server) -> None:
    keys = [f"{number}:{'界' * 60}" for number in range(12)]
    with flying(server, *keys):
        out = in_terminal(["watch", "--count", "2", "--interval", "0.01", "--url", server.url], rows=10, columns=80)
    first, second = out.split("\x1b[H")[1:]
    assert out.startswith("\x1b[2J\x1b[H")
    assert first.endswith("\x1b[J")
    lines = second.removesuffix("\x1b[J").split("\x1b[K\r\n")[:-1]
    assert len(lines) == 9
    assert lines[-1] == "… 7 more"
    assert max(map(terminal.width, lines)) <= 80


def in_terminal(words: list[str], *, rows: int, columns: int, **environment: str) -> str:
    """What a command line writes to a terminal of this size."""
    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, *words], cwd=ROOT, stdout=its, env={**PLAIN, "TERM": "xterm", "PYTHONUTF8": "1", **environment}
    )
    os.close(its)
    out = b""
    try:
        while piece := os.read(own, 65536):
            out += piece
    except OSError:  # the other side is closed
        pass
    os.close(own)
    assert process.wait(20) == 0
    return out.decode()


def test_a_poor_encoding_is_no_error(server: Server) -> None:
    with flying(server, "東京"):
        ran = subprocess.run(
            [*PROGRAM, "list", "--url", server.url],
            cwd=ROOT,
            env={**PLAIN, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
            capture_output=True,
            check=True,
        )
    assert ran.stdout.rstrip().endswith(rb"\u6771\u4eac")
