"""The test harness itself: its counters and faults must be true, for all else rests on them."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests import conftest
from tests.support import parts
from tests.support.monitor import Monitor, connections, counting, lasting_keys
from tests.support.processes import Child, ChildError
from tests.support.resp import RequestParser
from tests.support.servers import Server
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.child import Channel
    from tests.support.proxy import Proxy
    from tests.support.topologies import Cluster, SentinelSet

HERE = "tests.unit.test_support"
PING = b"*1\r\n$4\r\nPING\r\n"


def plain(proxy: Proxy, **options: Any) -> redis.Redis:
    """A client that neither retries nor says hello."""
    return proxy.client(protocol=2, retry=None, **options)


# Functions that run in children


def echo(channel: Channel, word: str) -> str:
    channel.send("ready")
    return word + str(channel.wait())


def fail(channel: Channel) -> None:
    raise ValueError("on purpose")


def start_and_wait(channel: Channel) -> None:
    server = Server()
    channel.send(server.process.pid)
    channel.wait()


# Waiting


def test_eventually_returns_the_first_true_answer() -> None:
    answers = iter([0, "", "now"])
    assert eventually(lambda: next(answers)) == "now"


def test_eventually_fails_with_the_sentence_and_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"pigs fly; last answer: 0"):
        eventually(lambda: 0, within=0.01, what="pigs fly")


# Servers


def test_each_flavour_of_client_talks_to_the_server(any_client: redis.Redis) -> None:
    any_client.set("k", "v", ex=10)
    assert any_client.get("k") in {"v", b"v"}


def test_a_private_server_has_its_own_options(start_server: Callable[..., Server]) -> None:
    client = start_server(maxmemory="7mb").client()
    assert client.config_get("maxmemory") == {"maxmemory": str(7 * 1024 * 1024)}


def test_a_restarted_server_is_empty_at_the_same_address(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    client = server.client()
    client.set("k", "v")
    server.restart()
    assert client.get("k") is None


def test_a_server_dies_with_the_process_that_started_it(server_binary: str, spawn: Callable[..., Child]) -> None:
    child = spawn(f"{HERE}:start_and_wait")
    pid = child.receive()
    child.kill()
    eventually(lambda: not is_running(pid), what="the server is gone")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.cluster
def test_the_cluster_has_three_nodes_that_share_the_keys(cluster: Cluster) -> None:
    client = cluster.client()
    for number in range(50):
        client.set(f"k{number}", number, ex=60)
    sizes = [node.client().dbsize() for node in cluster.nodes]
    assert (len(sizes), sum(sizes), min(sizes) > 0) == (3, 50, True)


@pytest.mark.sentinel
def test_the_sentinels_promote_the_replica(sentinel: SentinelSet) -> None:
    sentinel.client().set("k", "v")
    assert sentinel.primary.client().wait(1, 1000) == 1
    sentinel.primary.kill()
    sentinel.wait_for_failover()
    assert sentinel.client().get("k") == b"v"


# Proxy


def test_requests_are_cut_out_of_any_pieces() -> None:
    parser = RequestParser()
    stream = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n"
    pieces = [parser.feed(stream[at : at + 1]) for at in range(len(stream))]
    requests = [request for piece in pieces for request in piece]
    assert [request.arguments for request in requests] == [[b"GET", b"a\r\nb"], [b"PING"]]
    assert b"".join(request.raw for request in requests) == stream


def test_a_proxy_forwards_and_counts(proxy: Proxy) -> None:
    client = plain(proxy)
    client.set("k", b"\r\n" * 100_000, ex=10)
    assert client.get("k") == b"\r\n" * 100_000
    assert (proxy.connections, proxy.commands["SET"], proxy.commands["GET"]) == (1, 1, 1)


def test_a_reply_that_is_cut_off_was_executed(proxy: Proxy, client: redis.Redis) -> None:
    rule = proxy.cut_before_reply(lambda request: b"INCR" in request)
    with pytest.raises(redis.ConnectionError):
        plain(proxy).incr("k")
    assert client.get("k") == b"1"
    assert rule.wait().arguments == [b"INCRBY", b"k", b"1"]
    assert plain(proxy).expire("k", 10) is True


def test_a_number_as_match_counts_requests_from_now_on(proxy: Proxy) -> None:
    client = plain(proxy)
    client.ping()
    proxy.cut_before_reply(2)
    client.ping()
    with pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_request_that_is_cut_off_was_not_executed(proxy: Proxy, client: redis.Redis) -> None:
    proxy.cut_before_request(lambda request: b"INCR" in request)
    with pytest.raises(redis.ConnectionError):
        plain(proxy).incr("k")
    assert client.get("k") is None


def test_a_held_request_arrives_after_its_client_gave_up(proxy: Proxy, client: redis.Redis) -> None:
    rule = proxy.hold(lambda request: b"SET" in request and b"late" in request)
    with pytest.raises(redis.TimeoutError):
        plain(proxy, socket_timeout=0.1).set("late", "v", ex=10)
    assert client.get("late") is None
    rule.release()
    eventually(lambda: client.get("late") == b"v")


def test_a_recorded_request_can_be_replayed(proxy: Proxy, client: redis.Redis) -> None:
    rule = proxy.record(lambda request: b"INCR" in request)
    plain(proxy).incr("k")
    assert proxy.replay(rule.wait()) == 2
    client.expire("k", 10)


def test_a_refusing_proxy_cuts_and_refuses_until_it_forwards(proxy: Proxy) -> None:
    client = plain(proxy)
    client.ping()
    proxy.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    proxy.forward()
    assert client.ping() is True


def test_a_black_hole_gives_back_what_it_held(proxy: Proxy, client: redis.Redis) -> None:
    impatient = plain(proxy, socket_timeout=0.1)
    impatient.ping()
    proxy.black_hole()
    with pytest.raises(redis.TimeoutError):
        impatient.set("k", "v", ex=10)
    assert client.get("k") is None
    proxy.forward()
    eventually(lambda: client.get("k") == b"v")


def test_a_delay_counts_in_both_directions(proxy: Proxy) -> None:
    client = plain(proxy)
    client.ping()
    proxy.delay(0.5)
    begin = time.monotonic()
    client.ping()
    assert time.monotonic() - begin >= 1.0


@pytest.mark.parametrize("fault", ["half_close", "cut", "reset"])
def test_existing_connections_can_be_ended(proxy: Proxy, fault: str) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(PING)
        assert connection.recv(100) == b"+PONG\r\n"
        if fault == "half_close":
            proxy.half_close()
        else:
            proxy.cut(reset=fault == "reset")
        with pytest.raises(ConnectionResetError) if fault == "reset" else nullcontext():
            assert connection.recv(100) == b""


# Counters


def test_a_monitor_counts_what_clients_send_and_not_what_scripts_call(server: Server, client: redis.Redis) -> None:
    with Monitor(server) as monitor:
        client.eval("redis.call('SET', KEYS[1], 1, 'EX', 10)", 1, "k")
        client.get("k")
    assert monitor.counts() == {"EVAL": 1, "GET": 1}


def test_command_statistics_include_what_scripts_call(server: Server, client: redis.Redis) -> None:
    with counting(server) as spent:
        client.eval("redis.call('SET', KEYS[1], 1, 'EX', 10)", 1, "k")
    assert (spent["EVAL"], spent["SET"], spent["GET"]) == (1, 1, 0)


def test_connections_of_the_package_are_told_from_others(server: Server, client: redis.Redis) -> None:
    client.ping()
    assert connections(server) == []
    server.client(client_name="singleflight-1").ping()
    assert len(connections(server)) == 1


@pytest.mark.lasting_keys("k", "x*")
def test_keys_without_ttl_are_found(server: Server, client: redis.Redis) -> None:
    client.set("k", 1)
    client.set("brief", 1, ex=10)
    client.set("ai:flight:owner-seq", 1)
    assert lasting_keys(server) == ["b'k'"]


# Processes


def test_a_child_talks_waits_and_returns(spawn: Callable[..., Child]) -> None:
    child = spawn(f"{HERE}:echo", word="a")
    assert child.receive() == "ready"
    child.release("b")
    assert child.result() == "ab"
    assert child.wait() == 0


def test_a_failing_child_fails_the_test_with_its_traceback(spawn: Callable[..., Child]) -> None:
    with pytest.raises(ChildError, match="ValueError: on purpose"):
        spawn(f"{HERE}:fail").result()


def test_a_silent_child_is_noticed(spawn: Callable[..., Child]) -> None:
    child = spawn(f"{HERE}:echo", word="a")
    child.receive()
    with pytest.raises(ChildError, match="said nothing"):
        child.receive(within=0.05)


def test_a_stopped_child_goes_on_where_it_was(spawn: Callable[..., Child]) -> None:
    child = spawn(f"{HERE}:echo", word="a")
    child.receive()
    child.pause()
    child.release("b")
    with pytest.raises(ChildError, match="said nothing"):
        child.receive(within=0.2)
    child.resume()
    assert child.result() == "ab"


def test_a_killed_child_is_reaped(spawn: Callable[..., Child]) -> None:
    child = spawn(f"{HERE}:echo", word="a")
    child.kill()
    assert child.process.returncode == -signal.SIGKILL


# Leaks and parts


def test_a_thread_of_the_package_counts_as_a_leak_until_it_ends() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="singleflight-test")
    thread.start()
    assert conftest.package_threads() == ["singleflight-test"]
    stop.set()
    thread.join()
    assert conftest.package_threads() == []


@pytest.mark.parametrize(
    ("required", "reason", "outcome"),
    [
        ("", "no browser", "skipped"),
        ("all", "no browser", "failed"),
        ("all", "not applicable: only on 3.11", "skipped"),
    ],
)
def test_a_missing_part_fails_where_all_are_required(
    monkeypatch: pytest.MonkeyPatch, required: str, reason: str, outcome: str
) -> None:
    monkeypatch.setenv("SINGLEFLIGHT_TESTS_REQUIRE", required)
    skip = ("file", 1, f"Skipped: {reason}")
    report = pytest.TestReport("node", ("file", 1, "test"), {}, "skipped", skip, "call")
    parts.refuse_skip(report)
    assert report.outcome == outcome
