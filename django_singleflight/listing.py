"""The live flights of all groups, and what of them an operator wants to see."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.utils.translation import gettext_lazy as _

from django_singleflight import conf, groups, shown
from singleflight_sync import ConfigurationError, StoreError, terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from django.core.paginator import Page
    from django.utils.functional import Promise

    from django_singleflight.groups import Group
    from singleflight_sync import FlightInfo

PER_PAGE = 100

ORDERS: dict[str, tuple[str | Promise, Callable[[FlightInfo], Any]]] = {
    "age": (_("Age"), lambda info: info.age),
    "lease": (_("Lease left"), lambda info: info.lease_left),
    "followers": (_("Followers"), lambda info: info.followers),
    "takeovers": (_("Takeovers"), lambda info: info.takeovers),
    "key": (_("Key"), lambda info: info.key),
    "group": (_("Group"), lambda info: info.group),
    "owner": (_("Owner"), lambda info: info.owner_id),
}
OLDEST_FIRST = "-age"

_SHORTEST_DIGEST = 8


@dataclass(frozen=True)
class Choice:
    """Which flights, in which order; made of the address of a page, in which anything may stand."""

    search: str = ""
    group: str = ""
    state: str = ""
    order: str = OLDEST_FIRST
    page: str = "1"

    @classmethod
    def of(cls, query: Mapping[str, str], names: list[str]) -> Choice:
        """What an address chooses; unknown values choose nothing."""
        group, state, order = query.get("group", ""), query.get("state", ""), query.get("o", "")
        return cls(
            search=query.get("q", "").strip(),
            group=group if group in names else "",
            state=state if state in shown.STATES else "",
            order=order if order.removeprefix("-") in ORDERS else OLDEST_FIRST,
            page=query.get("p", "1"),
        )

    def query(self, **changes: str) -> str:
        """The address of this choice, or of one that differs; the first page again, where it is not given."""
        other = replace(self, **{"page": "1", **changes})
        named = {"q": other.search, "group": other.group, "state": other.state, "o": other.order, "p": other.page}
        default = {"o": OLDEST_FIRST, "p": "1"}
        return "?" + urlencode({name: value for name, value in named.items() if value and value != default.get(name)})

    def takes(self, info: FlightInfo) -> bool:
        """Whether this flight is wanted. A search sees only what may be shown."""
        if self.group and info.group != self.group:
            return False
        if self.state and not shown.STATES[self.state][1](info):
            return False
        text = self.search.casefold()
        return not text or any(text in each.casefold() for each in _searched(info)) or self._names(info)

    def _names(self, info: FlightInfo) -> bool:
        text = self.search.lower().removeprefix("sha256 ")
        return len(text) >= _SHORTEST_DIGEST and shown.digest(info.key).startswith(text)

    def of_these(self, infos: list[FlightInfo]) -> Page:
        """The page that is wanted; the nearest one where there is no such page."""
        wanted = sorted(
            filter(self.takes, infos), key=ORDERS[self.order.removeprefix("-")][1], reverse=self.order.startswith("-")
        )
        return Paginator(wanted, PER_PAGE).get_page(self.page)


def _searched(info: FlightInfo) -> tuple[str, ...]:
    return shown.key(info.key), shown.owner(info.owner_id), str(info.fencing_token or "")


class Listing(NamedTuple):
    """All live flights, oldest first, and what kept groups from telling theirs."""

    infos: list[FlightInfo]
    problems: list[str]
    names: list[str]

    def find(self, digest: str) -> FlightInfo | None:
        """The flight whose group and key have this digest."""
        return next((info for info in self.infos if shown.digest(info.group, info.key) == digest), None)


def listing() -> Listing:
    """Ask all groups, at the same time, so that several dead servers cost one time-out. Raises nothing of ours."""
    try:
        conf.show_keys()
        found = groups.distinct()
    except ConfigurationError as exc:
        return Listing([], [terminal.one_line(str(exc))], [])
    with ThreadPoolExecutor(len(found), "singleflight-listing") as pool:
        answers = list(pool.map(_ask, found, found.values()))
    infos = [info for each, _ in answers for info in each]
    problems = [problem for _, problem in answers if problem]
    return Listing(sorted(infos, key=lambda info: -info.age), problems, list(found))


def _ask(name: str, group: Group) -> tuple[list[FlightInfo], str]:
    try:
        return group.live(), ""
    except (StoreError, ConfigurationError) as exc:
        return [], terminal.one_line(f"group {name}: {exc}")
