"""Whether this thread is in a database transaction that has written, so that what it reads may be rolled back.

An execute wrapper on each connection notes writes. It cannot see what goes past ``execute`` of Django's cursors:
``callproc``, ``COPY``, a cursor of the database driver itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.transaction import Atomic

_HARMLESS = re.compile(
    r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:SELECT|BEGIN|START|SAVEPOINT|RELEASE|ROLLBACK|COMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)
"""A query, or the control of the transaction itself, which Django sends through the same cursors."""


class _Blocks(list["Atomic"]):
    """The open ``atomic`` blocks of a connection, with a note whether they have written; it goes with the last of them.

    Used by the connection's own thread.
    """

    def __init__(self, blocks: Iterable[Atomic], *, written: bool) -> None:
        super().__init__(blocks)
        self.written = written and self.is_open()

    def is_open(self) -> bool:
        """Whether a block is open that is not one of ``TestCase``, which nothing outside a test ever sees."""
        return any(not block._from_testcase for block in self)  # noqa: SLF001 - Django has no public word for it

    def pop(self, *args: Any) -> Atomic:
        """Leave the innermost block."""
        block = super().pop(*args)
        self.written = self.written and self.is_open()
        return block


def has_written() -> bool:
    """Whether a transaction of this thread is open that has written, or may have."""
    return any(map(_has_written, connections.all(initialized_only=True)))


def observe_all() -> None:
    """Observe the connections that this thread has already. What they did before is not known, and taken for writes."""
    for connection in connections.all(initialized_only=True):
        _observe(connection)


def _has_written(connection: BaseDatabaseWrapper) -> bool:
    _observe(connection)
    blocks = connection.atomic_blocks
    if blocks:
        return bool(blocks.written)
    # A transaction that is not an ``atomic`` block: nothing tells when it ends.
    return connection.connection is not None and not connection.autocommit


def _observe(connection: BaseDatabaseWrapper) -> None:
    blocks = connection.atomic_blocks
    if not isinstance(blocks, _Blocks):
        connection.atomic_blocks = _Blocks(blocks, written=True)
    if _note not in connection.execute_wrappers:
        connection.execute_wrappers.append(_note)


def _note(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 - as Django calls it
    blocks = context["connection"].atomic_blocks
    if isinstance(blocks, _Blocks) and not blocks.written and not _HARMLESS.match(str(sql)):
        blocks.written = blocks.is_open()
    return execute(sql, params, many, context)


def _observe_new(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _observe(connection)


connection_created.connect(_observe_new, dispatch_uid="django_singleflight.transactions")
