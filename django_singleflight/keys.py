"""What a request asks of a view, and for whom: the key of its flight.

*What* is the view, the address, the language and the like. *For whom* is what tells visitors apart: by default
everything that a request carries. It enters the key as an HMAC, so that no cookie and no token stands in Redis.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import hmac
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.http.request import HttpHeaders
from django.utils import timezone, translation
from django.utils.crypto import salted_hmac

from django_singleflight import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django.http import HttpRequest

    from django_singleflight.audience import Audience

Part = str | bytes | int | None

COOKIE = "HTTP_COOKIE"
AUTHORIZATION = "HTTP_AUTHORIZATION"
REMOTE_USER = "REMOTE_USER"

IDENTIFIES_NOBODY = (
    *("Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade"),
    *(
        "X-Request-ID",
        "X-Correlation-ID",
        "X-Request-Start",
        "X-Queue-Start",
        "X-Amzn-Trace-Id",
        "X-Cloud-Trace-Context",
    ),
    *(
        "Traceparent",
        "Tracestate",
        "Sentry-Trace",
        "Uber-Trace-Id",
        "Newrelic",
        "CF-Ray",
        "Fly-Request-Id",
        "X-Vercel-Id",
    ),
    *("B3", "X-B3-TraceId", "X-B3-SpanId", "X-B3-ParentSpanId", "X-B3-Sampled", "X-B3-Flags"),
    *("X-Datadog-Trace-Id", "X-Datadog-Parent-Id", "X-Datadog-Sampling-Priority", "X-Datadog-Origin"),
)
"""Headers of the connection, of tracing and request ids; the setting ``IGNORED_HEADERS`` adds to them."""

_ASKED = frozenset({"CONTENT_TYPE", "REQUEST_METHOD", "PATH_INFO", "SCRIPT_NAME", "QUERY_STRING", "wsgi.url_scheme"})
_CONDITIONS = tuple(
    f"HTTP_{name}"
    for name in ("RANGE", "IF_MATCH", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE", "IF_RANGE")
)
_SERVER = "wsgi."
_CERTIFICATE = "SSL_CLIENT_"
_UNPREFIXED = frozenset(HttpHeaders.UNPREFIXED_HEADERS)
_PLAIN = frozenset({
    *(bool, int, float, str, bytes, type(None), decimal.Decimal, uuid.UUID),
    *(dt.date, dt.datetime, dt.time, dt.timedelta),
})  # fmt: skip
_LONGEST_TITLE = 500


class OpaqueArgumentError(TypeError):
    """Raised when a view is called with an argument that cannot stand in a key."""


class Learnt(NamedTuple):
    """What a view was seen to look at, beyond what its key held.

    Attributes:
        names: Names in ``request.META``.
        personal: It looked at the visitor's session, user, cookies or messages.
    """

    names: tuple[str, ...] = ()
    personal: bool = False

    def widened(self, names: Iterable[str], *, personal: bool) -> Learnt:
        """This and something more."""
        return Learnt(tuple(sorted({*self.names, *names})), self.personal or personal)


class Question:
    """One request, as the keys of its flights see it. Made before the view runs; changes nothing."""

    def __init__(
        self, view: str, given: Audience, request: HttpRequest, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Read the request.

        Raises:
            DisallowedHost: its host is none of ours.
            OpaqueArgumentError: an argument of the view cannot stand in a key.
            TypeError: a callable of the decorator returned what cannot stand in a key.
        """
        self._environ = dict(request.META)  # the view may write into it
        self._shared = given.shared
        self._asked = _asked_names(self._environ)
        self._vary_headers = given.headers
        method, host = request.method or "", request.get_host()
        address = _address(given.key, request, args, kwargs)
        self._title = _printable(f"view:{view} {method} {request.scheme}://{host}", str(address[1]))
        self._what = _joined([
            *(view, method, request.scheme, host, *(self._value(name) for name in _host_names())),
            self._value("CONTENT_TYPE"),  # Django reads it before the view does
            *address,
            *(translation.get_language(), timezone.get_current_timezone_name(), str(getattr(request, "urlconf", None))),
            *(self._value(name) for name in _CONDITIONS),
        ])  # fmt: skip
        varied = [*(self._value(name) for name in given.headers), *(_varied(part, request) for part in given.callables)]
        self._whom = [self._value(AUTHORIZATION), self._value(REMOTE_USER), *varied]
        self.identified = any(part not in {None, ""} for part in (self._value(COOKIE), *self._whom))
        """Whether a cookie, ``Authorization``, ``REMOTE_USER`` or a ``vary_on`` part tells visitors apart."""

    @functools.cached_property
    def what(self) -> str:
        """Digest of what is asked, whoever asks."""
        return _digest("what", [self._what])

    @functools.cached_property
    def whom(self) -> str:
        """Digest of all that this request carries of its visitor: two with the same look the same."""
        return _digest("whom", [_joined(self._whom), *self._everything()])

    def key(self, learnt: Learnt = Learnt()) -> str:  # noqa: B008 - immutable
        """The key of the flight of all who may share an answer that depends on no more than what is ``learnt``."""
        whom = self.whom if self.is_whole(learnt) else _joined(self._whom)
        return f"{self._title} {_digest('key', [self._what, whom, self.values(learnt.names)])}"

    def values(self, names: Iterable[str]) -> str:
        """Digest of this request's own values of names in ``request.META``."""
        return _digest("values", [part for name in names for part in (name, self._value(name))])

    def seal(self, text: str) -> str:
        """A digest of what must not stand in Redis itself."""
        return _digest("seal", [text])

    def covers(self, name: str, learnt: Learnt) -> bool:
        """Whether the value of a name in ``request.META`` is the same for all who have this key."""
        if name in self._asked or name.startswith(_SERVER):
            return True
        if name in {AUTHORIZATION, REMOTE_USER} or name in self._vary_headers or name in learnt.names:
            return True
        return self.is_whole(learnt) and _tells_whom(name, _ignored(limits.ignored_headers()))

    def is_whole(self, learnt: Learnt) -> bool:
        """Whether all who have this key look the same, so that nothing more need be learnt of the visitor."""
        return learnt.personal or not self._shared

    def _everything(self) -> Iterable[Part]:
        ignored = _ignored(limits.ignored_headers())
        for name in sorted(self._environ):
            if _tells_whom(name, ignored):
                yield name
                yield self._value(name)

    def _value(self, name: str) -> str | None:
        value = self._environ.get(name)
        return value if value is None or isinstance(value, str) else str(value)


def wsgi_name(header: str) -> str:
    """The name of a header in ``request.META``."""
    name: str = HttpHeaders.to_wsgi_name(header.strip())
    return name


def _tells_whom(name: str, ignored: frozenset[str]) -> bool:
    is_header = name.startswith("HTTP_") or name in _UNPREFIXED
    return (is_header and name not in ignored) or name.startswith(_CERTIFICATE)


@functools.lru_cache(maxsize=8)
def _ignored(more: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(wsgi_name, (*IDENTIFIES_NOBODY, *more)))


def _host_names() -> list[str]:
    """What ``get_host`` and ``scheme`` are made of, besides the ``Host`` header alone."""
    names = []
    if settings.USE_X_FORWARDED_HOST:
        names += ["HTTP_HOST", "HTTP_X_FORWARDED_HOST"]
    if settings.USE_X_FORWARDED_PORT:
        names.append("HTTP_X_FORWARDED_PORT")
    if settings.SECURE_PROXY_SSL_HEADER:
        names.append(settings.SECURE_PROXY_SSL_HEADER[0])
    return names


def _asked_names(environ: Mapping[str, Any]) -> frozenset[str]:
    host = ["HTTP_HOST"] if "HTTP_HOST" in environ else ["HTTP_HOST", "SERVER_NAME", "SERVER_PORT"]
    return _ASKED.union(_CONDITIONS, _host_names(), host)


def _address(
    key: Callable[..., Any] | None, request: HttpRequest, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> list[Part]:
    """The address and the view's arguments; the one thing that ``key`` replaces."""
    if key is None:
        arguments = [_plain(value) for value in args] + [
            f"{name}={_plain(value)}" for name, value in sorted(kwargs.items())
        ]
        query = request.META.get("QUERY_STRING", "")
        return [
            "path",
            request.get_full_path(),
            request.path_info,
            request.META.get("SCRIPT_NAME", ""),
            query,
            *arguments,
        ]
    chosen = key(request, *args, **kwargs)
    if not isinstance(chosen, str):
        raise TypeError(f"key={key!r} returned a {type(chosen).__name__}: it must return a str")
    return ["key", chosen]


def _plain(value: Any) -> str:
    if type(value) in {tuple, list}:
        return f"{type(value).__name__}({','.join(map(_plain, value))})"
    if type(value) not in _PLAIN:
        raise OpaqueArgumentError(f"an argument of type {type(value).__qualname__} cannot stand in a key: pass key=...")
    return f"{type(value).__name__}:{value!r}"


def _varied(part: Callable[[Any], Any], request: HttpRequest) -> str | int | None:
    value = part(request)
    if value is not None and not isinstance(value, (str, int)):
        raise TypeError(f"vary_on={part!r} returned a {type(value).__name__}: it must return a str, an int or None")
    return value


def _joined(parts: Iterable[Part]) -> bytes:
    """Join so that no two lists of parts give the same bytes."""
    return b"".join(map(_encoded, parts))


def _encoded(part: Part) -> bytes:
    if part is None:
        return b"-"
    if isinstance(part, str):
        content = part.encode("utf-8", "surrogatepass")
        return b"s%d:%s" % (len(content), content)
    if isinstance(part, bytes):
        return b"b%d:%s" % (len(part), part)
    return b"i%s:" % str(part).encode()


def secret_of(purpose: str) -> bytes:
    """A secret for one purpose, derived from ``SECRET_KEY``."""
    return _derived(settings.SECRET_KEY, purpose)


@functools.lru_cache(maxsize=32)
def _derived(secret: str | bytes, purpose: str) -> bytes:
    made: bytes = salted_hmac("django_singleflight.views", purpose, secret=secret, algorithm="sha256").digest()
    return made


def _digest(purpose: str, parts: Iterable[Part]) -> str:
    return hmac.digest(secret_of(purpose), _joined(parts), "sha256").hex()[:40]


def _printable(start: str, address: str) -> str:
    """The part of a key that people read; what is cut off stands in the digest."""
    if len(address) > _LONGEST_TITLE:
        address = f"{address[:_LONGEST_TITLE]}..."
    return f"{start}{address}".encode("utf-8", "replace").decode()
