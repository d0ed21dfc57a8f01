"""How flights are written for people: keys that keep secrets and cannot break a page, owners, times."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.views.debug import SafeExceptionReporterFilter, get_default_exception_reporter_filter

from django_singleflight import conf
from singleflight_sync import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.utils.functional import Promise

    from singleflight_sync import FlightInfo, LogEntry

STARS = SafeExceptionReporterFilter.cleansed_substitute

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_PIECES = re.compile("([?&;])")
_NESTED = 3
"""How often the name of a parameter may be percent-encoded."""

# At the end of a view's key.
_DIGEST = re.compile(r" [0-9a-f]{40}\Z")


def digest(*parts: str) -> str:
    """The address of something with these names; no two lists of names have the same."""
    if len(parts) == 1:
        return hashlib.sha256(parts[0].encode("utf-8", "surrogatepass")).hexdigest()
    return digest("".join(f"{len(part)}:{part}" for part in parts))


def key(text: str) -> str:
    """A key as the setting ``SHOW_KEYS`` wants it; what cannot be seen stands there as escapes.

    Raises:
        ConfigurationError: the setting cannot be used.
    """
    how = conf.show_keys()
    if how == "digest":
        return f"sha256 {digest(text)}"
    return terminal.printable(masked(text) if how == "masked" else text)


def masked(text: str) -> str:
    """A key, the values of secret-looking query parameters starred as in Django's error reports."""
    if "?" not in text:
        return text
    digest_of_view = _DIGEST.search(text)
    end = digest_of_view.start() if digest_of_view else len(text)
    pieces = _PIECES.split(text[:end])
    hiding = False
    for place in range(2, len(pieces), 2):
        name, equals, _value = pieces[place].partition("=")
        if hiding and pieces[place - 1] != "&":  # only "&" ends a value for Django
            pieces[place - 1] = pieces[place] = ""
        elif hiding := bool(equals) and _is_secret(name):
            pieces[place] = f"{name}={STARS}"
    return "".join([*pieces, text[end:]])


def _is_secret(name: str) -> bool:
    for _round in range(_NESTED):
        name = unquote(name)
    expression = getattr(
        get_default_exception_reporter_filter(), "hidden_settings", SafeExceptionReporterFilter.hidden_settings
    )
    return bool(expression.search(name))


def owner(owner_id: str) -> str:
    """Host and pid of an owner."""
    parts = terminal.printable(owner_id).rsplit("/", 4)
    return ":".join(parts[:2])


def seconds(number: float) -> str:
    """A length of time in few words, in the language of the page."""
    whole, text = int(number), ""
    if number < _MINUTE:
        text = _("%s s") % number_format(max(number, 0.0), 1)
    elif number < _HOUR:
        text = _("%(minutes)d min %(seconds)d s") % {"minutes": whole // _MINUTE, "seconds": whole % _MINUTE}
    elif number < _DAY:
        text = _("%(hours)d h %(minutes)d min") % {"hours": whole // _HOUR, "minutes": whole % _HOUR // _MINUTE}
    else:
        text = _("%(days)d d %(hours)d h") % {"days": whole // _DAY, "hours": whole % _DAY // _HOUR}
    return str(text)


def is_late(info: FlightInfo) -> bool:
    """Whether half of the lease is over without a renewal; a lease is at least two heartbeats long."""
    return info.heartbeat_age > info.lease / 2


STATES: dict[str, tuple[str | Promise, Callable[[FlightInfo], bool]]] = {
    "running": (_lazy("running"), lambda info: info.fencing_token is not None),
    "waiting": (_lazy("waiting for its number"), lambda info: info.fencing_token is None),
    "late": (_lazy("heartbeat late"), is_late),
    "taken-over": (_lazy("taken over"), lambda info: info.takeovers > 0),
    "forgotten": (_lazy("forgotten"), lambda info: info.forgotten),
}
"""By the name in an address: what it is called, and which flights are in it."""


def states(info: FlightInfo) -> list[str]:
    """All states in which a flight is."""
    return [str(label) for label, is_in in STATES.values() if is_in(info)]


_EVENTS: dict[str, str | Promise] = {
    "claimed": _lazy("Claimed"),
    "succeeded": _lazy("Succeeded"),
    "failed": _lazy("Failed"),
    "cancelled": _lazy("Cancelled"),
    "released": _lazy("Released without an outcome"),
    "forgotten": _lazy("Forgotten"),
}


class Event(NamedTuple):
    """One entry of a key's log."""

    kind: str
    label: str
    token: str
    age: str
    owner: str
    continues: str


def event(entry: LogEntry) -> Event:
    """An entry of a key's log; one that another release wrote is called as it calls itself."""
    label, kind = str(_EVENTS.get(entry.event, "")), entry.event if entry.event in _EVENTS else "unknown"
    if entry.event == "claimed" and entry.takeovers:
        label = _("Taken over (%d)") % entry.takeovers
    return Event(
        kind=kind,
        label=label or terminal.printable(entry.event),
        token=str(entry.fencing_token or ""),
        age=seconds(entry.age),
        owner=owner(entry.owner_id),
        continues=str(entry.continues or ""),
    )
