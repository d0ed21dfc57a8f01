"""``ATOMIC_REQUESTS`` around the view itself: visitors who wait hold no transaction and no connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

if TYPE_CHECKING:
    from collections.abc import Callable

EXEMPT = "_non_atomic_requests"
"""Where Django looks, on a view, for the databases whose transactions it must not open."""


class Exempt(set[str]):
    """Tells Django that every database is exempt; holds those that the user has exempted."""

    def __contains__(self, alias: object) -> bool:
        return True

    def really(self, alias: str) -> bool:
        """Whether the user has exempted this database."""
        return super().__contains__(alias)


def atomic(view: Callable[..., Any], exempt: Exempt) -> Callable[..., Any]:
    """The view as Django itself would have made it atomic."""
    for alias in _aliases(exempt):
        view = transaction.atomic(using=alias)(view)
    return view


def is_open_already(exempt: Exempt) -> bool:
    """Whether the transaction of one of its databases was opened above the view. ``TestCase`` does not count."""
    return any(
        not block._from_testcase  # noqa: SLF001 - Django has no public word for it
        for alias in _aliases(exempt)
        for block in connections[alias].atomic_blocks
    )


def give_back_connections() -> None:
    """Close this thread's idle database connections, as Django does at the end of a request.

    Who waits for another visitor's answer needs none. Persistent connections stay, since the thread keeps them anyway.
    """
    for connection in connections.all(initialized_only=True):
        is_idle = connection.connection is not None and connection.autocommit and not connection.in_atomic_block
        if is_idle and connection.settings_dict["CONN_MAX_AGE"] == 0 and not connection.allow_thread_sharing:
            connection.close()


def _aliases(exempt: Exempt) -> list[str]:
    every = connections.settings.items()
    return [alias for alias, settings in every if settings["ATOMIC_REQUESTS"] and not exempt.really(alias)]
