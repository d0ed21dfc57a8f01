"""All errors of the package.

Every error takes its message as the one positional argument and survives pickling with its attributes, because
applications send exceptions between processes.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import enum


class SingleFlightError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(SingleFlightError, ValueError):
    """Raised when an option, a key, a namespace, a URL or a client cannot be used as given."""


class WaitTimeoutError(SingleFlightError, TimeoutError):
    """Raised when this caller's ``wait_timeout`` passed before the flight had an outcome."""


class TooManyWaitingError(SingleFlightError):
    """Raised when this caller would wait where ``max_waiting`` others wait already."""


class HardTimeoutError(SingleFlightError, TimeoutError):
    """Raised when the flight ran past ``hard_timeout``, or past ``stall_timeout`` without a checkpoint."""


class FlightCancelledError(SingleFlightError):
    """Raised when the flight was ended by ``cancel()``."""


class OwnerFailedError(SingleFlightError):
    """Raised when the owner's function raised an exception that cannot be rebuilt in this process.

    Attributes:
        type_name: Module and name of the owner's exception class, ``""`` if unknown.
        traceback_text: The owner's traceback, ``""`` if unknown.
    """

    def __init__(self, message: str, type_name: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback_text = traceback_text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.type_name, self.traceback_text), dict(self.__dict__)


class TakeoverLimitError(SingleFlightError):
    """Raised when the flight lost more owners than ``max_takeovers`` allows to replace."""


class ReentrantFlightError(SingleFlightError, RuntimeError):
    """Raised when a function asks for the key of the flight that it is itself running in."""


class CodecError(SingleFlightError):
    """Raised when a value cannot be encoded without a change, or bytes cannot be decoded.

    Attributes:
        value: In the caller that computed it, the value; else ``None``. Lost in pickling if it cannot be pickled.
    """

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value: Any = value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, _without_unpicklable(self.__dict__, "value")


class StoreError(SingleFlightError):
    """Raised when Redis is unreachable or refuses a command; ``__cause__`` is the client's own error."""


class FlightInterrupted(BaseException):
    """Raised when a checkpoint finds that the flight is over.

    A ``BaseException``, so that the ``except Exception`` of the running function does not swallow it.

    Attributes:
        reason: The ``CancelReason``, or ``None``.
        token: The cancel token that raised it, or ``None``. Never pickled.
    """

    token: object = None

    def __init__(self, message: str, reason: enum.Enum | None = None) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "token"}
        return type(self), self.args, state


def _without_unpicklable(state: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        pickle.dumps(state[name])
    except Exception:  # noqa: BLE001 - user code runs in there, and may raise anything
        return {**state, name: None}
    return dict(state)
