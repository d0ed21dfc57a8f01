"""The verdict: who may have an answer, by what the view looked at and what it answered. Pure; in doubt, nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpResponse

from django_singleflight.keys import wsgi_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_singleflight.watch import Seen

REASONS = {
    "session": "the view changed the session",
    "messages": "the view added or showed messages",
    "csrf": "the template used a CSRF token that the request did not bring",
    "nonce": "the template used the nonce of the content security policy",
    "environ": "the view went through all of request.META or request.headers",
    "cookies": "the response sets cookies",
    "no-store": "the response says Cache-Control: no-store",
    "private": "the response says Cache-Control: private, and nothing in the request tells visitors apart",
    "vary": "the response says Vary: *",
    "user": "the view saw a signed-in user, and nothing in the request tells visitors apart",
    "size": "the body is larger than MAX_BODY",
    "streaming": "the response is streamed",
    "response": "the view returned no HttpResponse",
    "attributes": "the response carries what cannot be copied",
    "status": "answers of this status are for one visitor",
    "exception": "the view raised what becomes an answer of 4xx",
    "transaction": "a database transaction that has written is open around the view",
    "arguments": "an argument of the view cannot stand in a key",
    "whom": "the answer is for another visitor",
    "nested": "the view was called by a view that is shared itself",
    "busy": "the flight came to no end, and on_busy says run",
    "failed": "the flight has failed in a way that is not ours",
}
"""Why a visitor gets an answer of its own, as ``Cache-Status`` and the log say it."""

_NOT_FOR_ALL = frozenset({206, 304})
_BAD, _SERVER_ERROR, _LEAST = 400, 500, 200


class Answer(NamedTuple):
    """What matters of a response.

    Attributes:
        kind: ``"page"``, ``"streaming"``, or ``"response"``, which is none.
        status: Its status code.
        size: Bytes of its body.
        directives: Of ``Cache-Control``, in small letters, without their values.
        vary: The header names of ``Vary``, as in ``request.META``.
        vary_all: It says ``Vary: *``.
        sets_cookies: It has cookies, or a ``Set-Cookie`` header.
    """

    kind: str = "page"
    status: int = 200
    size: int = 0
    directives: frozenset[str] = frozenset()
    vary: tuple[str, ...] = ()
    vary_all: bool = False
    sets_cookies: bool = False


class Verdict(NamedTuple):
    """Who may have the answer.

    Attributes:
        reason: Why nobody else may; one of `REASONS`, or ``""``.
        kept: The reason holds for a while, so that nobody need wait to hear it.
        personal: Only who looks the same, cookies included.
        brief: Only those who are in the flight.
        names: Only who has the same values of these names in ``request.META``.
    """

    reason: str = ""
    kept: bool = False
    personal: bool = False
    brief: bool = False
    names: tuple[str, ...] = ()


def sentence(verdict: Verdict, looked: Iterable[str]) -> str:
    """What the log says of a verdict; ``""`` where everybody may share."""
    if verdict.reason:
        return f"not shared, {REASONS[verdict.reason]}"
    conditions = []
    if verdict.personal:
        seen = ", ".join(sorted(looked)) or "a reserved answer"
        conditions.append(f"with requests that look the same ({seen})")
    if verdict.names:
        conditions.append(f"where {', '.join(verdict.names)} are equal")
    return f"shared only {' and '.join(conditions)}" if conditions else ""


def answer_of(response: Any) -> Answer:
    """The facts of a finished response."""
    if not isinstance(response, HttpResponse):
        return Answer("streaming" if getattr(response, "streaming", False) else "response")
    vary = tuple(_members(response.get("Vary", "")))
    return Answer(
        status=response.status_code,
        size=len(response.content),
        directives=frozenset(
            each.partition("=")[0].strip().lower() for each in _members(response.get("Cache-Control", ""))
        ),
        vary=tuple(wsgi_name(name) for name in vary if name != "*"),
        vary_all="*" in vary,
        sets_cookies=bool(response.cookies) or "Set-Cookie" in response,
    )


def judge(seen: Seen, answer: Answer, *, identified: bool, largest: int, covers: Callable[[str], bool]) -> Verdict:
    """Decide on a response.

    Args:
        seen: What the view looked at.
        answer: What it answered.
        identified: A cookie, ``Authorization``, ``REMOTE_USER`` or a ``vary_on`` part is there to tell visitors apart.
        largest: Bytes of the largest body that is shared.
        covers: Whether a name in ``request.META`` is the same for all who have the key.
    """
    reason = _of_view(seen, identified=identified) or _of_response(answer, identified=identified, largest=largest)
    if reason:
        return Verdict(reason, kept=reason != "response" and answer.status < _BAD)
    reserved = bool(answer.directives & {"no-cache", "private"})
    return Verdict(
        personal=bool(seen.looked) or reserved,
        brief=reserved or answer.status >= _SERVER_ERROR,
        names=_sorted(seen.names, [name for name in answer.vary if not covers(name)]),
    )


def judge_error(seen: Seen, *, identified: bool, is_4xx: bool) -> Verdict:
    """Decide on an exception that the view raised: as on a 500, unless Django makes a 4xx of it."""
    reason = "exception" if is_4xx else _of_view(seen, identified=identified)
    return Verdict(reason) if reason else Verdict(personal=bool(seen.looked), brief=True, names=_sorted(seen.names))


def _of_view(seen: Seen, *, identified: bool) -> str:
    if seen.changed:
        return seen.changed
    if seen.whole:
        return "environ"
    return "user" if seen.signed_in and not identified else ""


def _of_response(answer: Answer, *, identified: bool, largest: int) -> str:
    if answer.kind != "page":
        return answer.kind
    reasons = {
        "cookies": answer.sets_cookies,
        "no-store": "no-store" in answer.directives,
        "private": "private" in answer.directives and not identified,
        "vary": answer.vary_all,
        "status": answer.status < _LEAST or answer.status in _NOT_FOR_ALL or _BAD <= answer.status < _SERVER_ERROR,
        "size": answer.size > largest,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _members(header: str) -> list[str]:
    """The members of a list in a header, in linear time. What is in quotes may be split, which is the safe error."""
    return [member for each in header.split(",") if (member := each.strip())]


def _sorted(*names: Any) -> tuple[str, ...]:
    return tuple(sorted({name for each in names for name in each}))
