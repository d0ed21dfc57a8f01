"""Pages for the tests with real WSGI servers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import redis
from django.core.cache import cache
from django.http import HttpResponse
from django.urls import path

if TYPE_CHECKING:
    from django.http import HttpRequest


def ready(request: HttpRequest) -> HttpResponse:
    """The site answers."""
    return HttpResponse("ready")


def gated(request: HttpRequest, key: str) -> HttpResponse:
    """A value that is computed when the test opens the gate; each computation is counted."""
    with redis.Redis.from_url(os.environ["SINGLEFLIGHT_TEST_URL"], socket_timeout=60) as client:

        def compute() -> str:
            number = client.incr("runs")
            client.expire("runs", 60)
            client.rpush("running", os.getpid())
            client.expire("running", 60)
            client.blpop(["gate"], timeout=30)
            return f"{key} {number}"

        return HttpResponse(cache.get_or_set(key, compute))


def stuck_once(request: HttpRequest, key: str) -> HttpResponse:
    """The first computation hangs in a C call for longer than a worker may take."""
    with redis.Redis.from_url(os.environ["SINGLEFLIGHT_TEST_URL"], socket_timeout=60) as client:

        def compute() -> str:
            number = client.incr("runs")
            client.expire("runs", 60)
            client.rpush("running", os.getpid())
            client.expire("running", 60)
            if number == 1:
                time.sleep(60)
            return f"{key} {number}"

        return HttpResponse(cache.get_or_set(key, compute))


urlpatterns = [path("", ready), path("gated/<key>", gated), path("stuck/<key>", stuck_once)]
