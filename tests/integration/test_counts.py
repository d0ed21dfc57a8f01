"""What flights cost in commands and connections, exactly."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import SingleFlight
from tests.support.idle import end_keeper
from tests.support.monitor import Monitor, connections
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from singleflight_sync.options import RunOptions
    from tests.support.child import Channel
    from tests.support.processes import Child
    from tests.support.servers import Server
    from tests.support.topologies import Cluster

HERE = "tests.integration.test_counts"
KEY = "report:42"
# A heartbeat would begin after ten seconds: none is counted.
PATIENT: RunOptions = {"lease": 100, "heartbeat": 40}


def refuse() -> Any:
    raise AssertionError("this function was not to be run")


def waiting(flights: SingleFlight, key: str = KEY) -> int:
    """How many threads of this process wait in the key's room."""
    room = flights._runtime().shared.rooms._rooms.get(key)
    return 0 if room is None else len(room.waiting)


def blocked(server: Server) -> list[dict[str, str]]:
    """The connections of the package that wait inside the server."""
    return [row for row in connections(server) if "b" in row["flags"]]


@pytest.fixture(autouse=True)
def _no_keeper_outlives_its_test() -> Iterator[None]:
    yield
    end_keeper()


@pytest.fixture
def flights(server: Server) -> Iterator[SingleFlight]:
    """A group whose connection stands and whose scripts the server knows."""
    with SingleFlight(server.client(), **PATIENT) as group:
        group.run("warm-up", lambda: 1)
        yield group


# One caller


def test_a_hit_is_one_command(server: Server, flights: SingleFlight) -> None:
    flights.run(KEY, lambda: 1)
    with Monitor(server) as monitor:
        assert flights.run(KEY, refuse) == 1
    assert monitor.counts() == {"EVALSHA": 1}


def test_a_miss_is_two_commands(server: Server, flights: SingleFlight) -> None:
    with Monitor(server) as monitor:
        flights.run(KEY, lambda: 1)
    assert monitor.counts() == {"EVALSHA": 2}


def test_a_failure_is_two_commands(server: Server, flights: SingleFlight) -> None:
    with pytest.raises(AssertionError):
        flights.run("warm-up for failures", refuse)
    with Monitor(server) as monitor, pytest.raises(AssertionError):
        flights.run(KEY, refuse)
    assert monitor.counts() == {"EVALSHA": 2}


def test_a_look_for_a_result_is_one_command(server: Server, flights: SingleFlight) -> None:
    with Monitor(server) as monitor:
        assert flights.get(KEY) is None
    assert monitor.counts() == {"GET": 1}


def test_a_disabled_flight_costs_nothing(server: Server, flights: SingleFlight) -> None:
    with Monitor(server) as monitor:
        flights.run(KEY, lambda: 1, enabled=False)
    assert monitor.counts() == {}


def test_one_caller_after_another_has_one_connection(server: Server, flights: SingleFlight) -> None:
    for place in range(20):
        flights.run(f"{KEY}:{place}", lambda: 1)
        flights.run(f"{KEY}:{place}", refuse)
    assert len(connections(server)) == 1


@pytest.mark.cluster
def test_on_a_cluster_a_hit_is_one_command_and_a_miss_is_four(cluster: Cluster) -> None:
    with SingleFlight(cluster.client(), **PATIENT) as group:
        # The nodes learn the scripts one by one; a key of the same slot has the same node.
        group.run(KEY, lambda: 1)
        group.forget(KEY)
        assert cluster_counts(cluster, lambda: group.run(KEY, lambda: 2)) == {"EVALSHA": 4}
        assert cluster_counts(cluster, lambda: group.run(KEY, refuse)) == {"EVALSHA": 1}


def cluster_counts(cluster: Cluster, call: Callable[[], Any]) -> Counter[str]:
    with ExitStack() as stack:
        monitors = [stack.enter_context(Monitor(node)) for node in cluster.nodes]
        call()
    return sum((monitor.counts() for monitor in monitors), start=Counter())


# Followers


def own(channel: Channel, url: str) -> int:
    """Own the flight until the test says that it ends."""
    runs = []

    def function() -> int:
        runs.append(1)
        channel.send("owning")
        channel.wait()
        return 42

    with SingleFlight(url=url, **PATIENT) as group:
        group.run(KEY, function)
    return len(runs)


def test_a_follower_is_a_claim_and_one_blocked_read(
    server: Server, flights: SingleFlight, spawn: Callable[..., Child]
) -> None:
    owner = spawn(f"{HERE}:own", url=server.url)
    assert owner.receive() == "owning"
    with Monitor(server) as monitor, ThreadPoolExecutor() as pool:
        following = pool.submit(flights.run, KEY, refuse)
        eventually(lambda: blocked(server))
        assert len(connections(server)) == 2, "one of the owner, one of the follower"
        owner.release()
        assert following.result() == 42
    publication = 1
    assert monitor.counts() == {"EVALSHA": 1 + publication, "XREAD": 1}
    assert owner.result() == 1


def test_300_threads_follow_as_one(server: Server, flights: SingleFlight, spawn: Callable[..., Child]) -> None:
    owner = spawn(f"{HERE}:own", url=server.url)
    assert owner.receive() == "owning"
    with Monitor(server) as monitor, ThreadPoolExecutor(300) as pool:
        following = [pool.submit(flights.run, KEY, refuse) for _ in range(300)]
        eventually(lambda: waiting(flights) == 299, what="all but the leader wait for it")
        eventually(lambda: blocked(server))
        assert len(connections(server)) == 2, "one of the owner, one of 300 followers"
        owner.release()
        assert [one.result() for one in following] == [42] * 300
    publication = 1
    assert monitor.counts() == {"EVALSHA": 1 + publication, "XREAD": 1}


def test_300_threads_with_their_owner_need_no_waiting_connection(server: Server, flights: SingleFlight) -> None:
    go_on = threading.Event()
    with Monitor(server) as monitor, ThreadPoolExecutor(300) as pool:
        calls = [pool.submit(flights.run, KEY, lambda: go_on.wait(30)) for _ in range(300)]
        eventually(lambda: waiting(flights) == 299, what="all but the owner wait for it")
        assert len(connections(server)) == 1
        assert blocked(server) == []
        go_on.set()
        assert [call.result() for call in calls] == [True] * 300
    assert monitor.counts() == {"EVALSHA": 2}


# A herd


def join_herd(channel: Channel, url: str, name: str) -> dict[str, Any]:
    """Call from 25 threads, and end the flight, if it is ours, when the test says so."""
    go_on, runs = threading.Event(), []

    def function() -> str:
        runs.append(1)
        go_on.wait(30)
        return name

    with SingleFlight(url=f"{url}?client_name={name}", **PATIENT) as group, ThreadPoolExecutor(25) as pool:
        calls = [pool.submit(group.run, KEY, function) for _ in range(25)]
        eventually(lambda: waiting(group) == 24, within=20)
        channel.send("all in")
        channel.wait()
        go_on.set()
        return {"values": [call.result() for call in calls], "runs": len(runs)}


def test_a_herd_of_4_processes_is_one_execution_and_few_commands(
    server: Server, flights: SingleFlight, spawn: Callable[..., Child]
) -> None:
    names = [f"herd-{place}" for place in range(4)]
    with Monitor(server) as monitor:
        herd = [spawn(f"{HERE}:join_herd", url=server.url, name=name) for name in names]
        assert [child.receive() for child in herd] == ["all in"] * 4
        eventually(lambda: len(blocked(server)) == 3, what="three processes follow the fourth")
        assert sorted(row["name"] for row in connections(server) if row["name"]) == names
        for child in herd:
            child.release()
        results = [child.result() for child in herd]
    assert sum(result["runs"] for result in results) == 1
    assert len({value for result in results for value in result["values"]}) == 1
    assert monitor.counts() == {"EVALSHA": 5, "XREAD": 3}, "4 claims and a publication; 3 reads"
    assert all(spent <= 4 for spent in commands_by_name(monitor, names).values())


def commands_by_name(monitor: Monitor, names: list[str]) -> dict[str, int]:
    """How many commands each named client has sent, without handshakes."""
    spent = dict.fromkeys(names, 0)
    of_address = {
        command.address: name for command in monitor.commands for name in names if command.text.endswith(f" {name}")
    }
    for command in monitor.commands:
        if command.name != "CLIENT" and command.address in of_address:
            spent[of_address[command.address]] += 1
    return spent
