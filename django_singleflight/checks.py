"""System checks. An id never changes its meaning; nothing here connects, and no message shows a password."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own name

from django_singleflight import conf, groups, limits, places
from singleflight_sync import ConfigurationError, SingleFlight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLENTY: dict[str, dict[str, Any]] = {"LEASE": {"heartbeat": 1e-6}, "HEARTBEAT": {"lease": 1e9}}
"""Each of the two is first looked at without the other one."""

_DOTTED = frozenset({"CODEC", "ENABLED"})


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:  # noqa: ARG001 - as Django calls it
    """E001, E002, E003, E005 and all warnings."""
    found = getattr(settings, conf.NAME, {})
    messages = list(_check_all(found, conf.NAMES, conf.NAME, {}))
    for alias in groups.cache_aliases():
        messages += _check_cache(alias, found if isinstance(found, dict) else {})
    messages += [*_check_threads(), *_check_admin(), *_check_clear()]
    return messages


def check_deployment(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:  # noqa: ARG001 - as Django calls it
    """E004."""
    found = getattr(settings, conf.NAME, {})
    url = _url(found) if isinstance(found, dict) else None
    if settings.DEBUG or (url and not url.startswith("embedded:")):
        return []
    what = "names the embedded server, which serves one machine" if url else "names no server"
    hint = f"Set {conf.NAME} = {{'URL': 'redis://host:6379/0'}}, or the environment variable SINGLEFLIGHT_URL."
    return [Error(f"{conf.NAME} {what}, and DEBUG is False.", hint=hint, id="django_singleflight.E004")]


# -- names and values


def _check_all(found: Any, names: frozenset[str], place: str, defaults: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """``defaults``: what stands in ``SINGLEFLIGHT``, for a cache that has settings of its own."""
    try:
        conf.checked_mapping(found, place)
    except ConfigurationError as exc:
        yield Error(f"{exc}.", id="django_singleflight.E002")
        return
    unknown = [name for name in found if name not in names]
    for name in unknown:
        hint = _sentence(conf.advice(name, names))
        yield Error(f"{place} has no {name!r}.", hint=hint, id="django_singleflight.E001")
    bad = [each for name in found if name in names for each in _check_value(name, found[name], place)]
    yield from bad
    both = {**defaults, **found}
    if not bad and not unknown and set(both) <= conf.NAMES:
        yield from _check_together(both, place)


def _check_value(name: str, value: Any, place: str) -> Iterator[CheckMessage]:
    try:
        if name in _DOTTED and isinstance(value, str):
            value = conf.imported(name, value)
    except ConfigurationError as exc:
        hint = "It must be the dotted path of an object."
        yield Error(f"{place}: {exc}.", hint=hint, id="django_singleflight.E005")
        return
    try:
        if name == "IN_ATOMIC":
            conf.checked_in_atomic(value)
        elif name == "SHOW_KEYS":
            conf.show_keys()
        elif name in limits.NAMES:
            getattr(limits, name.lower())()
        elif name == "CODEC":
            SingleFlight(codec=conf.codec(value))
        elif not (name == "URL" and value is None):
            SingleFlight(**{name.lower(): value}, **_PLENTY.get(name, {}))
    except Exception as exc:  # noqa: BLE001 - a codec of the user's may raise anything
        yield Error(f"{place}[{name!r}] cannot be used.", hint=_sentence(str(exc)), id="django_singleflight.E002")


def _check_together(both: Mapping[str, Any], place: str) -> Iterator[CheckMessage]:
    names = {"LEASE", "HEARTBEAT", "WAIT_TIMEOUT", "HARD_TIMEOUT"}
    try:
        options = SingleFlight(**{name.lower(): value for name, value in both.items() if name in names}).options
    except ConfigurationError as exc:
        yield Error(f"{place}: LEASE is below 2 * HEARTBEAT.", hint=_sentence(str(exc)), id="django_singleflight.E003")
        return
    wait, hard = options.wait_timeout, options.hard_timeout
    if hard is not None and (wait is None or wait > hard):
        yield Warning(
            f"{place}: WAIT_TIMEOUT is above HARD_TIMEOUT: nobody ever waits that long for one flight.",
            hint="Lower WAIT_TIMEOUT, or raise HARD_TIMEOUT.",
            id="django_singleflight.W005",
        )
    limit = _gunicorn_timeout()
    if limit and (hard is None or hard > limit):
        yield Warning(
            f"{place}: HARD_TIMEOUT is above gunicorn's timeout of {limit:g} s, which kills a flight's worker.",
            hint="Make HARD_TIMEOUT shorter, so that a slow function ends with an error and not with its worker.",
            id="django_singleflight.W004",
        )


def _check_cache(alias: str, found: Mapping[str, Any]) -> Iterator[CheckMessage]:
    place = f"CACHES[{alias!r}]"
    config = caches.settings[alias]
    own = config.get("OPTIONS", {}).get(conf.NAME, {})
    if own:
        yield from _check_all(own, conf.CACHE_NAMES, f"{place}['OPTIONS'][{conf.NAME!r}]", found)
    if len(places.servers_of(config)) > 1:
        yield Warning(
            f"{place}: LOCATION names more than one server.",
            hint="get_or_set asks the first one alone; get() may find in the others what was deleted there. Name one.",
            id="django_singleflight.W003",
        )


# -- the surroundings


def _check_threads() -> Iterator[CheckMessage]:
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is not None and not {"enable-threads", "threads"} & {_text(name) for name in getattr(uwsgi, "opt", {})}:
        yield Warning(
            "uWSGI runs without threads, so that no heartbeat can renew a lease.",
            hint="Start uWSGI with --enable-threads. Until then, a flight's lease is as long as HARD_TIMEOUT.",
            id="django_singleflight.W001",
        )


def _check_admin() -> Iterator[CheckMessage]:
    missing = [name for name in ("auth", "contenttypes") if not apps.is_installed(f"django.contrib.{name}")]
    if apps.is_installed("django.contrib.admin") and missing:
        names = " and ".join(f"django.contrib.{name}" for name in missing)
        yield Warning(
            "The admin page of live flights cannot work.",
            hint=f"Add {names} to INSTALLED_APPS.",
            id="django_singleflight.W002",
        )


def _check_clear() -> Iterator[CheckMessage]:
    found = getattr(settings, conf.NAME, {})
    flights = places.of_url(_url(found)) if isinstance(found, dict) else None
    found_at = {alias: places.of_cache(config) for alias, config in caches.settings.items()}
    for alias in groups.cache_aliases():
        place = found_at[alias]
        others = [f"the cache {each!r}" for each in found_at if each != alias and found_at[each] == place]
        if place is not None and place == flights:
            others.insert(0, f"the flights of {conf.NAME}['URL']")
        if place is not None and others:
            yield Warning(
                f"CACHES[{alias!r}]: clear() empties a database that also holds {' and '.join(others)}.",
                hint="Give each a database of its own: redis://host:6379/1, .../2.",
                id="django_singleflight.W006",
            )


# -- what is known


def _url(found: Mapping[str, Any]) -> str | None:
    url = found.get("URL") or os.environ.get("SINGLEFLIGHT_URL")
    return url if isinstance(url, str) else None


def _gunicorn_timeout() -> float:
    """Seconds after which gunicorn kills a worker, where its arguments in the environment say so; else 0."""
    match = re.search(r"(?:^|\s)(?:--timeout[=\s]|-t\s?)(\d+)(?=\s|$)", os.environ.get("GUNICORN_CMD_ARGS", ""))
    return float(match[1]) if match else 0.0


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
