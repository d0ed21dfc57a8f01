"""Codecs: how a value becomes bytes and comes back the same, or is refused.

A codec is two methods, ``dumps(value) -> bytes`` and ``loads(bytes) -> value``. The codecs here are
thread-safe. Their bytes begin differently, so that each of them refuses what another one wrote.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import hmac
import importlib
import io
import itertools
import json
import pickle
import reprlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from singleflight_sync.errors import CodecError, ConfigurationError

_IMMUTABLE = frozenset({str, bytes, int, float, bool, type(None), complex})
_TEXT = frozenset({str})
_JSON_LEAVES = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = (dict, list, tuple, set, frozenset)
_CBOR_LEAVES = (type(None), int, float, str, bytes, dt.date, decimal.Decimal, uuid.UUID)
_DEEPEST = 200  # levels of containers
_CHUNK = 256 * 1024
_LONGEST_PLACE = 300
_DEEPEST_PLACE = 100

_brief_repr = reprlib.Repr()
_brief_repr.maxstring = _brief_repr.maxother = 120
_brief = _brief_repr.repr


class Codec(Protocol):
    """What a group needs to share values. Both methods are called from many threads at once."""

    def dumps(self, value: Any, /) -> bytes:
        """Encode ``value``; raise ``CodecError`` if it would not come back the same."""
        ...

    def loads(self, data: bytes, /) -> Any:
        """Decode ``data``; raise ``CodecError`` if `dumps` did not make it."""
        ...


def is_immutable(value: object) -> bool:
    """Return whether ``value`` can be handed to several callers without a copy."""
    return type(value) in _IMMUTABLE


class JSONCodec:
    """JSON, with ``str`` and ``bytes`` as they are; refuses what JSON would change. Thread-safe."""

    # The first byte tells the form: s = text, b = bytes, j = JSON.

    def dumps(self, value: Any, /) -> bytes:
        """Encode ``value``.

        Raises:
            CodecError: A part of the value would be changed or lost; the message names the place.
        """
        if type(value) is str:
            return _text_bytes(value)
        if type(value) is bytes:
            return b"b" + value
        try:
            if _is_plain(value, _DEEPEST - 1):
                return _json_bytes(value)
        except (ValueError, RecursionError):
            pass  # the search below finds the place
        raise _refusal(value, _json_copy, "`CBORCodec` or `PickleCodec`")

    def loads(self, data: bytes, /) -> Any:
        """Decode ``data``.

        Raises:
            CodecError: `dumps` did not make these bytes, or not all of them are there.
        """
        form, content = data[:1], memoryview(data)[1:]
        try:
            if form == b"b":
                return bytes(content)
            if form == b"s":
                return str(content, "utf-8", "surrogatepass")
            if form == b"j":
                return _json_value(content)
        except (ValueError, RecursionError) as error:
            raise _unreadable("JSONCodec", error) from error
        raise _unreadable("JSONCodec", "unknown first byte")


class CBORCodec:
    """CBOR (RFC 8949) by way of cbor2: what JSON holds, bytes, dates, decimals, UUIDs and sets.

    Keys may be of any of these types. Refuses what would come back as something else. Thread-safe.

    Raises:
        ConfigurationError: cbor2 is not installed.
    """

    # The tag "what follows is CBOR" of the standard: tells these bytes from those of other codecs.
    _MARK = b"\xd9\xd9\xf7"

    def __init__(self) -> None:
        try:
            self._cbor2: Any = importlib.import_module("cbor2")
        except ImportError as error:
            raise ConfigurationError("CBORCodec needs cbor2: pip install 'singleflight-sync[cbor]'") from error

    def dumps(self, value: Any, /) -> bytes:
        """Encode ``value``.

        Raises:
            CodecError: A part of the value would be changed or lost; the message names the place.
        """
        try:
            data: bytes = self._encoded(value)
            if _same(value, self._cbor2.loads(data)):
                return self._MARK + data
        except Exception:  # noqa: BLE001, S110 - of many kinds; the search below finds the place
            pass
        raise _refusal(value, self._copy, "`PickleCodec`")

    def loads(self, data: bytes, /) -> Any:
        """Decode ``data``.

        Raises:
            CodecError: `dumps` did not make these bytes, or not all of them are there.
        """
        if not data.startswith(self._MARK):
            raise _unreadable("CBORCodec", "no CBOR mark")
        try:
            return self._cbor2.loads(data[len(self._MARK) :])
        except Exception as error:
            raise _unreadable("CBORCodec", error) from error

    def _encoded(self, value: Any) -> Any:
        _check(value, _CBOR_LEAVES, _DEEPEST)
        return self._cbor2.dumps(value)

    def _copy(self, value: Any) -> Any:
        return self._cbor2.loads(self._encoded(value))


class PickleCodec:
    """Pickle, signed: bytes that were not made with a secret of ours are never unpickled. Thread-safe.

    Whoever knows a secret can run code in every process that reads.

    Args:
        secret: Signs what is written; any non-empty text or bytes, better 32 random bytes.
        fallbacks: Older secrets that are still accepted for reading.

    Raises:
        ConfigurationError: A secret is empty or of another type.
    """

    _FORM = b"P"
    _SIGNATURE_END = 1 + hashlib.sha256().digest_size

    def __init__(self, secret: str | bytes, fallbacks: Iterable[str | bytes] = ()) -> None:
        if isinstance(fallbacks, (str, bytes)):
            raise ConfigurationError("fallbacks must be a list of secrets, not one secret")
        self._signing_key = _signing_key(secret)
        self._reading_keys = (self._signing_key, *map(_signing_key, fallbacks))

    def dumps(self, value: Any, /) -> bytes:
        """Encode ``value``.

        Raises:
            CodecError: The value cannot be pickled.
        """
        try:
            content = pickle.dumps(value, protocol=5)
        except Exception as error:
            message = f"{_a(value)} cannot be pickled ({_brief(error)}): return plain data"
            raise CodecError(message, value) from error
        return b"".join((self._FORM, self._signature(self._signing_key, content), content))

    def loads(self, data: bytes, /) -> Any:
        """Decode ``data``.

        Raises:
            CodecError: The bytes were not signed with a secret of ours, or cannot be unpickled here.
        """
        signature, content = data[1 : self._SIGNATURE_END], memoryview(data)[self._SIGNATURE_END :]
        if data[:1] != self._FORM or not self._is_ours(signature, content):
            raise _unreadable("PickleCodec", "not signed with a secret of ours")
        try:
            return pickle.loads(content)  # noqa: S301 - signed by us
        except Exception as error:
            raise _unreadable("PickleCodec", error) from error

    def _is_ours(self, signature: bytes, content: memoryview) -> bool:
        return any(hmac.compare_digest(signature, self._signature(key, content)) for key in self._reading_keys)

    def _signature(self, key: bytes, content: bytes | memoryview) -> bytes:
        return hmac.digest(key, content, "sha256")


def _signing_key(secret: object) -> bytes:
    """Derive a key of this purpose alone, so that the secret may sign other things elsewhere."""
    if not isinstance(secret, (str, bytes)) or not secret:
        raise ConfigurationError("PickleCodec needs a secret: a non-empty str or bytes")
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    return hmac.digest(raw, b"singleflight_sync.PickleCodec", "sha256")


def _text_bytes(text: str) -> bytes:
    if len(text) <= _CHUNK:
        return b"s" + text.encode("utf-8", "surrogatepass")
    # In pieces, as the line above would hold a large text in memory three times.
    buffer = io.BytesIO()
    buffer.write(b"s")
    for start in range(0, len(text), _CHUNK):
        buffer.write(text[start : start + _CHUNK].encode("utf-8", "surrogatepass"))
    return buffer.getvalue()


def _is_plain(value: Any, levels: int) -> bool:
    """Return whether only JSON's own types are there, exactly: its encoder takes subclasses too."""
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        parts = value.values()
    elif kind is list:
        parts = value
    else:
        return kind in _JSON_LEAVES
    for part in parts:  # noqa: SIM110 - `all` would cost stack at each level
        if type(part) not in _JSON_LEAVES and not (levels and _is_plain(part, levels - 1)):
            return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _int_of_any_size(digits: str) -> int:
    return int(decimal.Decimal(digits))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_decode_large = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_int_of_any_size).decode


def _json_bytes(value: object) -> bytes:
    try:
        text = _encode(value)
    except ValueError:
        text = _large_json(value)
    return f"j{text}".encode("utf-8", "surrogatepass")


def _large_json(value: object) -> str:
    # Python limits how many digits of an integer it writes or reads; decimal does not.
    if type(value) is dict:
        entries = (f"{_encode(key)}:{_large_json(part)}" for key, part in value.items())
        return f"{{{','.join(entries)}}}"
    if type(value) is list:
        return f"[{','.join(map(_large_json, value))}]"
    return str(decimal.Decimal(value)) if type(value) is int else _encode(value)


def _json_value(content: memoryview) -> Any:
    text = str(content, "utf-8", "surrogatepass")
    try:
        return _decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _decode_large(text)


def _json_copy(value: Any) -> Any:
    _check(value, object, _DEEPEST)
    return _json_value(memoryview(_json_bytes(value))[1:])


def _check(value: Any, leaves: type | tuple[type, ...], levels: int) -> None:
    """Raise for what is too deep: some encoders crash on it, and a reader with less stack could not read it."""
    if isinstance(value, _CONTAINERS):
        if not levels:
            raise RecursionError
        for part in itertools.chain(value, value.values()) if isinstance(value, dict) else value:
            _check(part, leaves, levels - 1)
    elif not isinstance(value, leaves):
        raise TypeError("not among the types of this codec")


def _same(value: Any, copy: Any) -> bool:
    """Return whether ``copy`` equals ``value`` in its types too, down to the last part."""
    kind = type(value)
    if kind is not type(copy):
        return False
    if kind is str or kind is bytes or kind is int:
        return bool(value == copy)
    if kind is list or kind is tuple:
        return len(value) == len(copy) and all(map(_same, value, copy))
    if kind is dict:
        return _same(list(value), list(copy)) and _same(list(value.values()), list(copy.values()))
    if kind is set or kind is frozenset:
        found = {part: part for part in copy}
        return bool(value == copy) and all(_same(part, found[part]) for part in value)
    # The text shows what equality hides: the sign of a zero, a time zone.
    return repr(value) == repr(copy) and (kind is float or bool(value == copy))


def _refusal(value: Any, copy: Callable[[Any], Any], other_codecs: str) -> CodecError:
    place, part = _culprit(value, copy)
    shown = place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}..."
    return CodecError(f"{_loss(part, f'`{shown}`', copy)}, or use {other_codecs}", value)


def _culprit(value: Any, copy: Callable[[Any], Any]) -> tuple[str, Any]:
    """Walk down to the innermost part that does not survive ``copy``; return its place too."""
    place, part = "$", value
    for _ in range(_DEEPEST_PLACE):  # what contains itself has no end
        for step, child in _children(part):
            if not _survives(child, copy):
                place, part = place + step, child
                break
        else:
            break
    return place, part


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    if type(part) is list:
        yield from ((f"[{index}]", child) for index, child in enumerate(part))
    elif type(part) is dict:
        for key, child in part.items():
            plain = type(key) is str and key.isidentifier() and len(key) <= _LONGEST_PLACE
            yield (f".{key}" if plain else f"[{_brief(key)}]"), child


def _survives(part: Any, copy: Callable[[Any], Any]) -> bool:
    try:
        return _same(part, copy(part))
    except Exception:  # noqa: BLE001 - a part that raises does not survive, whatever it raises
        return False


def _loss(part: Any, place: str, copy: Callable[[Any], Any]) -> str:
    try:
        changed = copy(part)
    except RecursionError:
        return f"{_a(part)} at {place} is nested too deeply or contains itself: return plain data"
    except Exception as error:  # noqa: BLE001 - told to the caller
        return f"{_a(part)} at {place} cannot be encoded ({_brief(error)}): return plain data"
    if type(part) is dict:
        for key, other in zip(part, changed, strict=False):
            if not _same(key, other):
                return f"{_a(key)} key at {place} would come back as {_a(other)}: use str keys"
    if type(part) is type(changed):
        return f"{_a(part)} at {place} would come back as {_brief(changed)}: return that"
    return f"{_a(part)} at {place} would come back as {_a(changed)}: return {_a(changed)}"


def _a(part: object) -> str:
    kind = type(part).__qualname__
    return f"an {kind}" if kind[0] in "aeioAEIO" else f"a {kind}"


def _unreadable(codec: str, why: object) -> CodecError:
    shown = why if isinstance(why, str) else _brief(why)
    cause = "another codec or secret made them, or they are damaged"
    return CodecError(f"{codec} cannot read these bytes ({shown}): {cause}")
