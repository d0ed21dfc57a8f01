"""A project around the app, and caches on the server of the test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import django
import pytest

from tests.djangoapp.support import Caches

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.djangoapp.settings")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.processes import Child
    from tests.support.servers import Server


@pytest.fixture(scope="package", autouse=True)
def project() -> Iterator[None]:
    """The project, set up; what that did to the default group is undone at the end."""
    from singleflight_sync import configure  # noqa: PLC0415 - not before there are settings
    from singleflight_sync.default import default  # noqa: PLC0415 - private, for this alone

    default.reset()
    django.setup()
    from django_singleflight import conf  # noqa: PLC0415

    configure(conf.default_arguments)  # once more, where tests of another folder came between
    yield
    default.reset()


@pytest.fixture
def make_caches(server: Server) -> Iterator[Callable[..., Caches]]:
    """Makes the caches of the test: ``make_caches(default={}, other={"KEY_PREFIX": "x"})``, in database 1."""
    made: list[Caches] = []

    def make(**aliases: dict[str, Any]) -> Caches:
        made.append(Caches(server, aliases or {"default": {}}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def cache(make_caches: Callable[..., Caches]) -> Any:
    """The one cache of the test."""
    return make_caches()["default"]


@pytest.fixture
def start(server: Server, spawn: Callable[..., Child]) -> Callable[..., Child]:
    """Starts processes of the same project on the same server: ``start("own", key="k")``, see ``workers``."""

    def start(function: str, *, url: str = "", settings: str = "{}", **arguments: Any) -> Child:
        environment = {
            "SINGLEFLIGHT_TEST_CACHE": url or f"redis://127.0.0.1:{server.port}/1",
            "SINGLEFLIGHT_TEST_URL": server.url,
            "SINGLEFLIGHT_TEST_SETTINGS": settings,
            "DJANGO_SETTINGS_MODULE": "tests.djangoapp.settings",
        }
        return spawn(f"tests.djangoapp.workers:{function}", environment=environment, **arguments)

    return start
