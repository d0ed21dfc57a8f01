"""For the tests of programs that use this package: flights without a server.

`plain` makes every flight a plain call of its function. `local` keeps flights inside the process: threads that ask for
the same key at the same time still share one execution. Neither opens a connection or starts a server, whatever is
configured. Both act on all groups and on the functions of the package, in this process and in those that it forks
meanwhile; keys, options and functions are checked as always.

========================  ============================  ====================================================
what                      under `plain`                 under `local`
========================  ============================  ====================================================
``run``, decorated calls  call the function, each time  share what is running; nothing is kept after it
failures                  go to their caller            are shared, as always
values                    as they are                   encoded and decoded, as always
``current_flight()``      ``None``                      the flight; its ``fencing_token`` is 0
``get``                   the default                   the default
``peek``, ``live``        ``None``, ``[]``              ``None``, ``[]``
``cancel``, ``forget``    ``False``, without effect     act on what is running in the process
events                    none                          as always
========================  ============================  ====================================================

Both are context managers and decorators. They may be nested: the inner one rules, and what was before comes back
however the block ends. Enter and leave them while no flight is in the air, and from one thread at a time.

.. code-block:: python

    from singleflight_sync import testing

    def test_report():
        with testing.plain():
            assert report(42) == expected

For pytest there are the fixtures ``singleflight_plain`` and ``singleflight_local``. Make them known in the topmost
``conftest.py``; there, too, one of them can be asked for by all tests:

.. code-block:: python

    pytest_plugins = ["singleflight_sync.testing"]

    @pytest.fixture(autouse=True)
    def without_redis(singleflight_plain): ...

With ``unittest``, decorate the test, or call ``self.enterContext(testing.plain())`` in ``setUp`` (Python 3.11).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from singleflight_sync import group
from singleflight_sync.default import default

try:
    import pytest
except ImportError:  # the fixtures are for those who have it
    pytest = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["local", "plain", "reset"]


@contextmanager
def plain() -> Iterator[None]:
    """Make flights plain calls: nothing is shared, stored or waited for.

    `current_flight` is ``None`` meanwhile: a function that asks for it wants `local`.
    """
    with _mode("plain"):
        yield


@contextmanager
def local() -> Iterator[None]:
    """Keep flights inside this process: its threads share what is running, nothing outlives its flight."""
    with _mode("local"):
        yield


def reset() -> None:
    """Close the default group and forget its configuration: ``configure`` may be called again."""
    default.reset()


@contextmanager
def _mode(mode: group.Mode) -> Iterator[None]:
    before, group.mode = group.mode, mode
    try:
        yield
    finally:
        group.mode = before


if pytest is not None:

    @pytest.fixture
    def singleflight_plain() -> Iterator[None]:
        """Flights are plain calls in this test: see `plain`."""
        with plain():
            yield

    @pytest.fixture
    def singleflight_local() -> Iterator[None]:
        """Flights stay inside the process in this test: see `local`."""
        with local():
            yield
