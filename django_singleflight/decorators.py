"""The view decorator: many visitors, one rendering, and no byte of a page for who should not see it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from django_singleflight.atomic import EXEMPT, Exempt
from django_singleflight.audience import audience
from django_singleflight.visit import View, Visit
from singleflight_sync import ConfigurationError, RunOptions, SingleFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])
VaryOn = str | Callable[[Any], str | int | None]

_OPTIONS = frozenset(RunOptions.__optional_keys__) - {"error_ttl", "max_bytes"}
_ON_CLASSES = (
    "on a class or a method write @method_decorator(single_flight, name='dispatch'); "
    "for what is no view there is singleflight_sync.single_flight"
)


@overload
def single_flight(view: F, /) -> F: ...


@overload
def single_flight(
    *,
    shared: bool = False,
    vary_on: VaryOn | Sequence[VaryOn] = (),
    key: Callable[..., str] | None = None,
    max_waiting: int | None = None,
    on_busy: Literal["refuse", "run"] = "refuse",
    **options: Unpack[RunOptions],
) -> Callable[[F], F]: ...


def single_flight(
    view: Any = None,
    /,
    *,
    shared: Any = False,
    vary_on: Any = (),
    key: Any = None,
    max_waiting: Any = None,
    on_busy: Any = "refuse",
    **options: Any,
) -> Any:
    """Decorate a view, so that equal requests at the same time are answered by one run of it.

    Only GET and HEAD are shared. Without ``shared`` only requests that look the same, cookies and all, join.
    Whatever the decorator says, the view is watched, and an answer that depends on a visitor never reaches
    another one.

    Args:
        view: the view, where the decorator is used without parentheses. For classes: ``method_decorator``,
            best on ``dispatch``.
        shared: the page is the same for everybody.
        vary_on: a header name, a callable ``(request) -> str | int | None``, or a sequence of these: only who
            has the same may share.
        key: a callable ``(request, *args, **kwargs) -> str`` that replaces path, query and arguments in the
            key, nothing else.
        max_waiting: turn a request away at once where more than that would wait for the same answer.
        on_busy: where a flight comes to no end, ``"refuse"`` with 503 or 504, or ``"run"`` the view.
        **options: as for `singleflight_sync.run`, in seconds; but ``ttl`` is 0 unless it is said here.

    Raises:
        ConfigurationError: an option cannot be used.
        TypeError: what is decorated is no view, or an async one.
    """
    given = audience(shared=shared, vary_on=vary_on, key=key)
    if options:
        _check(options)
    if max_waiting is not None and (
        isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0
    ):
        raise ConfigurationError(f"max_waiting={max_waiting!r} must be a whole number, 0 or more, or None for no limit")
    if on_busy not in ("refuse", "run"):
        raise ConfigurationError(f"on_busy={on_busy!r} must be 'refuse' or 'run'")

    ttl = options.pop("ttl", 0)
    ttl = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _refuse_what_is_no_view(function)
        exempt = Exempt(getattr(function, EXEMPT, ()))
        decorated = View(_name_of(function), function, given, ttl, options, max_waiting, on_busy, exempt)

        @functools.wraps(function, assigned=_assigned(function))
        def wrapper(request: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(request, HttpRequest):
                raise TypeError(_no_request(decorated.name, request))
            return Visit(decorated, request, args, kwargs).answer()

        setattr(wrapper, EXEMPT, exempt)
        return wrapper

    return decorate if view is None else decorate(view)


def _check(options: dict[str, Any]) -> None:
    for name in options:
        if name in {"error_ttl", "max_bytes"}:
            raise ConfigurationError(
                f"no option {name!r} for views: the setting MAX_BODY is the largest body, and a 5xx is never kept"
            )
    SingleFlight(**options)  # raises for what cannot be used; connects to nothing


def _refuse_what_is_no_view(function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(f"single_flight decorates views, not the class {function.__qualname__}: {_ON_CLASSES}")
    if not callable(function):
        raise TypeError(f"single_flight decorates views, not {function!r}: pass options by name")
    if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
        raise TypeError(f"single_flight decorates plain views, and {function!r} is async: make it a plain one")
    if inspect.isfunction(function):
        first = next(iter(inspect.signature(function).parameters.values()), None)
        if first is None or first.kind is first.KEYWORD_ONLY or first.name in {"self", "cls"}:
            raise TypeError(f"the first argument of {function.__qualname__} is no request: {_ON_CLASSES}")


def _no_request(name: str, request: Any) -> str:
    if isinstance(getattr(request, "_request", None), HttpRequest):
        return f"{name} was called with a request of another framework: decorate `dispatch`, or what as_view() returns"
    return f"{name} was called with a {type(request).__name__} instead of a request: {_ON_CLASSES}"


def _name_of(function: Any) -> str:
    """The dotted name of a view; of a method and of what ``as_view`` made, that of its class."""
    bound = getattr(function, "func", None)  # `method_decorator` makes a partial of the bound method
    owner = getattr(function, "view_class", None) or getattr(bound, "__self__", None)
    if owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        return f"{_path(kind)}.{bound.__name__}" if bound is not None else _path(kind)
    return _path(next((each for each in (function, bound) if hasattr(each, "__qualname__")), type(function)))


def _path(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


def _assigned(function: Any) -> tuple[str, ...]:
    return functools.WRAPPER_ASSIGNMENTS if hasattr(function, "__name__") else ("__module__", "__doc__")
