"""The scripts on a standalone server and on a Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.keyspace import Keyspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server
    from tests.support.topologies import Cluster


@pytest.fixture(params=["standalone", pytest.param("cluster", marks=pytest.mark.cluster)])
def space(request: pytest.FixtureRequest) -> Iterator[Keyspace]:
    """A key on either of them."""
    server = request.getfixturevalue("server" if request.param == "standalone" else "cluster")
    space = Keyspace(server.client())
    yield space
    space.close()


@pytest.fixture
def single(server: Server) -> Iterator[Keyspace]:
    """A key on the standalone server."""
    space = Keyspace(server.client())
    yield space
    space.close()


@pytest.fixture
def clustered(cluster: Cluster) -> Iterator[Keyspace]:
    """A key on the Cluster."""
    space = Keyspace(cluster.client())
    yield space
    space.close()


@pytest.fixture
def bare(server: Server) -> Iterator[Keyspace]:
    """A key whose stored values carry no token."""
    space = Keyspace(server.client(), bare=True)
    yield space
    space.close()
