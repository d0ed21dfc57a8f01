"""Failures on the wire: an exception as plain JSON, and rebuilt from it with nothing imported or unpickled."""

from __future__ import annotations

import builtins
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from singleflight_sync.errors import CodecError, OwnerFailedError

_VERSION = 1
_LONGEST_TEXT = 10_000
_LONGEST_ARGS = 10_000  # bytes
_LONGEST_CHAIN = 10
_LONGEST_LINK = 1_000
_MOST_NOTES = 20
_MOST_FRAMES = 50
_LONGEST_NAME = 500
_CUT = "[...]"

_SCALARS = frozenset({type(None), bool, int, float, str})
# The exceptions inside a group do not travel, so that it cannot be rebuilt. New in Python 3.11.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def describe(exc: BaseException, *, flight: str) -> bytes:
    """Write what can be told of an exception. Never raises, whatever the exception does.

    Args:
        exc: The exception.
        flight: Names the owner and the flight, for the note that a follower reads.
    """
    facts = {
        "v": _VERSION,
        "module": _guarded(lambda: _head(str(type(exc).__module__), _LONGEST_NAME), ""),
        "name": _guarded(lambda: _head(str(type(exc).__qualname__), _LONGEST_NAME), ""),
        "message": _head(text_of(exc), _LONGEST_TEXT),
        "args": _guarded(lambda: _plain_args(exc), None),
        "traceback": _guarded(lambda: _traceback(exc), ""),
        "notes": _guarded(lambda: _notes(exc), []),
        "chain": _guarded(lambda: _chain(exc), []),
        "flight": flight,
    }
    return json.dumps(facts).encode()


def rebuild(data: bytes, key: str) -> Exception:
    """Return the failure as a fresh exception, with a note that names owner and flight. Never raises.

    The exception is of its own class only if that is surely the same one: its module is imported
    here, the class is found in it, the arguments are plain data, and what they make has the text of the
    original.

    Args:
        data: What `describe` wrote.
        key: The key of the flight.
    """
    facts = _Facts(data)
    exc = _guarded(lambda: _original(facts), None) or _stand_in(facts, key)
    flight = facts.text("flight") or "owner unknown"
    note = f"Raised by the owner of the flight of key {key[:_LONGEST_NAME]!r} ({flight})."
    if facts.text("traceback"):
        note = f"{note}\n{facts.text('traceback').rstrip()}"
    # Not `add_note`, which Python 3.10 has not, and which a class that forbids attributes breaks.
    vars(exc)["__notes__"] = [*facts.texts("notes"), note]
    return exc


class _Facts:
    """What came over the wire, where anything may be missing or of another type."""

    def __init__(self, data: bytes) -> None:
        try:
            facts = json.loads(data)
        except (ValueError, RecursionError):
            facts = None
        self._facts: dict[str, Any] = facts if isinstance(facts, dict) else {}

    def text(self, name: str) -> str:
        found = self._facts.get(name)
        return found if isinstance(found, str) else ""

    def texts(self, name: str) -> list[str]:
        found = self._facts.get(name)
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []

    def args(self) -> tuple[Any, ...] | None:
        found = self._facts.get("args")
        return None if found is None else tuple(map(_from_wire, found))


def _original(facts: _Facts) -> Exception | None:
    kind = _find_class(facts.text("module"), facts.text("name"))
    args = facts.args()
    if kind is None or args is None:
        return None
    exc = kind(*args)
    # A constructor that makes its text from its arguments would do so a second time.
    same = type(exc) is kind and _head(text_of(exc), _LONGEST_TEXT) == facts.text("message")
    return exc if same else None


def _find_class(module: str, name: str) -> type[Exception] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        # Not `getattr`, which runs code of modules and metaclasses.
        found = vars(found).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    return None if issubclass(found, _GROUP) else found


def _stand_in(facts: _Facts, key: str) -> OwnerFailedError:
    module, name = facts.text("module"), facts.text("name")
    if not name:
        return OwnerFailedError(
            f"the owner of key {key[:_LONGEST_NAME]!r} failed, in a way that cannot be read here: look into its log"
        )
    type_name = name if module == "builtins" else f"{module}.{name}"
    chain = "".join(f"\n  {link}" for link in facts.texts("chain"))
    return OwnerFailedError(
        f"the owner of key {key[:_LONGEST_NAME]!r} failed with {type_name}: {facts.text('message')}{chain}\n"
        "That exception cannot be rebuilt here; .traceback_text tells where it was raised. To get it as it is, raise "
        "a class of an imported module whose arguments are plain data",
        type_name,
        facts.text("traceback"),
    )


def _guarded(function: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - code of the user's exceptions runs in there, and may raise anything
        return otherwise


def _head(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _tail(text: str, longest: int) -> str:
    return text if len(text) <= longest else _CUT + text[len(_CUT) - longest :]


def text_of(exc: BaseException) -> str:
    """The text of an exception, whatever its ``__str__`` does."""
    text: str = _guarded(lambda: str.__str__(str(exc)), "<no text: its __str__ raised>")
    return text


def _notes(exc: BaseException) -> list[str]:
    notes = getattr(exc, "__notes__", ())
    return [_head(note, _LONGEST_LINK) for note in notes if type(note) is str][:_MOST_NOTES]


def _traceback(exc: BaseException) -> str:
    if exc.__traceback__ is None:
        return ""
    frames = "".join(traceback.format_tb(exc.__traceback__, -_MOST_FRAMES))
    return f"Traceback (most recent call last):\n{_tail(frames, _LONGEST_TEXT - 40)}"


def _chain(exc: BaseException) -> list[str]:
    """Tell causes and contexts as text, by the rules of a traceback."""
    links: list[str] = []
    seen = {id(exc)}
    while len(links) < _LONGEST_CHAIN:
        cause, context = exc.__cause__, exc.__context__
        following = cause or (None if exc.__suppress_context__ else context)
        if following is None or id(following) in seen:
            break
        word = "caused by" if cause else "while handling"
        links.append(f"{word} {type(following).__qualname__}: {_head(text_of(following), _LONGEST_LINK)}")
        seen.add(id(following))
        exc = following
    return links


def _plain_args(exc: BaseException) -> list[Any] | None:
    """Return the constructor's arguments for JSON; None if they are not all plain data."""
    args = exc.args
    if not isinstance(exc, CodecError):  # it would pickle its value here
        reduced: Any = exc.__reduce__()  # knows more than `args`: the file name of an OSError
        args = reduced[1] if reduced[0] is type(exc) else args
    plain = [_to_wire(one) for one in args]
    encoded = json.dumps(plain, allow_nan=False)
    # JSON joins two surrogates that stand apart.
    return plain if len(encoded) <= _LONGEST_ARGS and json.loads(encoded) == plain else None


def _to_wire(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        return {kind.__name__: [_to_wire(one) for one in value]}
    raise TypeError("no plain data")


def _from_wire(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    return {"list": list, "tuple": tuple}[kind](map(_from_wire, parts))
