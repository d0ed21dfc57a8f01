"""Keys: what may be one, how it is named in Redis, and how the decorator makes one from a call.

Different keys never meet in Redis, and different calls never share a key.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import hashlib
import inspect
import json
import re
import string
import sys
import unicodedata
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from singleflight_sync.errors import ConfigurationError

KeyMaker = Callable[[Sequence[Any], Mapping[str, Any]], str]

_CACHE_SIZE = 1024
_LONGEST_DECIMAL = 1024  # bits
_quote = json.JSONEncoder(ensure_ascii=False).encode
_PLAIN_KEY = re.compile(r"[!-z|~]{1,200}")  # printable ASCII without space and braces


def check_key(key: object) -> str:
    """Return ``key`` as an exact ``str``.

    Raises:
        TypeError: Not a ``str``.
        ConfigurationError: Empty, or holds a lone surrogate, which has no encoding.
    """
    if not isinstance(key, str):
        remedy = "decode it" if isinstance(key, bytes) else "write it into a string such as 'report:42'"
        message = f"a key must be a str, not {type(key).__name__}: {remedy}"
        raise TypeError(message)
    if not key:
        message = "a key must not be empty: name what is computed, such as 'report:42'"
        raise ConfigurationError(message)
    if not _encodable(key):
        message = f"key {key[:200]!r} holds a lone surrogate, which has no encoding: decode its source as valid UTF-8"
        raise ConfigurationError(message)
    return str.__str__(key)


def check_namespace(namespace: object) -> str:
    """Return ``namespace`` as an exact ``str``.

    Raises:
        ConfigurationError: Not a ``str``, empty, or with braces, control characters or lone surrogates.
    """
    if (
        not isinstance(namespace, str)
        or not namespace
        or not _encodable(namespace)
        or any(char in "{}" or unicodedata.category(char) == "Cc" for char in namespace)
    ):
        message = (
            f"namespace {namespace!r} cannot be used: give a non-empty str without braces and control characters, "
            "such as 'ai:flight'"
        )
        raise ConfigurationError(message)
    return str.__str__(namespace)


class Names(NamedTuple):
    """A key, the tag that stands for it between the braces, and its Redis names."""

    key: str
    tag: str
    result: bytes
    meta: bytes
    stream: bytes


class Namespace:
    """Makes the Redis names under one prefix. Thread-safe.

    Attributes:
        name: The prefix.
        owner_seq: Redis name of the dispenser of fencing tokens.
        live: Redis name of the index of live flights.
    """

    def __init__(self, name: str) -> None:
        """Use ``name`` as the prefix.

        Raises:
            ConfigurationError: ``name`` cannot be a namespace.
        """
        self.name = check_namespace(name)
        self.owner_seq = f"{name}:owner-seq".encode()
        self.live = f"{name}:live".encode()
        self._cached = functools.lru_cache(maxsize=_CACHE_SIZE)(self._names)

    def names(self, key: str) -> Names:
        """Return the Redis names of ``key``.

        Raises:
            TypeError: ``key`` is not a ``str``.
            ConfigurationError: ``key`` cannot be a key.
        """
        # Only exact strings reach the cache: it would meet others by their own idea of equality.
        return self._cached(key if type(key) is str else check_key(key))

    def meta(self, tag: str) -> bytes:
        """Return the Redis name of the meta hash of ``tag``."""
        return f"{self.name}:meta:{{{tag}}}".encode()

    def _names(self, key: str) -> Names:
        tag = _tag(check_key(key))
        return Names(
            key=key,
            tag=tag,
            result=f"{self.name}:result:{{{tag}}}".encode(),
            meta=self.meta(tag),
            stream=f"{self.name}:stream:{{{tag}}}".encode(),
        )


def key_of_call(function: Callable[..., Any]) -> KeyMaker:
    """Return what makes the default key of a call: module, qualified name and typed arguments.

    An argument by position and the same one by name make the same key; ``1``, ``True``, ``1.0`` and ``"1"`` make four.
    What a function inside another function captures from it is no part of the key.

    Raises:
        ConfigurationError: The function has no name or signature that tells it from others.

    The returned function raises ``TypeError`` for an argument whose type has no unambiguous text.
    """
    name = _function_name(function)
    bind = _binder(_signature(function))

    def make(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        parts = [f"{parameter}={_argument(name, parameter, value)}" for parameter, value in bind(args, kwargs).items()]
        return f"{name}({', '.join(parts)})"

    return make


def key_from_template(function: Callable[..., Any], template: str) -> KeyMaker:
    """Return what formats ``template`` with the arguments of a call, by name.

    The text is the caller's choice: ``1`` and ``"1"`` make the same key here.

    Raises:
        ConfigurationError: ``template`` is no valid format, or names anything but a parameter of ``function``.

    The returned function raises ``TypeError`` for an argument whose text is only its address in memory.
    """
    signature = _signature(function)
    used = _fields(template)
    for field in used:
        if field not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            message = f"key {template!r} has the field {{{field}}}: use the plain names of the parameters ({known})"
            raise ConfigurationError(message)

    bind = _binder(signature)

    def make(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        arguments = bind(args, kwargs)
        for field in used:
            _refuse_address(field, arguments[field])
        return template.format_map(arguments)

    return make


def _encodable(text: str) -> bool:
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def _tag(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    # The space is in no plain key, so that no plain key is ever the tag of another one.
    return f"sha256 {hashlib.sha256(key.encode()).hexdigest()}"


def _function_name(function: Callable[..., Any]) -> str:
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "<lambda>")
    if not module or "<lambda>" in qualname or inspect.ismethod(function):
        message = f"{function!r} has no name that tells it from others of its kind: give key="
        raise ConfigurationError(message)
    return f"{_module_name(module)}:{qualname}"


def _module_name(name: str) -> str:
    """Tell scripts apart, which all run as ``__main__`` (``__mp_main__`` in a process that multiprocessing spawned)."""
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec else f"__main__ {getattr(main, '__file__', '')}".rstrip()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        message = f"{function!r} does not tell its parameters: give key= as a callable"
        raise ConfigurationError(message) from error


def _binder(signature: inspect.Signature) -> Callable[[Sequence[Any], Mapping[str, Any]], Mapping[str, Any]]:
    """Return what maps a call to its arguments, defaults included, in the order of the signature."""
    names = tuple(signature.parameters)
    defaults = {one.name: one.default for one in signature.parameters.values() if one.default is not one.empty}
    simple = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in signature.parameters.values())

    def bind(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if simple and len(args) <= len(names):
            # Most calls end here, in a quarter of the time that `Signature.bind` takes; it raises what is wrong.
            given = dict(zip(names, args, strict=False))
            arguments = {**defaults, **given, **kwargs}
            if arguments.keys() == signature.parameters.keys() and given.keys().isdisjoint(kwargs):
                return {name: arguments[name] for name in names}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    return bind


def _fields(template: str) -> list[str]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        message = f"key {template!r} is no valid format string: {error}"
        raise ConfigurationError(message) from error
    for _, field, spec, conversion in parsed:
        if conversion or "{" in (spec or ""):
            message = f"key {template!r}: write the field {{{field}}} without a conversion and without braces inside"
            raise ConfigurationError(message)
    return [field for _, field, _, _ in parsed if field is not None]


def _refuse_address(field: str, value: object) -> None:
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__ and kind.__format__ is object.__format__:
        message = f"argument {field!r} is a {kind.__qualname__}, whose text is its address: give key= as a callable"
        raise TypeError(message)


class _NoText(Exception):  # noqa: N818 - never leaves this module
    """Carries the value that has no unambiguous text."""


def _argument(function: str, parameter: str, value: object) -> str:
    try:
        return _text(value)
    except _NoText as refusal:
        culprit = type(refusal.args[0])
    except RecursionError:
        message = f"argument {parameter!r} of {function} is nested too deeply for a key: give key="
        raise TypeError(message) from None
    if _is_http_request(culprit):
        remedy = "for a view use django_singleflight.single_flight"
    else:
        remedy = "give key= as a template or a callable"
    message = (
        f"argument {parameter!r} of {function} holds a {culprit.__qualname__}, which has no unambiguous text: {remedy}"
    )
    raise TypeError(message)


def refuse_requests(function: Callable[..., Any], args: Sequence[object]) -> None:
    """Refuse a Django request among the arguments: what a view returns must not be shared like a plain value.

    Raises:
        TypeError: There is one.
    """
    for value in args:
        if _is_http_request(type(value)):
            message = f"{function!r} is called with a request: for a view use django_singleflight.single_flight"
            raise TypeError(message)


def _is_http_request(kind: type) -> bool:
    return any(base.__module__.startswith("django.http") and base.__name__ == "HttpRequest" for base in kind.__mro__)


def _text(value: object) -> str:
    """Write a value so that no other value has the same text.

    Every text begins differently by type, and strings, the only texts with free content, are quoted.
    """
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value)
    if isinstance(value, enum.Enum):
        return _enum_text(value)
    raise _NoText(value)


def _int_text(value: int) -> str:
    # Python limits the decimal digits of very large numbers, never the hexadecimal ones.
    return str(value) if value.bit_length() <= _LONGEST_DECIMAL else hex(value)


def _str_text(value: str) -> str:
    # JSON doubles each backslash, so that the escapes of lone surrogates cannot be mistaken for text. `repr` would
    # do as well, but differs between Python versions.
    text = _quote(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _time_text(value: dt.datetime | dt.time) -> str:
    # The zone itself too, as zones that agree now need not agree later; and the fold, which a naive time hides.
    zone = "" if value.tzinfo is None else f" {_str_text(str(value.tzinfo))}"
    return f"{type(value).__name__}({value.isoformat()}{' fold' * value.fold}{zone})"


def _enum_text(value: enum.Enum) -> str:
    kind = type(value)
    # Combined flags have no member of their own.
    member = value.name if value.name in kind.__members__ else value.value
    return f"Enum({_str_text(f'{_module_name(kind.__module__)}:{kind.__qualname__}')}, {_text(member)})"


def _joined(values: Any) -> str:
    return ", ".join(map(_text, values))


def _dict_text(value: dict[Any, Any]) -> str:
    return f"{{{', '.join(sorted(f'{_text(key)}: {_text(one)}' for key, one in value.items()))}}}"


def _set_text(value: set[Any] | frozenset[Any]) -> str:
    return f"{type(value).__name__}({', '.join(sorted(map(_text, value)))})"


_WRITERS: dict[type, Callable[[Any], str]] = {
    type(None): str,
    bool: str,
    int: _int_text,
    float: repr,
    str: _str_text,
    bytes: repr,
    dt.date: "date({})".format,
    dt.datetime: _time_text,
    dt.time: _time_text,
    dt.timedelta: repr,
    # Upper case, as the case of the exponent depends on the thread's decimal context.
    decimal.Decimal: lambda value: f"Decimal({str(value).upper()})",
    uuid.UUID: "UUID({})".format,
    tuple: lambda value: f"({_joined(value)},)",
    list: lambda value: f"[{_joined(value)}]",
    dict: _dict_text,
    set: _set_text,
    frozenset: _set_text,
}
