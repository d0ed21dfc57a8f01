"""One run of a view inside a flight: watched, judged, and put into an envelope."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest, PermissionDenied, RequestAborted, SuspiciousOperation
from django.http import Http404, HttpResponse, SimpleCookie, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.http.response import ResponseHeaders
from django.utils import translation

from django_singleflight import envelope, limits, transactions
from django_singleflight.envelope import Crash, Page, Refusal, Terms
from django_singleflight.sharing import Verdict, answer_of, judge, judge_error
from django_singleflight.watch import Seen, Watch
from singleflight_sync import Kept, describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from django_singleflight.envelope import Envelope
    from django_singleflight.keys import Learnt, Question

_BECOME_4XX = (
    *(Http404, PermissionDenied, SuspiciousOperation, BadRequest),
    *(MultiPartParserError, RequestAborted, UnreadablePostError),
)
_FIRST_SEEN = "_single_flight_headers"


class Execution:
    """The function of a flight. Runs again where the flight is lost and comes back. Used by one thread.

    Attributes:
        has_begun: The view was called.
        is_done: It has returned or raised, and was judged.
        response: What it returned, rendered.
        error: What it raised, or None.
        seen: What it looked at.
        verdict: Who may have the answer.
        envelope: What the flight gives to others.
        learnt: What a key must hold to be asked under at once.
        lasting: The answer is for those who come later, too.
    """

    def __init__(
        self, view: Callable[[], Any], request: HttpRequest, question: Question, learnt: Learnt, ttl: float
    ) -> None:
        """``learnt``: what the key of this flight holds. ``ttl``: seconds of an answer for those who come later."""
        self._view = view
        self._request = request
        self._question = question
        self._asked = learnt
        self._ttl = ttl
        self.has_begun = False
        self._reset()

    def _reset(self) -> None:
        self.is_done = False
        self.response: Any = None
        self.error: Exception | None = None
        self.seen = Seen()
        self.verdict = Verdict()
        self.envelope: Envelope = Refusal("")
        self.learnt = self._asked
        self.lasting = False

    def __call__(self) -> Kept:
        """Run the view; return its answer for others.

        Raises:
            BaseException: what the view raised, if it is no `Exception`.
        """
        self.has_begun = True
        self._reset()
        language = translation.get_language()
        eye = Watch(self._request, self._covers)
        try:
            with eye:
                self.response = _finished(self._view())
        except Exception as exc:  # noqa: BLE001 - it is the answer
            self.error = exc
        self.seen = eye.seen
        self.verdict = self._judged()
        self._draw_up(translation.get_language() or "", language or "")
        self.is_done = True
        return Kept(self.envelope, self._life())

    def _covers(self, name: str) -> bool:
        return self._question.covers(name, self._asked)

    def _judged(self) -> Verdict:
        identified = self._question.identified
        if transactions.has_written():
            return Verdict("transaction", kept=True)
        if self.error is not None:
            return judge_error(self.seen, identified=identified, is_4xx=isinstance(self.error, _BECOME_4XX))
        return judge(
            self.seen, answer_of(self.response), identified=identified, largest=limits.max_body(), covers=self._covers
        )

    def _draw_up(self, language: str, before: str) -> None:
        if not self.verdict.reason:
            self.envelope = self._copied("" if language == before else language)
            if isinstance(self.envelope, Page) and not envelope.is_copyable(self.envelope):
                self.verdict = Verdict("attributes", kept=True)
        if self.verdict.reason:
            self.envelope = Refusal(self.verdict.reason)
            return
        personal = self.verdict.personal and not self._question.is_whole(self._asked)
        self.learnt = self._asked.widened(self.verdict.names, personal=personal)
        self.lasting = self._ttl > 0 and not self.verdict.brief

    def _copied(self, language: str) -> Envelope:
        question, verdict = self._question, self.verdict
        terms = Terms(
            whom=question.whom if verdict.personal else "",
            user=question.seal(self.seen.user) if self.seen.user else "",
            names=verdict.names,
            values=question.values(verdict.names) if verdict.names else "",
            looked=tuple(sorted(self.seen.looked)),
        )
        if self.error is not None:
            return Crash(terms, describe_error(self.error, flight=question.key(self._asked)))
        return envelope.page(self.response, terms, language)

    def _life(self) -> float:
        """For how many seconds the envelope is for those who come later."""
        if self.verdict.reason:
            return limits.unshared_ttl() if self.verdict.kept else 0.0
        return self._ttl if self.lasting and self.learnt == self._asked else 0.0


def _finished(response: Any) -> Any:
    """The response as Django would send it, rendered."""
    if inspect.iscoroutine(response):
        response.close()
        raise TypeError("single_flight decorates plain views, and this one returned a coroutine: make it a plain one")
    if _is_of_rest_framework(response) and getattr(response, "accepted_renderer", None) is None:
        raise TypeError(
            "a response of Django REST framework has no renderer yet: decorate `dispatch`, or what as_view() returns"
        )
    if callable(getattr(response, "render", None)):
        response = response.render()
    return as_first_seen(response)


def _is_of_rest_framework(response: Any) -> bool:
    return any(kind.__module__ == "rest_framework.response" for kind in type(response).__mro__)


def as_first_seen(response: Any) -> Any:
    """The response; of one that a view returns again, a copy with the headers and cookies of the first time.

    Middleware has written on it meanwhile, for another visitor.
    """
    if not isinstance(response, HttpResponse):
        return response
    fields = response.__dict__
    if _FIRST_SEEN not in fields:
        mine = tuple(response.headers.items()), copy.deepcopy(response.cookies) if response.cookies else SimpleCookie()
        if fields.setdefault(_FIRST_SEEN, mine) is mine:
            return response
    headers, cookies = fields[_FIRST_SEEN]
    kind: Any = type(response)
    again: HttpResponse = kind.__new__(kind)
    again.__dict__.update(fields)
    again.__dict__.update(
        headers=ResponseHeaders(dict(headers)), cookies=copy.deepcopy(cookies), _resource_closers=[], closed=False
    )
    return again
