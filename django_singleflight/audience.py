"""For whom a view's pages are, in the words of its decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from django_singleflight.keys import wsgi_name
from singleflight_sync import ConfigurationError


class Audience(NamedTuple):
    """For whom a view's pages are, in the words of its decorator; `audience` checks them."""

    shared: bool = False
    headers: tuple[str, ...] = ()
    callables: tuple[Callable[[Any], Any], ...] = ()
    key: Callable[..., Any] | None = None


def audience(*, shared: Any = False, vary_on: Any = (), key: Any = None) -> Audience:
    """Check the words of a decorator.

    Raises:
        ConfigurationError: one of them cannot be used.
    """
    if not isinstance(shared, bool):
        raise ConfigurationError(f"shared={shared!r} must be True or False")
    if key is not None and not callable(key):
        raise ConfigurationError(f"key={key!r} must be a callable (request, *args, **kwargs) -> str")
    parts = [vary_on] if isinstance(vary_on, str) or callable(vary_on) else vary_on
    if isinstance(parts, (bytes, Mapping)) or not isinstance(parts, Iterable):
        raise ConfigurationError(f"vary_on={vary_on!r} must be a header name, a callable, or a sequence of these")
    parts = tuple(parts)
    for part in parts:
        if not (callable(part) or (isinstance(part, str) and part.strip())):
            raise ConfigurationError(
                f"vary_on holds {part!r}: it must be a header name, or a callable (request) -> str | int | None"
            )
    headers = tuple(wsgi_name(part) for part in parts if isinstance(part, str))
    return Audience(shared, headers, tuple(part for part in parts if not isinstance(part, str)), key)
