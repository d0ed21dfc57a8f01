"""Servers, processes and leak checks that all tests share."""

from __future__ import annotations

import fnmatch
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import parts
from tests.support.idle import end_keeper
from tests.support.monitor import connections, lasting_keys
from tests.support.processes import Child
from tests.support.proxy import Proxy
from tests.support.servers import Server, find_server
from tests.support.topologies import Cluster, SentinelSet
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import redis

GRACE = 5.0  # seconds that threads and connections of the package have to end after a test
LASTING_THREADS: frozenset[str] = frozenset()  # threads of the package that outlive a test

FLAVOURS: dict[str, dict[str, Any]] = {
    "default": {},
    "decode_responses": {"decode_responses": True},
    "protocol3": {"protocol": 3},
    "unix": {"unix_socket_path": True},
}


# What was left out


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    parts.refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    parts.refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(map(parts.reason_of, terminalreporter.stats.get("skipped", [])))
    terminalreporter.section("left out, and why")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:4d}  {reason}")
    if not reasons:
        terminalreporter.line("nothing")


# Servers


@pytest.fixture(scope="session")
def server_binary() -> str:
    return find_server() or parts.missing("no server: install the extra 'embedded'")


@pytest.fixture(scope="session")
def session_server(server_binary: str) -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(session_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The standalone server, empty; the test must leave nothing there."""
    session_server.flush()
    yield session_server
    session_server.close_clients()
    assert_clean([session_server], request)


@pytest.fixture(scope="session")
def session_cluster(server_binary: str) -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(session_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The three-node Cluster, empty; the test must leave nothing there."""
    session_cluster.flush()
    yield session_cluster
    session_cluster.close_clients()
    assert_clean(session_cluster.nodes, request)


@pytest.fixture
def sentinel(server_binary: str) -> Iterator[SentinelSet]:
    """A Sentinel set-up of the test's own (two seconds): it may be broken at will."""
    sentinels = SentinelSet()
    yield sentinels
    sentinels.stop()


@pytest.fixture
def start_server(server_binary: str) -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own: ``start_server(maxmemory="5mb")``, see ``Server``."""
    with ExitStack() as stack:

        def start(*arguments: str, **options: str | int) -> Server:
            server = Server(*arguments, **options)  # type: ignore[arg-type]
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def start_proxy() -> Iterator[Callable[[Server], Proxy]]:
    """Starts proxies: ``start_proxy(server)``."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Proxy(server))


@pytest.fixture
def proxy(server: Server, start_proxy: Callable[[Server], Proxy]) -> Proxy:
    """A proxy in front of ``server``."""
    return start_proxy(server)


# Clients


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A client of ``server`` with the defaults of redis-py."""
    return server.client()


@pytest.fixture(params=FLAVOURS)
def any_client(server: Server, request: pytest.FixtureRequest) -> redis.Redis:
    """A client of ``server`` in each of the flavours that users bring."""
    options = dict(FLAVOURS[request.param])
    if "unix_socket_path" in options:
        options["unix_socket_path"] = server.socket_path
    return server.client(**options)


# Processes


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts children: ``spawn("tests.integration.workers:own", key="k")``."""
    with ExitStack() as stack:

        def start(function: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> Child:
            child = Child(function, arguments, environment=environment)
            stack.callback(child.close)
            return child

        yield start


# Leaks


def package_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("singleflight-") and name not in LASTING_THREADS]


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    yield
    end_keeper()  # which would stay for a while
    eventually(
        lambda: not package_threads(),
        within=GRACE,
        what=f"threads of the package have ended: {package_threads()}",
    )


def assert_clean(servers: list[Server], request: pytest.FixtureRequest) -> None:
    """No connection of the package, and no key without a TTL, outlives its test."""
    for server in servers:
        eventually(
            lambda server=server: not connections(server),  # type: ignore[misc]
            within=GRACE,
            what="connections of the package are closed",
        )
    marker = request.node.get_closest_marker("lasting_keys")
    allowed = [repr(glob.encode()) for glob in marker.args] if marker else []
    lasting = [key for server in servers for key in lasting_keys(server)]
    left = [key for key in lasting if not any(fnmatch.fnmatch(key, glob) for glob in allowed)]
    assert left == [], "keys without a TTL"
