"""What a view looks at while it runs: the request is watched, and is as it was afterwards.

Session, user, cookies, messages and the nonce of the content security policy stand behind objects that note the
first look; ``request.META`` and ``request.headers`` note the names that are looked up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.utils.functional import LazyObject, SimpleLazyObject, new_method_proxy

from django_singleflight.noted import NotedDict, NotedEnviron, NotedHeaders

if TYPE_CHECKING:
    from collections.abc import Callable
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

_FLAGS = {"session": ("accessed", "modified"), "_messages": ("used", "added_new")}
"""What Django itself notes on these; it tells of a use by way of what middleware holds, past the request."""

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
        self._flags: dict[str, _Flags] = {}
        self._session_key: Any = None
        self._csrf_was: tuple[Any, Any] = (None, None)

    def __enter__(self) -> Watch:
        fields = self._fields
        cookies, environ = self._request.COOKIES, self._request.META
        for name in _BEHIND:
            original = fields.get(name)
            if original is not None:
                self._watched[name] = self._stand_in(name, original)
                if not isinstance(original, LazyObject):
                    self._lower_flags(name, original)
        self._watched["COOKIES"] = NotedDict(cookies, lambda _: self._look("cookies"), lambda: self._look("cookies"))
        self._csrf_was = environ.get(_SECRET), environ.get(_NEEDS_UPDATE)
        watched = NotedEnviron(environ, self._look_up, self._look_at_all)
        dict.pop(watched, _NEEDS_UPDATE, None)
        self._watched["META"] = watched
        if fields.get("environ") is environ:
            self._watched["environ"] = watched
        self._watched["headers"] = NotedHeaders(environ, self._look_up, self._look_at_all)
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
        for flags in self._flags.values():
            flags.restore()
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
            if name not in self._flags:
                self._lower_flags(name, original)
            self._look(_BEHIND[name])
            return original

        return _StandIn(look)

    def _lower_flags(self, name: str, original: Any) -> None:
        names = _FLAGS.get(name, ())
        if names and all(hasattr(original, each) for each in names):
            self._flags[name] = _Flags(original, names)
            if name == "session":
                self._session_key = getattr(original, "session_key", None)

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
        session, flags = self._originals.get("session"), self._flags.get("session")
        if self._is_replaced("session"):
            return True
        if flags is None:
            return "session" in self._looked  # not one of Django's: in doubt it was changed
        if flags.raised("accessed"):
            self._look("session")
        return flags.raised("modified") or getattr(session, "session_key", None) != self._session_key

    def _messages_changed(self) -> bool:
        """Whether some were added, or shown and thereby used up."""
        flags = self._flags.get("_messages")
        if self._is_replaced("_messages"):
            return True
        if flags is None:
            return "messages" in self._looked
        if flags.raised("used"):
            self._look("messages")
        return flags.raised("added_new") or (flags.raised("used") and bool(len(self._originals["_messages"])))

    def _csrf_made(self) -> bool:
        """Whether the secret that was used is none that the request brought, but is told to the visitor just now."""
        environ = self._watched["META"]
        secret, used = dict.get(environ, _SECRET), bool(dict.get(environ, _NEEDS_UPDATE))
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
    return isinstance(request.META, NotedEnviron)


def is_signed_in(user: Any) -> bool:
    """Whether it is a user who is signed in."""
    return bool(getattr(user, "is_authenticated", False))


def identity(user: Any) -> str:
    """Who a user is, as a text that is the same for the same user."""
    kind = user.__class__  # of a lazy object, that of the user
    name = user.get_username() if callable(getattr(user, "get_username", None)) else ""
    return f"{kind.__module__}.{kind.__qualname__} {is_signed_in(user)} {getattr(user, 'pk', None)!r} {name!r}"


class _Flags:
    """Flags of an object, lowered, so that it can be seen whether they are raised meanwhile."""

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self._owner = owner
        self._were = {name: getattr(owner, name) for name in names}
        for name in names:
            setattr(owner, name, False)

    def raised(self, name: str) -> bool:
        return bool(getattr(self._owner, name))

    def restore(self) -> None:
        for name, was in self._were.items():
            if was:
                setattr(self._owner, name, was)


class _StandIn(SimpleLazyObject):
    """Stands before an object and becomes it at the first look, whatever that is."""

    __repr__ = new_method_proxy(repr)
