"""The admin page of live flights: see who holds what and for how long, and end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import re_path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_singleflight import groups, shown
from django_singleflight.listing import ORDERS, Choice, listing
from django_singleflight.models import Flight
from singleflight_sync import ConfigurationError, StoreError, terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.core.paginator import Page
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.functional import Promise

    from singleflight_sync import FlightInfo

_DIGEST = "(?P<object_id>[0-9a-f]{64})"

CANCEL, FORGET = "cancel", "forget"

TITLES: dict[str, Promise] = {CANCEL: _("Cancel this flight?"), FORGET: _("Forget this flight?")}
DONE: dict[str, Promise] = {
    CANCEL: _("The flight of “%(key)s” was cancelled."),
    FORGET: _("The flight of “%(key)s” was forgotten: it answers those who wait for it, and stores nothing."),
}
_RISING = frozenset({"key", "group", "owner", "lease"})
"""What one likes to see in rising order first."""

OVER = _("That flight is over: nothing was changed.")


@admin.register(Flight)
class FlightAdmin(admin.ModelAdmin):
    """Live flights of all groups. Nothing here decodes a value, and every change names its flight's fencing token."""

    # -- permissions

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's own form
        """Flights begin where functions are called."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Flight | None = None) -> bool:  # noqa: ARG002
        """Flights are ended, never changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Flight | None = None) -> bool:  # noqa: ARG002
        """See `has_action_permission`."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Flight | None = None) -> bool:  # noqa: ARG002
        """Whether this user may see live flights."""
        return self._may("view", request)

    def has_action_permission(self, request: HttpRequest, action: str) -> bool:
        """Whether this user may see live flights, and ``"cancel"`` or ``"forget"`` them."""
        return self.has_view_permission(request) and self._may(action, request)

    def _may(self, action: str, request: HttpRequest) -> bool:
        allowed: bool = request.user.has_perm(f"{self.opts.app_label}.{action}_{self.opts.model_name}")
        return allowed

    # -- addresses

    def get_urls(self) -> list[URLPattern]:
        """List, live fragment, detail (its name ends in ``_change`` as the admin's log expects), action."""
        return [
            self._page("$", self.changelist_view, "changelist"),
            self._page("live/$", self.live_view, "live"),
            self._page(f"{_DIGEST}/$", self.detail_view, "change"),
            self._page(f"{_DIGEST}/(?P<action>{CANCEL}|{FORGET})/$", self.action_view, "action"),
        ]

    def _page(self, expression: str, view: Callable[..., Any], name: str) -> URLPattern:
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return re_path(f"^{expression}", self.admin_site.admin_view(view), name=name)

    def _address(self, name: str, *args: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return str(reverse(name, args=args, current_app=self.admin_site.name))

    # -- pages

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """All live flights that the address chooses."""
        self._require_view(request)
        context = {**self._list(request), **(extra_context or {}), "title": capfirst(self.opts.verbose_name_plural)}
        return self._answer(request, "list", context)

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """What the script of `changelist_view` puts in the place of the table."""
        self._require_view(request)
        return self._answer(request, "table", self._list(request))

    def detail_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """One flight and its key's log; says so where it is over."""
        self._require_view(request)
        found = listing()
        info = found.find(object_id)
        context = {"problems": found.problems, "flight": None, "title": _("Live flight")}
        if info is not None:
            context |= {"flight": Flight.of(info), "history": self._history(info, found.problems)}
        return self._answer(request, "detail", context)

    def action_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """Ask whether to end a flight; end it on POST, if it still is the one that was asked about."""
        if not self.has_action_permission(request, action):
            raise PermissionDenied
        found = listing()
        info = found.find(object_id)
        if found.problems and info is None:
            return self._back(request, messages.ERROR, "; ".join(found.problems))
        if info is None or info.fencing_token is None:
            return self._back(request, messages.WARNING, OVER)
        if request.method == "POST":
            return self._end(request, info, action)
        flight = Flight.of(info)
        return self._answer(request, "confirm", {"flight": flight, "action": action, "title": TITLES[action]})

    # -- inside

    def _end(self, request: HttpRequest, info: FlightInfo, action: str) -> HttpResponse:
        flight, token = Flight.of(info), request.POST.get("token", "")
        if token != str(info.fencing_token):
            return self._back(request, messages.WARNING, OVER)
        try:
            ended = getattr(groups.chosen(info.group), action)(info.key, fencing_token=info.fencing_token)
        except (StoreError, ConfigurationError) as exc:
            return self._back(request, messages.ERROR, terminal.one_line(f"group {info.group}: {exc}"))
        if not ended:
            return self._back(request, messages.WARNING, OVER)
        self.log_change(request, flight, f"{action} (group {terminal.printable(info.group)}, fencing token {token})")
        return self._back(request, messages.SUCCESS, DONE[action] % {"key": flight.key})

    def _back(self, request: HttpRequest, level: int, text: str | Promise) -> HttpResponse:
        self.message_user(request, text, level)
        return HttpResponseRedirect(self._address("changelist"))

    def _answer(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "may_cancel": self.has_action_permission(request, CANCEL),
            "may_forget": self.has_action_permission(request, FORGET),
        }
        return TemplateResponse(request, f"django_singleflight/{template}.html", {**common, **context})

    def _require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _list(self, request: HttpRequest) -> dict[str, Any]:
        found = listing()
        choice = Choice.of(request.GET, found.names)
        page = choice.of_these(found.infos)
        return {
            "problems": found.problems,
            "names": found.names,
            "states": {name: label for name, (label, _test) in shown.STATES.items()},
            "orders": _orders(),
            "choice": choice,
            "choice_query": choice.query(page=choice.page),
            "columns": _columns(choice),
            "flights": [Flight.of(info) for info in page],
            "page": page,
            "pages": _pages(page, choice),
            "total": len(found.infos),
        }

    def _history(self, info: FlightInfo, problems: list[str]) -> list[Any]:
        try:
            return [shown.event(entry) for entry in groups.chosen(info.group).history(info.key)]
        except (StoreError, ConfigurationError) as exc:
            problems.append(terminal.one_line(f"group {info.group}: {exc}"))
            return []


def _columns(choice: Choice) -> list[dict[str, Any]]:
    """The heads of the table; a click on the one that sorts turns the order round."""
    columns = []
    for name in ("key", "group", "owner", "age", "lease", "followers", "takeovers"):
        sorts = choice.order.removeprefix("-") == name
        falls = choice.order.startswith("-")
        order = name if sorts and falls else f"-{name}"
        if name in _RISING and not sorts:
            order = name
        state = ("descending" if falls else "ascending") if sorts else ""
        columns.append(
            {"name": name, "label": ORDERS[name][0], "query": choice.query(order=order) or "?", "sorted": state}
        )
    return [*columns, {"name": "state", "label": _("State")}]


def _orders() -> list[tuple[str, str]]:
    both = (("-", _("%s, falling")), ("", _("%s, rising")))
    return [(sign + name, text % label) for name, (label, _key) in ORDERS.items() for sign, text in both]


def _pages(page: Page, choice: Choice) -> list[tuple[Any, str]]:
    """The numbers of pages with their addresses, some left out; nothing where one page is enough."""
    if page.paginator.num_pages == 1:
        return []
    numbers = page.paginator.get_elided_page_range(page.number)
    return [(number, choice.query(page=str(number)) if isinstance(number, int) else "") for number in numbers]
