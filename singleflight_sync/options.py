"""The options of a group and of a call: names, defaults, checks."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypedDict

from singleflight_sync.errors import ConfigurationError

# Up to here, milliseconds stay whole numbers in the floats of Lua.
_LONGEST = 1e9
_LARGEST = 2**53

_NONE_ALLOWED = frozenset({"wait_timeout", "hard_timeout", "stall_timeout"})
_MORE_THAN_ZERO = frozenset({"lease", "heartbeat", "hard_timeout", "stall_timeout"})
_TIMES = ("ttl", "error_ttl", "lease", "heartbeat", "wait_timeout", "hard_timeout", "stall_timeout", "takeover_jitter")
_LOWEST_COUNT = {"max_takeovers": 0, "max_bytes": 1}

_CACHE_SIZE = 128
_CACHEABLE = frozenset({bool, int, float, str, timedelta, type(None)})

Seconds = float | timedelta


class RunOptions(TypedDict, total=False):
    """The options as keyword arguments; times in seconds or as ``timedelta``."""

    ttl: Seconds
    error_ttl: Seconds
    lease: Seconds
    heartbeat: Seconds
    wait_timeout: Seconds | None
    hard_timeout: Seconds | None
    stall_timeout: Seconds | None
    takeover_jitter: Seconds
    max_takeovers: int
    share_errors: bool
    max_bytes: int
    enabled: bool | Callable[[], bool]
    on_store_error: Literal["run", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A checked set of options: no instance holds an invalid one. Immutable; all times in seconds.

    Attributes:
        ttl: Life of the result for those who come later; 0 = only those in the flight get it.
        error_ttl: The same for a failure.
        lease: How long the owner's right to the flight lasts unless renewed; at least twice ``heartbeat``.
        heartbeat: Interval of the renewals.
        wait_timeout: How long this caller waits as a follower; ``None`` = no limit, 0 = never.
        hard_timeout: How long the function may own the flight; ``None`` = no limit.
        stall_timeout: Longest time between two checkpoints; ``None`` = no limit.
        takeover_jitter: Longest delay before a takeover, for the back of the queue.
        max_takeovers: How often a flight may be taken over.
        share_errors: Whether this caller takes the owner's failure; else it claims in turn.
        max_bytes: Largest encoded value that is shared.
        enabled: ``False``, or a callable that says so: run the function directly.
        on_store_error: What to do without Redis: ``"run"`` the function, or ``"raise"``.
    """

    ttl: float = 5.0
    error_ttl: float = 0.0
    lease: float = 3.0
    heartbeat: float = 1.0
    wait_timeout: float | None = 60.0
    hard_timeout: float | None = 300.0
    stall_timeout: float | None = None
    takeover_jitter: float = 0.5
    max_takeovers: int = 3
    share_errors: bool = True
    max_bytes: int = 64 * 1024 * 1024
    enabled: bool | Callable[[], bool] = True
    on_store_error: Literal["run", "raise"] = "run"
    _variants: dict[tuple[object, ...], Options] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring the times to float seconds and check everything."""
        for name in _TIMES:
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        for name, lowest in _LOWEST_COUNT.items():
            object.__setattr__(self, name, _count(name, getattr(self, name), lowest))
        if type(self.share_errors) is not bool:
            _refuse("share_errors", self.share_errors, "must be True or False")
        if not (type(self.enabled) is bool or callable(self.enabled)):
            _refuse("enabled", self.enabled, "must be True, False or a callable that returns one of them")
        if self.on_store_error not in ("run", "raise"):
            _refuse("on_store_error", self.on_store_error, "must be 'run' or 'raise'")
        if self.lease < 2 * self.heartbeat:
            message = (
                f"lease={self.lease!r} is shorter than 2 * heartbeat={self.heartbeat!r}, so that one late beat would "
                "end it: make lease longer or heartbeat shorter"
            )
            raise ConfigurationError(message)

    @classmethod
    def build(cls, **raw: Any) -> Options:
        """Check ``raw`` and fill in the defaults.

        Raises:
            ConfigurationError: An unknown name, or a value that cannot be used.
            TypeError: ``timeout`` was passed.
        """
        _check_names(raw)
        return cls(**raw)

    def changed(self, **raw: Any) -> Options:
        """Return these options with some of them replaced, checked as a whole. Thread-safe; cheap when repeated.

        Raises:
            ConfigurationError: An unknown name, or a value that cannot be used.
            TypeError: ``timeout`` was passed.
        """
        if not raw:
            return self
        key = (*raw, *raw.values(), *map(type, raw.values()))  # with the types, as 1 == 1.0 == True
        try:
            found = self._variants.get(key)
        except TypeError:  # not hashable
            return self._replaced(raw)
        if found is None:
            found = self._replaced(raw)
            if _CACHEABLE.issuperset(map(type, raw.values())):  # no callable of a caller is kept alive
                if len(self._variants) >= _CACHE_SIZE:
                    self._variants.clear()
                self._variants[key] = found
        return found

    def is_enabled(self) -> bool:
        """Return whether flights are shared at all; asks the callable if ``enabled`` is one."""
        return self.enabled if isinstance(self.enabled, bool) else bool(self.enabled())

    def _replaced(self, raw: dict[str, Any]) -> Options:
        _check_names(raw)
        return dataclasses.replace(self, **raw)


OPTION_NAMES: frozenset[str] = frozenset(one.name for one in dataclasses.fields(Options) if one.init)


def _check_names(raw: dict[str, Any]) -> None:
    for name in raw:
        if name == "timeout":
            message = "no option 'timeout': wait_timeout is how long a caller waits, ttl is how long the value lives"
            raise TypeError(message)
        if name not in OPTION_NAMES:
            close = difflib.get_close_matches(name, OPTION_NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(OPTION_NAMES))}"
            message = f"no option {name!r}: {hint}"
            raise ConfigurationError(message)


def _seconds(name: str, value: object) -> float | None:
    if value is None and name in _NONE_ALLOWED:
        return None
    least = "more than 0" if name in _MORE_THAN_ZERO else "0 or more"
    also = ", or None for no limit" if name in _NONE_ALLOWED else ""
    remedy = f"must be seconds ({least}, at most {_LONGEST:.0f}) as a number or a timedelta{also}"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(name, value, remedy)
    if not 0 <= value <= _LONGEST or (value == 0 and name in _MORE_THAN_ZERO):  # NaN is in no range
        _refuse(name, value, remedy)
    return float(value)


def _count(name: str, value: object, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _LARGEST:
        _refuse(name, value, f"must be a whole number, {lowest} or more")
    return int(value)


def _refuse(name: str, value: object, remedy: str) -> NoReturn:
    message = f"{name}={reprlib.repr(value)} {remedy}"
    raise ConfigurationError(message)
