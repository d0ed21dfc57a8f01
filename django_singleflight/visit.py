"""One request at a decorated view: under which key it asks, who runs the view, and what it is answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import translation

from django_singleflight import atomic, busy, conf, envelope, limits, transactions, watch
from django_singleflight.envelope import Crash, EnvelopeCodec, Refusal
from django_singleflight.execution import Execution, as_first_seen
from django_singleflight.keys import Learnt, OpaqueArgumentError, Question
from django_singleflight.memory import memory
from django_singleflight.sharing import REASONS, sentence
from django_singleflight.telling import COLLAPSED, HIT, MISS, bypass, marked, tell
from singleflight_sync import (
    FlightCancelledError,
    HardTimeoutError,
    ReentrantFlightError,
    SingleFlightError,
    StoreError,
    TakeoverLimitError,
    TooManyWaitingError,
    WaitTimeoutError,
    configure,
    default_group,
    rebuild_error,
)

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_singleflight.audience import Audience
    from django_singleflight.envelope import Envelope
    from singleflight_sync import SingleFlight

logger = logging.getLogger("django_singleflight")

_OURS = (WaitTimeoutError, HardTimeoutError, FlightCancelledError, TakeoverLimitError, StoreError, TooManyWaitingError)
_ROUNDS = 2
_LEAST_MEMORY = 60.0
_OVERHEAD = 1024 * 1024  # bytes that headers and signature may have besides the body
_METHODS = frozenset({"GET", "HEAD"})
_OVERRIDES = ("HTTP_X_HTTP_METHOD_OVERRIDE", "HTTP_X_HTTP_METHOD", "HTTP_X_METHOD_OVERRIDE")


class View(NamedTuple):
    """A decorated view and the words of its decorator."""

    name: str
    function: Callable[..., Any]
    audience: Audience
    ttl: float
    options: dict[str, Any]
    max_waiting: int | None
    on_busy: str
    exempt: atomic.Exempt


class Visit:
    """One request at a decorated view. Used by one thread."""

    def __init__(self, view: View, request: HttpRequest, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._view = view
        self._request = request
        self._args = args
        self._kwargs = kwargs
        self._waited = False

    def answer(self) -> Any:
        """What the view answers: run here, or copied from the answer to another request.

        Raises:
            Exception: what the view raised, here or elsewhere; what a callable of the decorator raised.
        """
        if watch.is_watched(self._request):  # before anything of it is looked at here
            return self._alone("nested")
        if _passes_through(self._request):
            return as_first_seen(self._run())
        configure(conf.default_arguments)  # no effect where the app has done it
        group = default_group()
        if not self._is_enabled(group):
            return as_first_seen(self._run())
        if atomic.is_open_already(self._view.exempt):
            tell(
                self._view.name,
                "ATOMIC_REQUESTS opened its transaction before single_flight, so that visitors who wait hold a "
                "connection: decorate dispatch",
                warn=True,
            )
        if transactions.has_written():
            return self._alone("transaction")
        try:
            question = Question(self._view.name, self._view.audience, self._request, self._args, self._kwargs)
        except OpaqueArgumentError:
            return self._alone("arguments")
        return self._ask(group, question)

    # -- rounds

    def _ask(self, group: SingleFlight, question: Question) -> Any:
        learnt = memory.recall(question.what)
        for _ in range(_ROUNDS):
            found = self._fly(group, question, learnt)
            if not isinstance(found, Learnt):
                return found
            if found == learnt:
                break
            learnt = found
        return self._alone("whom")

    def _fly(self, group: SingleFlight, question: Question, learnt: Learnt) -> Any:
        """One flight: a response, or what must be in the key to get one."""
        key = question.key(learnt)
        run = Execution(self._run, self._request, question, learnt, self._view.ttl)
        try:
            found: Any = group.run(
                key,
                run,
                codec=EnvelopeCodec(key),
                max_waiting=self._view.max_waiting,
                on_wait=self._wait,
                **{
                    **self._view.options,
                    "ttl": self._view.ttl,
                    "enabled": True,
                    "max_bytes": limits.max_body() + _OVERHEAD,
                },
            )
        except ReentrantFlightError:
            return self._alone("nested")
        except _OURS as exc:
            return self._without(exc, run)
        except Exception as exc:
            if run.is_done:
                return self._own(run)
            if run.has_begun:
                raise
            logger.warning(
                "%s: the flight failed in a way that is not ours, and the view runs here: %r", self._view.name, exc
            )
            return self._alone("failed")
        if run.is_done and found is run.envelope:
            self._teach(group, question, learnt, run)
            return self._own(run)
        return self._take(found, question, learnt, run)

    def _take(self, found: Envelope, question: Question, learnt: Learnt, run: Execution) -> Any:
        """Another one's answer, if it is for this visitor."""
        if isinstance(found, Learnt):
            return self._learn(question, learnt.widened(found.names, personal=found.personal))
        if isinstance(found, Refusal):
            return self._own(run) if run.is_done else self._alone(found.reason)
        terms = found.terms
        more = learnt.widened(terms.names, personal=bool(terms.whom) and not question.is_whole(learnt))
        if terms.whom and terms.whom != question.whom:
            self._learn(question, more)
            return self._own(run) if run.is_done else self._alone("whom")
        if terms.names and terms.values != question.values(terms.names):
            return self._learn(question, more)
        if terms.user and terms.user != question.seal(self._who()):
            return self._own(run) if run.is_done else self._alone("whom")
        self._leave_traces(terms.looked)
        if isinstance(found, Crash):
            raise rebuild_error(found.error, self._view.name)
        if found.language:
            translation.activate(found.language)
        return marked(envelope.response_of(found), COLLAPSED if self._waited else HIT)

    def _leave_traces(self, looked: tuple[str, ...]) -> None:
        """Leave on the request what the view would have left there, for middleware to find."""
        environ = self._request.META
        if "csrf" in looked and "CSRF_COOKIE" in environ:
            environ["CSRF_COOKIE_NEEDS_UPDATE"] = True  # renews the cookie
        session: Any = getattr(self._request, "session", None)
        if looked and hasattr(session, "accessed"):
            session.accessed = True  # has the middleware say ``Vary: Cookie``

    def _who(self) -> str:
        try:
            return watch.identity(getattr(self._request, "user", None))
        except Exception:
            logger.exception("%s: the visitor's user cannot be told", self._view.name)
            return ""

    # -- what was learnt

    def _learn(self, question: Question, learnt: Learnt) -> Learnt:
        memory.note(question.what, learnt, self._memory_of(learnt))
        return learnt

    def _teach(self, group: SingleFlight, question: Question, learnt: Learnt, run: Execution) -> None:
        """Let the next ones ask under a key that holds all that the answer depends on."""
        if run.learnt == Learnt() or (run.learnt == learnt and not memory.is_ageing(question.what)):
            return
        seconds = self._memory_of(run.learnt)
        memory.note(question.what, run.learnt, seconds)
        first, last = question.key(), question.key(run.learnt)
        try:
            group.put(first, run.learnt, seconds, codec=EnvelopeCodec(first))
            if run.lasting and run.learnt != learnt:
                group.put(last, run.envelope, self._view.ttl, codec=EnvelopeCodec(last))
        except StoreError as exc:
            logger.info("%s: what was learnt of it could not be stored: %s", self._view.name, exc)

    def _memory_of(self, learnt: Learnt) -> float:
        return limits.unshared_ttl() if learnt.personal else max(_LEAST_MEMORY, self._view.ttl)

    # -- this visitor's own run

    def _run(self) -> Any:
        return atomic.atomic(self._view.function, self._view.exempt)(self._request, *self._args, **self._kwargs)

    def _own(self, run: Execution) -> Any:
        tell(self._view.name, sentence(run.verdict, run.seen.looked))
        if run.error is not None:
            raise run.error
        if run.verdict.reason:
            return marked(run.response, bypass(run.verdict.reason))
        return marked(run.response, MISS)

    def _alone(self, reason: str) -> Any:
        if reason != "whom":
            tell(self._view.name, f"not shared, {REASONS[reason]}")
        return marked(as_first_seen(self._run()), bypass(reason))

    def _without(self, error: SingleFlightError, run: Execution) -> Any:
        if isinstance(error, HardTimeoutError) and run.is_done:
            return self._own(run)
        if self._view.on_busy == "run" and not run.has_begun:
            return self._alone("busy")
        return marked(busy.response_of(self._view.name, error), bypass("busy"))

    def _wait(self) -> None:
        self._waited = True
        atomic.give_back_connections()

    def _is_enabled(self, group: SingleFlight) -> bool:
        enabled = self._view.options.get("enabled", True)
        return group.is_enabled() and bool(enabled() if callable(enabled) else enabled)


def _passes_through(request: HttpRequest) -> bool:
    environ = request.META
    has_body = environ.get("CONTENT_LENGTH") not in {None, "", "0", 0} or "HTTP_TRANSFER_ENCODING" in environ
    return request.method not in _METHODS or has_body or any(name in environ for name in _OVERRIDES)
