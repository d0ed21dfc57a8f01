"""Values that are large: for the server, for the link, for memory, for what the group allows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from singleflight_sync import CodecError, SingleFlight, WaitTimeoutError
from tests.support.callers import foreign, instant, making_groups, wait_for_readers
from tests.support.flights import Call, Work, wait_for_callers
from tests.support.monitor import connections
from tests.support.slow import SlowLink, forget_peak, peak_memory
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.callers import Make
    from tests.support.child import Channel
    from tests.support.processes import Child
    from tests.support.servers import Server

    Start = Callable[..., Server]

HERE = "tests.faults.test_large_values"
MB = 1_000_000
RESULT = "ai:flight:result:{k}"
LONG = {"lease": 20.0, "heartbeat": 5.0}


@pytest.fixture
def group() -> Iterator[Make]:
    with making_groups() as make:
        yield make


@pytest.fixture
def link(server: Server) -> Iterator[SlowLink]:
    """A link on which 4 MB take two seconds."""
    with SlowLink(server, 2 * MB) as slow:
        yield slow


def large(megabytes: float) -> bytes:
    return bytes(range(250)) * int(megabytes * MB / 250)


# Across


@pytest.mark.parametrize("ttl", [0, 5, 60])
@pytest.mark.parametrize("megabytes", [0.016, 0.017, 1, 25])
def test_a_large_value_comes_across_whole(server: Server, group: Make, megabytes: float, ttl: float) -> None:
    """Whether it rides in the log's entry or is fetched from the result."""
    value, second = large(megabytes), instant("second")
    work = Work(value)
    options = {"lease": 10.0, "heartbeat": 2.0, "ttl": ttl}
    owner = Call(group(server.client(), **options), "k", work)
    work.wait_for(1)
    there = group(foreign(server), **options)
    followers = [Call(there, "k", second) for _ in range(3)]
    wait_for_callers(there, "k", 2)
    wait_for_readers(server, 1)
    work.let_go()
    assert [each.result() == value for each in [owner, *followers]] == 4 * [True]
    assert (work.runs, second.runs) == (1, 0)
    assert there.get("k", b"") == (value if ttl else b"")


def test_large_text_and_json_come_across_whole(server: Server, group: Make) -> None:
    text = "ü€𝄞" * 500_000
    rows = [{"number": number, "name": f"name {number}"} for number in range(50_000)]
    for key, value in (("text", text), ("rows", rows)):
        assert group(server.client(), ttl=60).run(key, instant(value)) == value
        assert group(foreign(server), ttl=60).run(key, instant("second")) == value


def follow(channel: Channel, url: str, megabytes: float, threads: int) -> float:
    """In a child: follow in so many threads; the peak of memory, in values."""
    expected = large(megabytes)
    with SingleFlight(url=url, lease=20, on_store_error="raise") as flights:
        flights.run("warm", lambda: 1)
        before = forget_peak()
        calls = [Call(flights, "k", lambda: b"second") for _ in range(threads)]
        wait_for_callers(flights, "k", threads - 1)
        channel.send("following")
        values = [call.result(within=40) for call in calls]
        peak = peak_memory() - before
    assert [value == expected for value in values] == threads * [True]
    return peak / len(expected)


def publish(channel: Channel, url: str, megabytes: float) -> float:
    """In a child: run one flight; the peak of memory, in values."""
    with SingleFlight(url=url, lease=20, ttl=60) as flights:
        flights.run("warm", lambda: 1)
        before = forget_peak()
        flights.run("k", lambda: large(megabytes))
        return (peak_memory() - before) / (megabytes * MB)


def hit(channel: Channel, url: str, megabytes: float) -> float:
    """In a child: find a fresh result; the peak of memory, in values."""
    with SingleFlight(url=url) as flights:
        flights.run("warm", lambda: 1)
        before = forget_peak()
        assert len(flights.run("k", lambda: b"second")) == megabytes * MB
        return (peak_memory() - before) / (megabytes * MB)


# How many times the value a process may hold at a time: the value itself, its bytes, and half for buffers; where it is
# read, the parser of redis-py holds three by itself, in pure Python.
COPIES_SENT, COPIES_READ = 2.5, 3.2


@pytest.mark.parametrize("ttl", [5, 60])
def test_ten_megabytes_cross_once_per_process(
    server: Server, spawn: Callable[..., Child], group: Make, ttl: float
) -> None:
    """To 40 followers in four processes."""
    value = large(10)
    flights, work = group(server.client(), **LONG, ttl=ttl), Work(value)
    flights.run("warm", lambda: 1)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    children = [spawn(f"{HERE}:follow", url=server.unix_url, megabytes=10, threads=10) for _ in range(4)]
    assert [child.receive(within=40) for child in children] == 4 * ["following"]
    wait_for_readers(server, 4)
    client = server.client()
    before = client.info("stats")["total_net_output_bytes"]
    work.let_go()
    assert owner.result() == value
    peaks = [child.result(within=40) for child in children]
    assert client.info("stats")["total_net_output_bytes"] - before <= 1.3 * 4 * len(value)
    assert max(peaks) <= COPIES_READ, f"peak memory, in values: {peaks}"


@pytest.mark.parametrize(("act", "copies"), [("publish", COPIES_SENT), ("hit", COPIES_READ)])
def test_memory_holds_a_few_copies_of_the_value(
    server: Server, spawn: Callable[..., Child], act: str, copies: float
) -> None:
    """In the process that computes it, and in one that finds it."""
    spawn(f"{HERE}:publish", url=server.url, megabytes=30).result(within=40)
    server.client().delete(*([] if act == "hit" else [RESULT]), "nothing")
    assert spawn(f"{HERE}:{act}", url=server.url, megabytes=30).result(within=40) <= copies


# What the server takes


@pytest.fixture
def small_server(start_server: Start) -> Server:
    return start_server(proto_max_bulk_len="1mb")


def test_a_value_larger_than_the_server_takes_ends_the_flight_as_not_shared(small_server: Server, group: Make) -> None:
    value, second = large(3), instant("second")
    work = Work(value)
    errors: list[Any] = []
    flights = group(small_server.client(), **LONG)
    flights.subscribe(errors.append)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(small_server), **LONG), "k", second)
    wait_for_readers(small_server, 1)
    begin = time.monotonic()
    work.let_go()
    assert owner.result() == value
    assert follower.result() == "second"
    assert time.monotonic() - begin < 10, "not left to the end of the lease"
    failures = [event.error for event in errors if type(event).__name__ == "StoreFailed"]
    assert len(failures) == 1
    assert "proto-max-bulk-len" in failures[0]
    assert small_server.client().exists("ai:flight:meta:{k}") == 0


def test_the_same_under_the_policy_to_raise_gives_the_owner_its_value(small_server: Server, group: Make) -> None:
    """A refused value is no outage: the answer is there, and is not lost for its caller."""
    value = large(3)
    flights = group(small_server.client(), **LONG, on_store_error="raise")
    assert flights.run("k", lambda: value) == value
    assert flights.run("k", instant("small"), ttl=60) == "small"


def test_a_value_larger_than_the_servers_buffer_is_not_shared_either(start_server: Start, group: Make) -> None:
    """The server closes the connection without a word."""
    server = start_server(client_query_buffer_limit="1mb")
    value, second = large(5), instant("second")
    work = Work(value)
    owner = Call(group(server.client(), lease=2), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server), lease=2), "k", second)
    wait_for_readers(server, 1)
    work.let_go()
    assert owner.result() == value
    assert follower.result() == "second"
    assert (work.runs, second.runs) == (1, 1)


def test_a_reader_whose_output_buffer_overflows_still_ends(start_server: Start, group: Make) -> None:
    """The server closes the connection of whoever is sent too much at once."""
    server = start_server(client_output_buffer_limit="normal 1mb 0 0")
    value, second = large(5), instant(b"second")
    work = Work(value)
    owner = Call(group(server.client(), lease=2, ttl=60), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server), lease=2, ttl=60), "k", second)
    wait_for_readers(server, 1)
    work.let_go()
    assert owner.result() == value
    assert follower.result() in {value, b"second"}


# What the group takes


@pytest.mark.parametrize(("size", "get_it"), [(999, "all"), (1_000, "none"), (5_000_000, "none")])
def test_more_than_max_bytes_is_an_error_for_everybody_at_once(
    server: Server, group: Make, size: int, get_it: str
) -> None:
    value, second = b"x" * size, instant("second")
    work = Work(value)
    options = {**LONG, "max_bytes": 1_000}
    flights = group(server.client(), **options)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    here = Call(flights, "k", second)
    wait_for_callers(flights, "k", 1)
    follower = Call(group(foreign(server), **options), "k", second)
    wait_for_readers(server, 1)
    sent = server.client().info("stats")["total_net_input_bytes"]
    work.let_go()
    if get_it == "all":
        assert [each.result() for each in (owner, here, follower)] == 3 * [value]
        return
    errors: list[Any] = [each.error(within=10) for each in (owner, here, follower)]
    assert [type(each) for each in errors] == 3 * [CodecError]
    assert (errors[0].value is value, "max_bytes" in str(errors[2]), "'k'" in str(errors[2])) == (True, True, True)
    assert server.client().info("stats")["total_net_input_bytes"] - sent < 100_000, "nothing of it was sent"
    assert (second.runs, server.client().exists(RESULT)) == (0, 0)


# Slow links


def test_the_lease_is_kept_during_a_long_upload(server: Server, link: SlowLink, group: Make) -> None:
    """The upload takes three leases."""
    value, second = large(6), instant("second")
    work = Work(value)
    owner = Call(group(server.client(port=link.port), lease=1.0, heartbeat=0.3, ttl=60), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server), lease=1.0, heartbeat=0.3), "k", second)
    wait_for_readers(server, 1)
    begin = time.monotonic()
    work.let_go()
    assert owner.result() == value
    assert time.monotonic() - begin > 2, "the link was slow"
    assert follower.result() == value
    assert (work.runs, second.runs) == (1, 0)


def test_a_slow_upload_is_sent_once(server: Server, link: SlowLink, group: Make) -> None:
    """What is still in the kernel's buffers when all is handed over takes longer than an answer may."""
    value = large(8)
    flights = group(server.client(port=link.port), **LONG, ttl=60)
    link.rate = MB
    assert flights.run("k", lambda: value) == value
    assert (server.client().strlen(RESULT) > len(value), link.sent < 1.2 * len(value)) == (True, True)


def test_a_slow_download_is_no_outage(server: Server, link: SlowLink, group: Make) -> None:
    value, second = large(6), instant("second")
    work = Work(value)
    owner = Call(group(server.client(), lease=1.0, heartbeat=0.3), "k", work)
    work.wait_for(1)
    follower = Call(
        group(foreign(server, port=link.port), lease=1.0, heartbeat=0.3, on_store_error="raise"), "k", second
    )
    wait_for_readers(server, 1)
    work.let_go()
    assert (owner.result(), follower.result(), second.runs) == (value, value, 0)


def test_a_value_that_is_on_its_way_is_taken_although_the_deadline_passes(
    server: Server, link: SlowLink, group: Make
) -> None:
    """The transfer takes two seconds more than the caller's patience."""
    work, second = Work(large(6)), instant("second")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=link.port), **LONG), "k", second, wait_timeout=1)
    wait_for_readers(server, 1)
    work.let_go()
    assert (follower.result() == owner.result(), second.runs) == (True, 0)


def test_a_link_that_falls_silent_within_a_value_ends_the_wait_in_time(
    server: Server, link: SlowLink, group: Make
) -> None:
    work, second = Work(large(6)), instant("second")
    owner = Call(group(server.client(), **LONG), "k", work)
    work.wait_for(1)
    follower = Call(group(foreign(server, port=link.port), **LONG), "k", second, wait_timeout=2)
    wait_for_readers(server, 1)
    begin = time.monotonic()
    work.let_go()
    owner.result()
    eventually(lambda: link.received > MB, what="a part of the value has come")
    link.hang()
    assert isinstance(follower.error(), WaitTimeoutError)
    assert time.monotonic() - begin < 2 + 5


def test_an_upload_that_stalls_ends_with_the_value_for_its_caller(server: Server, link: SlowLink, group: Make) -> None:
    """It is tried once: a second try would take as long, and the lease is over."""
    value = large(1)
    work = Work(value)
    flights = group(server.client(port=link.port), lease=1.0)
    owner = Call(flights, "k", work)
    work.wait_for(1)
    link.rate = 1_000
    begin = time.monotonic()
    work.let_go()
    assert owner.result(within=50) == value
    assert time.monotonic() - begin < 10


def test_large_values_leave_no_connection_in_disorder(server: Server, group: Make) -> None:
    """Uploads and small commands in turns on the same connections, from several threads."""
    flights = group(server.client(), ttl=60, on_store_error="raise", lease=20)
    values = [large(each) for each in (0.001, 1, 0.3, 2)]

    def mix(name: str) -> bool:
        found = [flights.run(f"{name} {n}", instant(values[n % 4])) == values[n % 4] for n in range(12)]
        found += [flights.get(f"{name} {n}") == values[n % 4] for n in range(12)]
        return all(found)

    calls = [Call(flights, f"mix {n}", lambda n=n: mix(str(n))) for n in range(4)]  # type: ignore[misc]
    assert [call.result() for call in calls] == 4 * [True]
    eventually(lambda: len(connections(server)) < 30)
