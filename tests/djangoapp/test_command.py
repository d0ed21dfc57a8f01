"""``manage.py flights``."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

import singleflight_sync
from singleflight_sync import FlightCancelledError, FlightInfo
from tests.djangoapp.support import BACKEND, Computation, Threads, never
from tests.support.processes import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

DOWN = "redis://:geheim@127.0.0.1:1"
FIELDS = [field.name for field in dataclasses.fields(FlightInfo)]


class Air:
    """Flights in the air of this process, of any group."""

    def __init__(self, stack: ExitStack) -> None:
        self._threads = stack.enter_context(Threads())
        self._computations: list[Computation] = []

    def fly(self, run: Any, key: str) -> Any:
        """A flight that is listed already; its future."""
        computation = Computation()
        self._computations.append(computation)
        call = self._threads.call(run, key, computation)
        assert computation.running.wait(10)
        return call

    def land(self) -> None:
        for computation in self._computations:
            computation.go_on.set()


@pytest.fixture
def air() -> Iterator[Air]:
    with ExitStack() as stack:
        air = Air(stack)
        yield air
        air.land()


def flights(*words: str) -> str:
    out = io.StringIO()
    call_command("flights", *words, stdout=out)
    return out.getvalue()


def lines(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in flights(*words).splitlines()]


def status(*words: str) -> int:
    with pytest.raises(CommandError) as raised:
        flights(*words)
    assert "geheim" not in str(raised.value)
    return int(raised.value.returncode)


def listed(count: int) -> list[dict[str, Any]]:
    """So many flights; they enter the list with their heartbeat."""

    def look() -> list[dict[str, Any]]:
        found = lines("list", "--json")
        return found if len(found) == count else []

    return eventually(look, within=10, what=f"{count} flights are listed")


# Listing


def test_an_empty_list_is_no_failure(cache: Any) -> None:
    assert flights("list") == "no live flights\n"
    assert flights("list", "--json") == ""


def test_all_groups_are_listed_with_the_fields_of_a_flight(cache: Any, air: Air) -> None:
    air.fly(singleflight_sync.run, "of run")
    air.fly(cache.get_or_set, "k")
    found = listed(2)
    assert [list(each) for each in found] == [FIELDS, FIELDS]
    assert {(each["group"], each["key"]) for each in found} == {("default", "of run"), ("cache:default", ":1:k")}
    assert found[0]["age"] >= found[1]["age"]
    text = flights("list")
    assert sorted(line.split()[-2:] for line in text.splitlines()[1:]) == [["cache:default", ":1:k"], ["of", "run"]]
    assert text.splitlines()[0].split()[-2:] == ["GROUP", "KEY"]


def test_a_group_and_a_pattern_narrow_the_list(cache: Any, air: Air) -> None:
    for key in ("report:1", "report:2", "other"):
        air.fly(singleflight_sync.run, key)
    air.fly(cache.get_or_set, "k")
    listed(4)
    assert [each["key"] for each in lines("list", "--json", "--group", "cache:default")] == [":1:k"]
    found = lines("--json", "--group=default", "list", "--match", "report:*")
    assert [each["key"] for each in found] == ["report:1", "report:2"]
    assert lines("list", "--json", "--match", "REPORT:*") == []


def test_a_flight_that_two_aliases_can_see_is_listed_once(make_caches: Any, air: Air) -> None:
    caches = make_caches(default={}, twin={"TIMEOUT": 10})
    air.fly(caches["twin"].get_or_set, "k")
    assert [each["group"] for each in listed(1)] == ["cache:default"]
    assert [each["group"] for each in lines("list", "--json", "--group", "cache:twin")] == ["cache:twin"]
    assert "cancelled" in flights("cancel", ":1:k")


def test_what_moves_a_cursor_is_escaped(cache: Any, air: Air) -> None:
    air.fly(singleflight_sync.run, "bad\x1b[2J\nkey")
    listed(1)
    text = flights("list")
    assert "\x1b" not in text
    assert text.count("\n") == 2
    assert lines("show", "--json", "bad\\x1b[2J\\nkey")[0]["key"] == "bad\x1b[2J\nkey"


def test_show_tells_all_of_one_flight(cache: Any, air: Air) -> None:
    air.fly(cache.get_or_set, "k")
    assert [list(each) for each in lines("show", ":1:k", "--json")] == [FIELDS]
    assert [line.split()[0] for line in flights("show", ":1:k").splitlines()] == FIELDS


# Ending


def test_cancel_ends_the_flight_now(cache: Any, air: Air) -> None:
    call = air.fly(cache.get_or_set, "k")
    assert lines("cancel", ":1:k", "--json") == [{"group": "cache:default", "key": ":1:k", "cancelled": True}]
    air.land()
    assert isinstance(call.exception(10), FlightCancelledError)
    assert status("cancel", ":1:k") == 1


def test_forget_drops_a_result_and_marks_a_flight(cache: Any, air: Air) -> None:
    call = air.fly(cache.get_or_set, "k")
    assert flights("forget", ":1:k") == "forgotten :1:k (group cache:default)\n"
    assert lines("show", ":1:k", "--json")[0]["forgotten"] is True
    air.land()
    assert call.result(10) == "value"
    assert cache.get("k") is None
    cache.set("k", 1)
    assert flights("forget", ":1:k")
    assert cache.get("k") is None
    assert status("forget", ":1:k") == 1


def test_forget_drops_a_result_of_run(cache: Any, air: Air) -> None:
    singleflight_sync.run("k", lambda: 1, ttl=60)
    assert flights("forget", "k") == "forgotten k (group default)\n"
    assert singleflight_sync.get("k") is None


def test_forget_drops_a_kept_failure_which_nothing_shows(cache: Any, air: Air) -> None:
    with pytest.raises(ZeroDivisionError):
        singleflight_sync.run("k", lambda: 1 / 0, error_ttl=60)
    with pytest.raises(ZeroDivisionError):
        singleflight_sync.run("k", never)
    assert flights("forget", "k")
    assert singleflight_sync.run("k", lambda: "next") == "next"


def test_a_token_means_that_flight_only(cache: Any, air: Air) -> None:
    air.fly(cache.get_or_set, "k")
    token = lines("show", ":1:k", "--json")[0]["fencing_token"]
    for command in ("forget", "cancel"):
        assert status(command, ":1:k", "--token", str(token - 1)) == 1
        assert flights(command, ":1:k", "--token", str(token))


@pytest.mark.parametrize("form", ["{}", "sha256 {}"])
def test_a_digest_means_the_live_flight_of_its_key(cache: Any, air: Air, form: str) -> None:
    air.fly(cache.get_or_set, "k")
    listed(1)
    digest = form.format(hashlib.sha256(b":1:k").hexdigest())
    assert lines("show", digest, "--json")[0]["key"] == ":1:k"
    assert flights("cancel", digest)


# Exit status


@pytest.mark.parametrize("command", ["show", "cancel", "forget"])
def test_what_is_not_found_is_1(cache: Any, command: str) -> None:
    assert status(command, "unknown") == 1


@pytest.mark.parametrize("command", ["show", "cancel", "forget"])
def test_a_key_that_is_found_in_several_groups_is_2(make_caches: Any, air: Air, server: Server, command: str) -> None:
    other = {"LOCATION": f"redis://127.0.0.1:{server.port}/2"}
    caches = make_caches(default={}, other=other)
    for alias in ("default", "other"):
        air.fly(caches[alias].get_or_set, "k")
    listed(2)
    assert status(command, ":1:k") == 2
    assert flights(command, ":1:k", "--group", "cache:other")


def test_a_result_that_is_found_in_several_groups_is_2(make_caches: Any, server: Server) -> None:
    caches = make_caches(default={}, other={"LOCATION": f"redis://127.0.0.1:{server.port}/2"})
    for alias in ("default", "other"):
        caches[alias].set("k", 1)
    assert status("forget", ":1:k") == 2
    assert (caches["default"].get("k"), caches["other"].get("k")) == (1, 1)


@pytest.mark.parametrize("words", ["list --group unknown", "list more", "fly", "", "cancel k --token x", "show"])
def test_bad_usage_is_2(cache: Any, words: str) -> None:
    done = manage(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_bad_setting_is_2(cache: Any) -> None:
    with override_settings(SINGLEFLIGHT={"LEESE": 1}):
        assert status("list") == 2


@pytest.mark.parametrize("words", [["list"], ["show", "k"], ["cancel", "k"], ["forget", "k"]])
def test_an_unreachable_server_is_3(words: list[str]) -> None:
    caches = {"default": {"BACKEND": BACKEND, "LOCATION": f"{DOWN}/1"}}
    with override_settings(SINGLEFLIGHT={"URL": f"{DOWN}/0"}, CACHES=caches):
        assert status(*words) == 3


def test_what_can_be_reached_is_listed_all_the_same(make_caches: Any, air: Air) -> None:
    caches = make_caches(default={}, down={"LOCATION": f"{DOWN}/1"})
    air.fly(caches["default"].get_or_set, "k")
    eventually(lambda: lines("list", "--json", "--group", "cache:default"))
    out = io.StringIO()
    with pytest.raises(CommandError, match="group cache:down") as raised:
        call_command("flights", "list", "--json", stdout=out)
    assert raised.value.returncode == 3
    assert json.loads(out.getvalue())["key"] == ":1:k"


# The process


def environment(server: Server | None = None) -> dict[str, str]:
    port = 1 if server is None else server.port
    url = f"redis://127.0.0.1:{port}"
    return {**os.environ, "SINGLEFLIGHT_TEST_URL": f"{url}/0", "SINGLEFLIGHT_TEST_CACHE": f"{url}/1"}


def manage(*words: str, server: Server | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "manage.py", "flights", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment(server), capture_output=True, text=True, timeout=60, check=False
    )


def test_the_exit_status_is_that_of_the_process(server: Server) -> None:
    assert manage("list", server=server).returncode == 0
    assert manage("show", "k", server=server).returncode == 1
    assert manage("list").returncode == 3


@pytest.mark.parametrize("words", [["list", "--watch"], ["list", "--watch", "--json"], ["show", "k", "--watch"]])
def test_a_watch_ends_cleanly_on_an_interrupt(cache: Any, air: Air, server: Server, words: list[str]) -> None:
    air.fly(singleflight_sync.run, "k")
    eventually(lambda: lines("list", "--json"))
    with watching(words, server) as process:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, b"")


def test_a_watch_ends_cleanly_when_nobody_reads_any_more(cache: Any, air: Air, server: Server) -> None:
    air.fly(singleflight_sync.run, "k")
    eventually(lambda: lines("list", "--json"))
    with watching(["list", "--watch"], server) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


def watching(words: list[str], server: Server) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "manage.py", "flights", *words]
    return subprocess.Popen(command, cwd=ROOT, env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
