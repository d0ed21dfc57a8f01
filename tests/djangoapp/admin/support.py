"""Flights in the air, users and pages of the admin's tests."""

from __future__ import annotations

import html
import itertools
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.test import Client

import singleflight_sync as sfs
from django_singleflight import shown
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight_sync import FlightInfo
    from tests.support.servers import Server

ROOT = "/admin/django_singleflight/flight/"
SOON: Any = {"heartbeat": 0.2, "lease": 5.0}
"""Options of flights that enter the index soon, and stay there through a slow test."""

_numbers = itertools.count()


def user(*permissions: str, superuser: bool = False) -> Any:
    """A member of the staff with these permissions on flights: ``view``, ``cancel``, ``forget``."""
    users, rights = apps.get_model("auth", "User").objects, apps.get_model("auth", "Permission").objects
    made = users.create_user(f"user {next(_numbers)}", is_staff=True, is_superuser=superuser)
    made.user_permissions.set(rights.filter(codename__in=[f"{each}_flight" for each in permissions]))
    return made


def client(*permissions: str, superuser: bool = False) -> Client:
    """The browser of such a user, who has signed in."""
    browser = Client(raise_request_exception=True)
    browser.force_login(user(*permissions, superuser=superuser))
    return browser


class Airborne:
    """A flight of the default group, in a thread, until it is told to land."""

    def __init__(self, key: str, group: Any = sfs, **options: Any) -> None:
        self.key = key
        self._group = group
        self._go_on, self._running = threading.Event(), threading.Event()
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=({**SOON, **options},), name="test-airborne")
        self._thread.start()
        assert self._running.wait(10)
        eventually(lambda: self.key in [info.key for info in group.live()], within=10, what=f"{key!r} is listed")

    def _run(self, options: dict[str, Any]) -> None:
        try:
            self.outcome = self._group.run(self.key, self._fly, **options)
        except sfs.SingleFlightError as exc:
            self.outcome = exc

    def _fly(self) -> str:
        self._running.set()
        assert self._go_on.wait(60)
        return "value"

    @property
    def info(self) -> FlightInfo:
        """What Redis tells of it."""
        info = self._group.peek(self.key)
        assert info is not None
        return info  # type: ignore[no-any-return]

    def land(self) -> Any:
        """Let it end; what its caller got."""
        self._go_on.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.outcome


@contextmanager
def airborne(*keys: str, **options: Any) -> Iterator[list[Airborne]]:
    """Flights of these keys, in this order."""
    flights: list[Airborne] = []
    try:
        for key in keys:
            flights.append(Airborne(key, **options))  # noqa: PERF401 - those that began must land
        yield flights
    finally:
        for flight in flights:
            flight.land()


def populate(server: Server, count: int, **fields: Any) -> None:
    """Put the boards of so many flights on the server, as owners elsewhere would."""
    group = sfs.default_group()
    now = int(time.time() * 1000)
    with server.client() as redis:
        pipeline = redis.pipeline(transaction=False)
        for number in range(count):
            names = group.namespace.names(f"report:{number:05}")
            board = {
                "v": 1,
                "status": "RUNNING",
                "key": f"report:{number:05}",
                "ownerToken": now * 1000 + number,
                "ownerId": f"host{number % 7}/{number + 1}/1/1/0123456789abcdef-0",
                "nonce": "0" * 16,
                "logId": f"{now}-0",
                "startedAt": now - number,
                "heartbeatAt": now,
                "expireAt": now + 60_000,
                "leaseMs": 60_000,
                "lifeMs": 70_000,
                "followers": number % 5,
                "takeovers": 0,
                **fields,
            }
            pipeline.hset(names.meta, mapping=board)
            pipeline.pexpire(names.meta, 60_000)
            pipeline.zadd(group.namespace.live, {names.tag: now})
        pipeline.pexpire(group.namespace.live, 70_000)
        pipeline.execute()


def address_of(key: str, group: str = "default") -> str:
    """The page of the flight of a key."""
    return f"{ROOT}{shown.digest(group, key)}/"


def keys_of(page: Any) -> list[str]:
    """The keys in a page's table, in its order."""
    found = re.findall(r'<th scope="row"[^>]* class="sf-key">\s*<a [^>]*>(.*?)</a>', page.content.decode(), re.DOTALL)
    return [html.unescape(each) for each in found]


def token_in(page: Any) -> str:
    """The fencing token that a confirmation page carries."""
    match = re.search(r'name="token" value="(\d+)"', page.content.decode())
    assert match
    return match[1]


def nonce(request: object) -> dict[str, str]:
    """A context processor, as Django's own from 6.0 on."""
    return {"csp_nonce": "n0nce"}


def says(page: Any) -> str:
    """The messages on the page, in one text."""
    listed = re.search(r'<ul class="messagelist">(.*?)</ul>', page.content.decode(), re.DOTALL)
    return html.unescape(listed[1]) if listed else ""
