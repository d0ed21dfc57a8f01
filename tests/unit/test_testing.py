from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import singleflight_sync as sfs
from singleflight_sync import group, testing
from singleflight_sync.testing import singleflight_local, singleflight_plain
from tests.support.idle import end_keeper
from tests.support.servers import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["singleflight_local", "singleflight_plain"]

MODES = {"plain": testing.plain, "local": testing.local}


@pytest.fixture(autouse=True)
def _default_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default group is new, and its server is a port where nobody listens."""
    monkeypatch.setenv("SINGLEFLIGHT_URL", f"redis://127.0.0.1:{free_port()}/0")
    testing.reset()
    yield
    testing.reset()
    end_keeper()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sockets made so far in this test."""
    made: list[object] = []
    make = socket.socket.__init__

    def note(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        make(self, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "__init__", note)
    return made


@pytest.fixture(params=MODES)
def each_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with MODES[request.param]():
        yield


def together(flights: sfs.SingleFlight, threads: int = 5) -> tuple[list[Any], int]:
    """Call from several threads at once; the values, and how often the function ran.

    Where flights are shared, the function goes on when all the others wait for it.
    """
    runs: list[object] = []

    def waiting() -> bool:
        room = flights._runtime().shared.rooms._rooms.get("report") if group.mode == "local" else None
        return group.mode != "local" or (room is not None and len(room.waiting) == threads - 1)

    def function() -> list[int]:
        runs.append(1)
        eventually(waiting)
        return [42]

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(flights.run, "report", function) for _ in range(threads)]
        return [call.result() for call in calls], len(runs)


def fail() -> Any:
    raise ValueError("on purpose")


# No server


def test_without_a_mode_a_socket_is_made(sockets: list[object]) -> None:
    """What the other tests rest on: the counter counts."""
    with pytest.raises(sfs.StoreError):
        sfs.run("report", lambda: 42, on_store_error="raise")
    assert sockets


@pytest.mark.usefixtures("each_mode")
def test_nothing_opens_a_connection(sockets: list[object]) -> None:
    with sfs.SingleFlight(on_store_error="raise") as flights:
        everybody: tuple[Any, ...] = (sfs, flights)
        for one in everybody:
            assert one.run("report", lambda: 42, on_store_error="raise") == 42
            assert one.get("report", "nothing") == "nothing"
            assert one.peek("report") is None
            assert one.live() == []
            assert one.cancel("report") is False
            assert one.forget("report") is False
            assert one.single_flight(key="x")(lambda: 7)() == 7
        assert together(flights)[0] == [[42]] * 5
    assert sockets == []


@pytest.mark.usefixtures("each_mode")
def test_nothing_is_kept() -> None:
    numbers = iter([1, 2])
    assert [sfs.run("report", lambda: next(numbers), ttl=60) for _ in range(2)] == [1, 2]


@pytest.mark.usefixtures("each_mode")
def test_a_failure_goes_to_its_caller_and_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            sfs.run("report", fail, error_ttl=60)
    assert sfs.run("report", lambda: 42) == 42


@pytest.mark.usefixtures("each_mode")
def test_arguments_are_checked_as_always() -> None:
    with pytest.raises(TypeError):
        sfs.run(b"report", lambda: 42)  # type: ignore[arg-type]
    with pytest.raises(sfs.ConfigurationError):
        sfs.run("report", lambda: 42, ttl=-1)
    with pytest.raises(sfs.ConfigurationError):
        sfs.get("")


# What they do


def test_plain_runs_the_function_for_every_caller() -> None:
    with testing.plain(), sfs.SingleFlight() as flights:
        assert together(flights) == ([[42]] * 5, 5)


def test_local_runs_the_function_once_for_all_threads() -> None:
    with testing.local(), sfs.SingleFlight() as flights:
        values, runs = together(flights)
    assert (values, runs) == ([[42]] * 5, 1)
    assert len({id(value) for value in values}) == 5, "each caller has a value of its own"


def test_two_groups_share_nothing_under_local() -> None:
    with testing.local(), sfs.SingleFlight() as one, sfs.SingleFlight() as other:
        assert one.run("report", lambda: other.run("report", lambda: 42)) == 42


def test_plain_has_no_flight_and_local_has_one() -> None:
    with testing.plain():
        assert sfs.run("report", sfs.current_flight) is None
    seen = []
    with testing.local():
        sfs.run("report", lambda: seen.append(sfs.current_flight()))
    assert [(flight and flight.key, flight and flight.fencing_token) for flight in seen] == [("report", 0)]


def test_local_refuses_values_that_cannot_be_shared() -> None:
    with testing.plain():
        assert sfs.run("report", lambda: (1, 2)) == (1, 2)
    with testing.local(), pytest.raises(sfs.CodecError, match="tuple"):
        sfs.run("report", lambda: (1, 2))


def test_events_are_told_under_local_alone() -> None:
    with sfs.SingleFlight() as flights:
        events: list[sfs.FlightEvent] = []
        flights.subscribe(events.append)
        with testing.plain():
            flights.run("report", lambda: 42)
        assert events == []
        with testing.local():
            flights.run("report", lambda: 42)
        assert [type(event) for event in events] == [sfs.FlightClaimed, sfs.FlightPublished]


def test_a_mode_reaches_other_threads_and_groups_made_before() -> None:
    with sfs.SingleFlight(on_store_error="raise") as flights, testing.plain(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(flights.run, "report", threading.get_ident).result() != threading.get_ident()


# Entering and leaving


@pytest.mark.parametrize("enter", MODES.values(), ids=MODES)
def test_flights_are_real_again_afterwards(enter: Callable[[], Any], sockets: list[object]) -> None:
    with sfs.SingleFlight(on_store_error="raise") as flights:
        with enter():
            flights.run("report", lambda: 42)
        with pytest.raises(sfs.StoreError):
            flights.run("report", lambda: 42)
    assert sockets


def test_the_inner_mode_rules_and_the_outer_one_comes_back() -> None:
    modes = [group.mode]
    with testing.local():
        with testing.plain():
            with testing.local():
                modes.append(group.mode)
            modes.append(group.mode)
        modes.append(group.mode)
    modes.append(group.mode)
    assert modes == [None, "local", "plain", "local", None]


@pytest.mark.parametrize("enter", MODES.values(), ids=MODES)
def test_an_error_ends_the_mode_and_passes(enter: Callable[[], Any]) -> None:
    with pytest.raises(KeyboardInterrupt), enter():
        raise KeyboardInterrupt
    assert group.mode is None


def test_a_mode_decorates_a_function_for_each_of_its_calls() -> None:
    @testing.plain()
    def mode() -> str | None:
        return group.mode

    assert (mode(), mode(), group.mode) == ("plain", "plain", None)


# Configuration


def test_reset_lets_the_default_group_be_configured_again() -> None:
    sfs.configure(namespace="first")
    with pytest.raises(sfs.ConfigurationError):
        sfs.configure(namespace="second")
    testing.reset()
    sfs.configure(namespace="second")


def test_reset_forgets_that_the_default_group_was_used() -> None:
    with testing.plain():
        sfs.run("report", lambda: 42)
    testing.reset()
    sfs.configure(namespace="second")


# pytest


@pytest.mark.usefixtures("singleflight_plain")
def test_the_fixture_singleflight_plain_can_be_imported() -> None:
    assert group.mode == "plain"


@pytest.mark.usefixtures("singleflight_local")
def test_the_fixture_singleflight_local_can_be_imported() -> None:
    assert group.mode == "local"


def test_the_module_is_a_plugin_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["singleflight_sync.testing"]\n')
    (tmp_path / "test_it.py").write_text(
        "from singleflight_sync import group\n"
        "def test_plain(singleflight_plain): assert group.mode == 'plain'\n"
        "def test_local(singleflight_local): assert group.mode == 'local'\n"
        "def test_neither(): assert group.mode is None\n"
    )
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path))
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_module_does_without_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import singleflight_sync as sfs\n"
        "from singleflight_sync import testing\n"
        "with testing.plain(): print(sfs.run('report', lambda: 42))\n"
        "assert not hasattr(testing, 'singleflight_plain')\n"
    )
    done = python("-c", program)
    assert done.stdout == "42\n", done.stderr


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=50, check=False)
