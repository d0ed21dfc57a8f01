"""The decorator of plain functions: equal calls at the same time are one flight."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from singleflight_sync.errors import ConfigurationError
from singleflight_sync.keys import key_from_template, key_of_call, refuse_requests
from singleflight_sync.options import Options

P = ParamSpec("P")
Q = ParamSpec("Q")
T_co = TypeVar("T_co", covariant=True)
Run = Callable[..., Any]

_LONG, _SHORT = 1e9, 0.001


class Decorated(Protocol[P, T_co]):
    """A decorated function."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call it as one flight over all processes."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of such a call, for ``forget`` and ``cancel``."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Decorated[P, T_co]: ...

    @overload
    def __get__(
        self: Decorated[Concatenate[Any, Q], T_co], instance: object, owner: type | None = None, /
    ) -> Callable[Q, T_co]: ...


_OF_CALLS = frozenset({"codec", "max_waiting", "on_wait"})


def decorator(run: Run, function: Any, key: Any, options: dict[str, Any], defaults: Options | None = None) -> Any:
    """The decorator whose calls go through ``run``; ``defaults``: the options of its group, where they are known."""
    known = {name: value for name, value in options.items() if name not in _OF_CALLS}
    if defaults is None:  # checks each value for itself
        known = {"lease": _LONG, "heartbeat": _SHORT, **known}
    (defaults or Options.build()).changed(**known)  # raises for what cannot be used

    def decorate(function: Callable[..., Any]) -> Any:
        key_of = _key_maker(function, key)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            refuse_requests(function, args)
            return run(key_of(args, kwargs), functools.partial(function, *args, **kwargs), **options)

        wrapper.key = lambda *args, **kwargs: key_of(args, kwargs)  # type: ignore[attr-defined]
        return wrapper

    return decorate if function is None else decorate(function)


def _key_maker(function: object, key: object) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"single_flight decorates functions, not {function!r}; a key is passed by name: single_flight(key=...)"
        )
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TypeError(
            f"single_flight decorates plain functions: {function!r} returns a coroutine or a generator, "
            f"which cannot be shared"
        )
    if key is None:
        return key_of_call(function)
    if isinstance(key, str):
        return key_from_template(function, key)
    if not callable(key):
        raise ConfigurationError(
            f"key is a {type(key).__name__}: pass a template such as 'report:{{report_id}}', or a callable"
        )
    return lambda args, kwargs: key(*args, **kwargs)
