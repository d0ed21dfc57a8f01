"""What a view looks at while it runs: the request is watched, and is as it was afterwards.

Session, user, cookies, messages and the nonce of the content security policy stand behind objects that note the
first look; ``request.META`` and ``request.headers`` note the names that are looked up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.http.request import HttpHeaders
from django.utils.functional import SimpleLazyObject, cached_property, new_method_proxy

from django_singleflight.keys import COOKIE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from django.http import HttpRequest

logger = logging.getLogger("django_singleflight")

_BEHIND = {
    "session": "session",
    "user": "user",
    "_cached_user": "user",
    "_acached_user": "user",
    "_messages": "messages",
    "_csp_nonce": "nonce",
    "csp_nonce": "nonce",
}
"""Attributes of a request, and what a look at them is a look at."""

_DERIVED = ("headers", "accepted_types", "accepted_types_by_precedence")
"""Properties that Django keeps once they were asked for; meanwhile they are made anew, from what is watched."""

_SECRET, _NEEDS_UPDATE, _IN_SESSION = "CSRF_COOKIE", "CSRF_COOKIE_NEEDS_UPDATE", "_csrftoken"


class Seen(NamedTuple):
    """What a view has looked at.

    Attributes:
        looked: Of the visitor: ``"session"``, ``"user"``, ``"cookies"``, ``"messages"``, ``"csrf"``.
        names: Names in ``request.META`` that its key does not cover, in order.
        changed: ``"session"``, ``"messages"``, ``"csrf"`` or ``"nonce"``, what it changed for the visitor; or ``""``.
        whole: It went through all of ``request.META`` or ``request.headers``, or read what is no text there.
        user: Who the visitor was, where it looked at the user; else ``""``.
        signed_in: It saw a user who is signed in.
    """

    looked: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    changed: str = ""
    whole: bool = False
    user: str = ""
    signed_in: bool = False


class Watch:
    """Watches one request inside a ``with`` block. Used by one thread."""

    def __init__(self, request: HttpRequest, covers: Callable[[str], bool]) -> None:
        """``covers``: whether a name in ``request.META`` is the same for all who have the view's key."""
        self._request = request
        self._fields: dict[str, Any] = request.__dict__
        self._covers = covers
        self._looked: set[str] = set()
        self._names: set[str] = set()
        self._whole = False
        self._originals: dict[str, Any] = {}
        self._watched: dict[str, Any] = {}
        self._session_was: tuple[bool, Any] | None = None
        self._csrf_was: tuple[Any, Any] = (None, None)

    def __enter__(self) -> Watch:
        fields = self._fields
        cookies, environ = self._request.COOKIES, self._request.META
        for name in _BEHIND:
            if fields.get(name) is not None:
                self._watched[name] = self._stand_in(name, fields[name])
        self._watched["COOKIES"] = _NotedDict(cookies, lambda _: self._look("cookies"), lambda: self._look("cookies"))
        self._csrf_was = environ.get(_SECRET), environ.get(_NEEDS_UPDATE)
        watched = _Environ(environ, self._look_up, self._look_at_all)
        dict.pop(watched, _NEEDS_UPDATE, None)
        self._watched["META"] = watched
        if fields.get("environ") is environ:
            self._watched["environ"] = watched
        self._watched["headers"] = _Headers(environ, self._look_up, self._look_at_all)
        self._originals = {name: fields.pop(name) for name in (*self._watched, *_DERIVED) if name in fields}
        fields.update(self._watched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.seen = self._summary()
        except Exception:
            logger.exception("what a view has looked at cannot be told, so that its answer is not shared")
            self.seen = Seen(whole=True)
        finally:
            self._restore()

    def _restore(self) -> None:
        fields, environ = self._fields, self._originals["META"]
        self._watched["META"].write_back(environ)
        self._watched["COOKIES"].write_back(self._originals["COOKIES"])
        if self._csrf_was[1]:
            environ.setdefault(_NEEDS_UPDATE, self._csrf_was[1])
        if self._session_was is not None and self._session_was[0]:
            self._originals["session"].modified = True
        for name in _DERIVED[1:]:
            fields.pop(name, None)
        for name, watched in self._watched.items():
            if fields.get(name) is watched:  # else the view has put something there
                del fields[name]
        for name, original in self._originals.items():
            fields.setdefault(name, original)

    # -- looks

    def _stand_in(self, name: str, original: Any) -> _StandIn:
        def look() -> Any:
            if name == "session" and self._session_was is None:
                self._session_was = bool(getattr(original, "modified", False)), getattr(original, "session_key", None)
                original.modified = False
            self._look(_BEHIND[name])
            return original

        return _StandIn(look)

    def _look(self, what: str) -> None:
        self._looked.add(what)

    def _look_up(self, name: Any) -> None:
        if name in {_SECRET, _NEEDS_UPDATE}:
            self._look("csrf")
        elif isinstance(name, str) and not self._covers(name):
            self._names.add(name)

    def _look_at_all(self) -> None:
        self._whole = True

    # -- what came of it

    def _summary(self) -> Seen:
        environ = self._originals["META"]
        changed = self._changed()
        looked = frozenset(self._looked - {"nonce"})
        whole = (
            self._whole
            or self._fields.get("META") is not self._watched["META"]
            or any(not isinstance(environ.get(name, ""), str) for name in self._names)
        )
        now = self._now("user")
        user = identity(now) if "user" in looked else ""
        signed_in = ("user" in looked or self._is_replaced("user")) and is_signed_in(now)
        return Seen(looked, tuple(sorted(self._names)), changed, whole, user, signed_in)

    def _changed(self) -> str:
        if self._session_changed():
            return "session"
        if self._messages_changed():
            return "messages"
        if self._csrf_made():
            return "csrf"
        return "nonce" if "nonce" in self._looked else ""

    def _session_changed(self) -> bool:
        if self._is_replaced("session"):
            return True
        if self._session_was is None:
            return False
        session = self._originals["session"]
        return bool(getattr(session, "modified", True)) or getattr(session, "session_key", None) != self._session_was[1]

    def _messages_changed(self) -> bool:
        """Whether some were added, or shown and thereby used up."""
        if self._is_replaced("_messages"):
            return True
        if "messages" not in self._looked:
            return False
        storage = self._originals["_messages"]
        return bool(getattr(storage, "added_new", True)) or (bool(getattr(storage, "used", True)) and len(storage) > 0)

    def _csrf_made(self) -> bool:
        """Whether the secret that was used is none that the request brought, but is told to the visitor just now."""
        environ = self._watched["META"]
        secret, used = dict.get(environ, _SECRET), bool(dict.get(environ, _NEEDS_UPDATE))
        if used:
            self._look("csrf")
        if secret is None:
            return used
        return (used or secret != self._csrf_was[0] or "csrf" in self._looked) and secret != self._brought_secret()

    def _brought_secret(self) -> Any:
        cookies = self._originals["COOKIES"]
        if not settings.CSRF_USE_SESSIONS:
            return cookies.get(settings.CSRF_COOKIE_NAME)
        session = self._originals.get("session")
        if (
            session is None
            or session.session_key is None
            or session.session_key != cookies.get(settings.SESSION_COOKIE_NAME)
        ):
            return None
        return session.get(_IN_SESSION)

    def _is_replaced(self, name: str) -> bool:
        return self._fields.get(name) is not self._watched.get(name)

    def _now(self, name: str) -> Any:
        return self._fields.get(name) if self._is_replaced(name) else self._originals.get(name)


def is_watched(request: HttpRequest) -> bool:
    """Whether a view is running that this request belongs to, and is watched."""
    return isinstance(request.META, _Environ)


def is_signed_in(user: Any) -> bool:
    """Whether it is a user who is signed in."""
    return bool(getattr(user, "is_authenticated", False))


def identity(user: Any) -> str:
    """Who a user is, as a text that is the same for the same user."""
    name = user.get_username() if callable(getattr(user, "get_username", None)) else ""
    return f"{is_signed_in(user)} {getattr(user, 'pk', None)!r} {name!r}"


class _StandIn(SimpleLazyObject):
    """Stands before an object and becomes it at the first look, whatever that is."""

    __repr__ = new_method_proxy(repr)


class _NotedDict(dict[Any, Any]):
    """A copy of a dict that tells of each look, and keeps what is written into it for the original."""

    def __init__(
        self, original: dict[Any, Any], look_up: Callable[[Any], None], look_at_all: Callable[[], None]
    ) -> None:
        super().__init__(original)
        self._look_up = look_up
        self._look_at_all = look_at_all
        self._dirty = False

    def write_back(self, original: dict[Any, Any]) -> None:
        """Do to the original what was done to this copy."""
        if self._dirty:
            now = dict(dict.items(self))
            original.clear()
            original.update(now)

    # -- looks at one

    def __getitem__(self, name: Any) -> Any:
        self._look_up(name)
        return super().__getitem__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        self._look_up(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._look_up(name)
        return super().__contains__(name)

    # -- looks at all

    def __iter__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__reversed__()

    def __len__(self) -> int:
        self._look_at_all()
        return super().__len__()

    def keys(self) -> Any:
        self._look_at_all()
        return super().keys()

    def values(self) -> Any:
        self._look_at_all()
        return super().values()

    def items(self) -> Any:
        self._look_at_all()
        return super().items()

    def copy(self) -> dict[Any, Any]:
        self._look_at_all()
        return dict(super().items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    __reduce_ex__ = lambda self, _protocol: self.__reduce__()  # noqa: E731 - the one that ``copy`` asks first
    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.copy())

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    def __ne__(self, other: object) -> bool:
        return self.copy() != other

    __hash__ = None  # as a dict

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    # -- writes

    def __setitem__(self, name: Any, value: Any) -> None:
        self._dirty = True
        super().__setitem__(name, value)

    def __delitem__(self, name: Any) -> None:
        self._look_up(name)
        self._dirty = True
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._dirty = True
        super().update(*args, **kwargs)

    def setdefault(self, name: Any, default: Any = None) -> Any:
        self._look_up(name)
        self._dirty = True
        return super().setdefault(name, default)

    def pop(self, name: Any, *default: Any) -> Any:
        self._look_up(name)
        self._dirty = True
        return super().pop(name, *default)

    def popitem(self) -> tuple[Any, Any]:
        self._look_at_all()
        self._dirty = True
        return super().popitem()

    def clear(self) -> None:
        self._dirty = True
        super().clear()


class _Environ(_NotedDict):
    """``request.META``. The cookies are not even in it before they are asked for."""

    def __init__(
        self, original: dict[Any, Any], look_up: Callable[[Any], None], look_at_all: Callable[[], None]
    ) -> None:
        def asked(name: Any) -> None:
            look_up(name)
            if name == COOKIE:
                self._reveal()

        def asked_all() -> None:
            look_at_all()
            self._reveal()

        super().__init__(original, asked, asked_all)
        self._hidden = dict.pop(self, COOKIE, None)

    def write_back(self, original: dict[Any, Any]) -> None:
        self._reveal()
        super().write_back(original)

    def __setitem__(self, name: Any, value: Any) -> None:
        self._reveal()
        super().__setitem__(name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._reveal()
        super().update(*args, **kwargs)

    def clear(self) -> None:
        self._reveal()
        super().clear()

    def _reveal(self) -> None:
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            dict.__setitem__(self, COOKIE, hidden)


class _Headers(HttpHeaders):
    """``request.headers``, made when it is first asked."""

    def __init__(
        self, environ: dict[str, Any], look_up: Callable[[str], None], look_at_all: Callable[[], None]
    ) -> None:
        self._environ = dict(environ)
        self._look_up = look_up
        self._look_at_all = look_at_all

    @cached_property
    def _store(self) -> Any:
        return HttpHeaders(self._environ)._store  # noqa: SLF001 - of the base class

    def __getitem__(self, name: str) -> Any:
        self._look_up(self.to_wsgi_name(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._look_at_all()
        return iter(super().__iter__())

    def __len__(self) -> int:
        self._look_at_all()
        return len(self._store)

    def __repr__(self) -> str:
        self._look_at_all()
        return str(super().__repr__())
