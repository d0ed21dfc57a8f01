"""The site of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.djangoapp.views.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server


@pytest.fixture
def site(server: Server) -> Iterator[Site]:
    made = Site(server)
    yield made
    made.close()
