"""The copy of an answer that travels: signed, bound to its key, and without a pickle."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from django.http import HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect, JsonResponse

from django_singleflight.keys import Learnt, secret_of
from singleflight_sync import CodecError

if TYPE_CHECKING:
    from singleflight_sync import Codec

_FORM = b"V1"
_SIGNATURE = hashlib.sha256().digest_size
_HEAD = 4  # bytes that hold the length of the facts
_START = len(_FORM) + _SIGNATURE + _HEAD

_CLASSES = {
    "redirect": HttpResponseRedirect,
    "permanent": HttpResponsePermanentRedirect,
    "json": JsonResponse,
    "plain": HttpResponse,
}
"""Classes that are restored; the first of which a response is an instance. Anything else becomes a plain response."""

_ATTRIBUTES = ("xframe_options_exempt", "_csp_config", "_csp_ro_config")
"""What Django's own decorators leave on a response for middleware to find."""


class Terms(NamedTuple):
    """Who may have what is in the envelope.

    Attributes:
        whom: Digest of all that tells who it is for; ``""``: anybody.
        user: Who must be signed in; ``""``: no matter.
        names: Names in ``request.META`` whose values must be the owner's.
        values: Digest of these.
        looked: What of the visitor the view has looked at.
    """

    whom: str = ""
    user: str = ""
    names: tuple[str, ...] = ()
    values: str = ""
    looked: tuple[str, ...] = ()


class Page(NamedTuple):
    """A response.

    Attributes:
        language: The one that the view has activated, or ``""``.
    """

    terms: Terms
    kind: str
    status: int
    reason: str | None
    charset: str | None
    headers: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    language: str
    body: bytes


class Crash(NamedTuple):
    """An exception, as `singleflight_sync.describe_error` tells it."""

    terms: Terms
    error: bytes


class Refusal(NamedTuple):
    """The answer is not for others. ``reason``: one of `sharing.REASONS`."""

    reason: str


Envelope: TypeAlias = Page | Crash | Refusal | Learnt
"""`Learnt`: ask again, under a key that holds more."""


class EnvelopeCodec:
    """Encodes envelopes for one key. Thread-safe."""

    def __init__(self, key: str) -> None:
        """``key``: that of the flight; what was signed for another one cannot be read."""
        self._key = key.encode("utf-8", "surrogatepass")

    def dumps(self, value: Any, /) -> bytes:
        """Encode an envelope.

        Raises:
            CodecError: an attribute of the response is no plain data.
        """
        facts, body = _facts(value)
        try:
            head = json.dumps([type(value).__name__, *facts], default=_list_of).encode()
        except (TypeError, ValueError) as exc:
            raise CodecError(f"the response cannot be copied: {exc}", value) from exc
        content = b"%s%s" % (len(head).to_bytes(_HEAD, "big"), head)
        return b"".join((_FORM, self._signature(content, body), content, body))

    def loads(self, data: bytes, /) -> Envelope:
        """Decode an envelope.

        Raises:
            CodecError: it was not signed with our secret, or for another key.
        """
        view = memoryview(data)
        signature, content = view[len(_FORM) : len(_FORM) + _SIGNATURE], view[len(_FORM) + _SIGNATURE :]
        if view[: len(_FORM)] != _FORM or not hmac.compare_digest(signature, self._signature(content)):
            raise CodecError("not signed with SECRET_KEY for this key")
        end = _START + int.from_bytes(view[_START - _HEAD : _START], "big")
        return _envelope(json.loads(bytes(view[_START:end])), bytes(view[end:]))

    def _signature(self, *parts: bytes | memoryview) -> bytes:
        signer = hmac.new(secret_of("envelope"), b"%d:%s" % (len(self._key), self._key), "sha256")
        for part in parts:
            signer.update(part)
        return signer.digest()


def page(response: HttpResponse, terms: Terms, language: str) -> Page:
    """Copy a finished response."""
    fields = response.__dict__
    return Page(
        terms=terms,
        kind=next(name for name, kind in _CLASSES.items() if isinstance(response, kind)),
        status=response.status_code,
        reason=fields.get("_reason_phrase"),
        charset=fields.get("_charset"),
        headers=tuple(response.headers.items()),
        attributes={name: fields[name] for name in _ATTRIBUTES if name in fields},
        language=language,
        body=response.content,
    )


def response_of(copy: Page) -> HttpResponse:
    """A new response, equal to the copied one."""
    kind = _CLASSES[copy.kind]
    response = kind.__new__(kind)
    headers = dict(copy.headers)
    # The constructors of the subclasses take other arguments.
    HttpResponse.__init__(
        response, copy.body, status=copy.status, reason=copy.reason, charset=copy.charset, headers=headers
    )
    if "content-type" not in map(str.lower, headers):
        del response.headers["Content-Type"]
    response.__dict__.update(copy.attributes)
    return response


def is_copyable(copy: Page) -> bool:
    """Whether its attributes are plain data."""
    try:
        json.dumps(copy.attributes, default=_list_of)
    except (TypeError, ValueError):
        return False
    return True


def _facts(value: Envelope) -> tuple[list[Any], bytes]:
    if isinstance(value, Page):
        return list(value[:-1]), value.body
    if isinstance(value, Crash):
        return [value.terms], value.error
    return list(value), b""


def _envelope(facts: list[Any], body: bytes) -> Envelope:
    kind, *rest = facts
    if kind == Page.__name__:
        terms, *fields, headers, attributes, language = rest
        copied: Any = (tuple(map(tuple, headers)), attributes, language, body)
        return Page(_terms(terms), *fields, *copied)
    if kind == Crash.__name__:
        return Crash(_terms(rest[0]), body)
    if kind == Refusal.__name__:
        return Refusal(*rest)
    names, personal = rest
    return Learnt(tuple(names), personal)


def _terms(facts: list[Any]) -> Terms:
    whom, user, names, values, looked = facts
    return Terms(whom, user, tuple(names), values, tuple(looked))


def _list_of(value: Any) -> list[Any]:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} is no plain data")


if TYPE_CHECKING:
    _: type[Codec] = EnvelopeCodec
