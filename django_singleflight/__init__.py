"""Single-flight for Django: a cache backend whose values are computed once over all processes, and views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_singleflight.decorators import single_flight

__all__ = ["single_flight"]


def __getattr__(name: str) -> Any:
    """Import the decorator at its first use: this package may be imported before there are settings."""
    if name == "single_flight":
        from django_singleflight.decorators import single_flight  # noqa: PLC0415

        return single_flight
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
