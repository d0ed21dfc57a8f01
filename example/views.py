"""The pages of the demo site."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

import singleflight_sync as sfs
from example import burst, journal, model
from example.crowd import SIZE
from example.picture import drawing

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

QUESTION = "Why is the sky blue?"
PREFIX = "ask:"


@require_GET
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """Everything on one page."""
    context = {"question": QUESTION, "size": SIZE, "seconds": settings.SECONDS, **_picture()}
    return render(request, "example/home.html", context)


@require_GET
@never_cache
def ask(request: HttpRequest) -> HttpResponse:
    """Ask the model: of all who ask the same at the same time, one computes."""
    question = request.GET.get("question", "").strip()[:200] or QUESTION
    alone = "crowd" not in request.GET  # the crowd's visitors keep their own journal
    begun = time.monotonic()
    if alone:
        journal.note("arrived")
    context: dict[str, Any] = {"question": question, "pid": os.getpid()}
    what, status = "answered", 200
    try:
        context["answer"] = sfs.run(f"{PREFIX}{question}", lambda: model.answer(question), ttl=0, wait_timeout=120)
    except sfs.SingleFlightError as exc:
        context["error"], what, status = exc, "lost", 503
    if alone:
        journal.note(what)
    context["waited"] = time.monotonic() - begun
    return render(request, "example/answer.html", context, status=status)


@require_GET
@never_cache
def picture(request: HttpRequest) -> HttpResponse:
    """What the script of `home` puts in the place of the picture."""
    return render(request, "example/picture.html", _picture())


@require_POST
def crowd(request: HttpRequest) -> HttpResponse:
    """Have the crowd come. It is sent by the process that serves the demo, which survives any worker."""
    question = request.POST.get("question", "").replace("\n", " ").strip()[:200] or QUESTION
    pipe = os.open(settings.DIRECTORY / "crowd", os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(pipe, f"{question}\n".encode())
    finally:
        os.close(pipe)
    return redirect("home")


@require_POST
def kill(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 - there is one owner to kill
    """Kill the process that owns the oldest flight of the model."""
    for info in sfs.live():
        if info.key.startswith(PREFIX) and info.fencing_token is not None:
            model.condemn(info.fencing_token)
            break
    return redirect("home")


def _picture() -> dict[str, Any]:
    found = burst.last_burst(journal.notes())
    if found is None:
        return {"burst": None}
    slowest = max(found.answered, default=0.0)
    return {"burst": found, "slowest": slowest, "drawing": drawing(found)}
