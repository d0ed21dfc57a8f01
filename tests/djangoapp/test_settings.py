"""The setting, the default group, the registry of groups, the checks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

import django_singleflight
import singleflight_sync
from django_singleflight import conf, groups
from django_singleflight.checks import check_deployment, check_settings
from singleflight_sync import ConfigurationError, JSONCodec, PickleCodec
from singleflight_sync.default import group as default_group
from tests.djangoapp.support import BACKEND
from tests.support.idle import end_keeper
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.processes import Child
    from tests.support.servers import Server

A = "redis://127.0.0.1:1/1"
B = "redis://127.0.0.1:1/2"


def ids(settings: Any, caches: dict[str, Any] | None = None, **others: Any) -> list[str]:
    with override_settings(SINGLEFLIGHT=settings, CACHES=caches or ours(), **others):
        return [message.id.rpartition(".")[2] for message in check_settings() + check_deployment()]


def ours(location: Any = A, **options: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": BACKEND, "LOCATION": location, "OPTIONS": options}}


def switched_off() -> bool:
    return False


GOOD = {"URL": "redis://cache:6379/0"}

# The default group


@pytest.fixture
def default(server: Server) -> Iterator[dict[str, Any]]:
    settings = {"URL": server.url}
    with override_settings(SINGLEFLIGHT=settings):
        yield settings
        singleflight_sync.close()
        end_keeper()


def test_the_module_level_functions_use_the_setting(default: dict[str, Any], server: Server) -> None:
    assert singleflight_sync.run("k", lambda: {"a": (1,)}) == {"a": (1,)}  # a tuple: pickled
    data = server.client().get("ai:flight:result:{k}")
    assert isinstance(data, bytes)
    assert PickleCodec("a secret of the tests").loads(data.partition(b":")[2]) == {"a": (1,)}


def test_a_changed_setting_counts_at_the_next_call(default: dict[str, Any], server: Server) -> None:
    singleflight_sync.run("k", lambda: 1)
    before = default_group()
    with override_settings(SINGLEFLIGHT={**default, "NAMESPACE": "other", "LEASE": 5}):
        assert singleflight_sync.run("k", lambda: 2) == 2
        assert server.client().exists("other:result:{k}")
        assert default_group().options.lease == 5
        assert before._runtimes == {}
        singleflight_sync.close()


def test_the_group_stays_while_the_setting_does(default: dict[str, Any]) -> None:
    before = default_group()
    with override_settings(SINGLEFLIGHT=dict(default)):
        assert default_group() is before


def test_a_setting_that_is_changed_in_place_counts(default: dict[str, Any]) -> None:
    default["LEASE"] = 9
    assert default_group().options.lease == 9


def test_a_rotated_secret_counts(default: dict[str, Any]) -> None:
    singleflight_sync.run("k", lambda: 1, ttl=60)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["a secret of the tests"]):
        assert singleflight_sync.get("k") == 1
        singleflight_sync.close()
    with override_settings(SECRET_KEY="new"):
        assert singleflight_sync.get("k") is None
        singleflight_sync.close()


@pytest.mark.parametrize("enabled", [False, switched_off, f"{__name__}.switched_off"])
def test_switched_off_everything_is_a_plain_call(enabled: Any) -> None:
    with override_settings(SINGLEFLIGHT={"URL": "redis://127.0.0.1:1/0", "ENABLED": enabled}):
        assert singleflight_sync.run("k", lambda: 1) == 1


@pytest.mark.parametrize("value", [JSONCodec, "singleflight_sync.JSONCodec", JSONCodec()])
def test_codec_is_an_object_a_class_or_its_path(value: Any) -> None:
    assert isinstance(conf.codec(value), JSONCodec)
    assert conf.codec(value) is conf.codec(value)


def test_an_unknown_name_says_what_was_meant() -> None:
    with override_settings(SINGLEFLIGHT={"LEESE": 3}), pytest.raises(ConfigurationError, match="did you mean 'LEASE'"):
        singleflight_sync.run("k", lambda: 1)


def test_the_app_may_be_set_up_again() -> None:
    with override_settings(INSTALLED_APPS=["django_singleflight", "django.contrib.contenttypes"]):
        pass


def test_a_second_configuration_is_an_error_that_names_both_places() -> None:
    with pytest.raises(ConfigurationError) as raised:
        singleflight_sync.configure(url="redis://127.0.0.1:1/0")
    assert "apps.py" in str(raised.value)
    assert "test_settings.py" in str(raised.value)


# Groups


def test_each_alias_with_our_backend_has_a_group() -> None:
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    caches = {**ours(), "more": ours(B)["default"], "local": local, "missing": {"BACKEND": "no.such.Backend"}}
    with override_settings(CACHES=caches):
        assert list(groups.by_name()) == ["default", "cache:default", "cache:more"]
        assert groups.chosen("cache:more").name == "cache:more"  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match="the groups are default, cache:default, cache:more"):
            groups.chosen("cache:local")


def test_aliases_that_mean_the_same_flights_are_one_group() -> None:
    twin = {**ours("redis://localhost:1?db=1")["default"], "KEY_PREFIX": "twin"}
    other = ours(A, SINGLEFLIGHT={"NAMESPACE": "other"})["default"]
    with override_settings(CACHES={**ours(), "twin": twin, "other": other, "more": ours(B)["default"]}):
        assert list(groups.distinct()) == ["default", "cache:default", "cache:other", "cache:more"]


# Checks


def test_the_checks_are_registered_once() -> None:
    with override_settings(INSTALLED_APPS=["django_singleflight"]):
        names = [check.__name__ for check in registry.get_checks(include_deployment_checks=True)]
    assert (names.count("check_settings"), names.count("check_deployment")) == (1, 1)


def test_a_good_project_has_nothing_to_hear() -> None:
    assert ids(GOOD) == []
    full = {**GOOD, "NAMESPACE": "n", "TTL": 1, "ERROR_TTL": 0, "LEASE": 5, "HEARTBEAT": 1, "WAIT_TIMEOUT": 20}
    full |= {"HARD_TIMEOUT": 50, "STALL_TIMEOUT": None, "TAKEOVER_JITTER": 1, "MAX_TAKEOVERS": 1, "SHARE_ERRORS": True}
    full |= {"MAX_BYTES": 10, "ENABLED": True, "ON_STORE_ERROR": "raise", "IN_ATOMIC": "share"}
    full |= {"SHOW_KEYS": "full", "IGNORED_HEADERS": ["X-One"], "MAX_BODY": 1, "UNSHARED_TTL": 1, "CACHE_STATUS": True}
    assert ids({**full, "CODEC": "singleflight_sync.JSONCodec"}) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"LEESE": 3}, ["E001"]),
        ({"lease": 3}, ["E001"]),
        ({1: 3}, ["E001"]),
        ({"LEASE": "long"}, ["E002"]),
        ({"LEASE": -1, "HEARTBEAT": None}, ["E002", "E002"]),
        ({"URL": "http://host"}, ["E002"]),
        ({"NAMESPACE": ""}, ["E002"]),
        ({"IN_ATOMIC": "perhaps"}, ["E002"]),
        ({"SHOW_KEYS": "none"}, ["E002"]),
        ({"IGNORED_HEADERS": "X-One"}, ["E002"]),
        ({"MAX_BODY": "10 MiB", "UNSHARED_TTL": -1, "CACHE_STATUS": "yes"}, ["E002", "E002", "E002"]),
        ({"CODEC": 17}, ["E002"]),
        ({"CODEC": "django_singleflight.conf"}, ["E002"]),
        ({"ENABLED": "django_singleflight.conf.NAME"}, ["E002"]),
        ("redis://host", ["E002"]),
        ({"LEASE": 1}, ["E003"]),
        ({"HEARTBEAT": 2}, ["E003"]),
        ({"LEASE": 1, "HEARTBEAT": 0.5}, []),
        ({"CODEC": "no.such.Codec"}, ["E005"]),
        ({"ENABLED": "no.such.callable"}, ["E005"]),
        ({"WAIT_TIMEOUT": 400}, ["W005"]),
        ({"WAIT_TIMEOUT": None}, ["W005"]),
        ({"WAIT_TIMEOUT": None, "HARD_TIMEOUT": None}, []),
    ],
)
def test_each_mistake_has_its_id(settings: Any, expected: list[str]) -> None:
    whole = {**GOOD, **settings} if isinstance(settings, dict) else settings
    with override_settings(DEBUG=True):
        assert ids(whole) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"LEASE": 6, "IN_ATOMIC": "share", "NAMESPACE": "n"}, []),
        ({"LEESE": 3}, ["E001"]),
        ({"TTL": 3}, ["E001"]),
        ({"URL": "redis://host"}, ["E001"]),
        ({"SHOW_KEYS": "full", "MAX_BODY": 1}, ["E001", "E001"]),
        ({"LEASE": "long"}, ["E002"]),
        ([], []),
        ([3], ["E002"]),
        ({"HEARTBEAT": 3}, ["E003"]),  # against the LEASE of SINGLEFLIGHT
    ],
)
def test_mistakes_of_a_cache_have_the_same_ids(own: Any, expected: list[str]) -> None:
    with override_settings(DEBUG=True):
        assert ids({**GOOD, "LEASE": 5}, ours(A, SINGLEFLIGHT=own)) == expected


@pytest.mark.parametrize(
    ("url", "debug", "environment", "expected"),
    [
        (None, False, None, ["E004"]),
        ("embedded://", False, None, ["E004"]),
        ("embedded:///var/run/x", False, None, ["E004"]),
        (None, True, None, []),
        ("redis://host/0", False, None, []),
        (None, False, "redis://host/0", []),
        (None, False, "embedded://", ["E004"]),
    ],
)
def test_a_deployment_needs_a_server(
    monkeypatch: pytest.MonkeyPatch, url: Any, *, debug: bool, environment: Any, expected: list[str]
) -> None:
    monkeypatch.delenv("SINGLEFLIGHT_URL", raising=False)
    if environment:
        monkeypatch.setenv("SINGLEFLIGHT_URL", environment)
    assert ids({} if url is None else {"URL": url}, DEBUG=debug) == expected


def test_the_check_of_a_deployment_runs_under_deploy_alone() -> None:
    with override_settings(SINGLEFLIGHT={}, DEBUG=False):
        here = {message.id for message in run_checks(tags=["singleflight"])}
        there = {message.id for message in run_checks(tags=["singleflight"], include_deployment_checks=True)}
    assert there - here == {"django_singleflight.E004"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, ["W001"]), ({b"enable-threads": True}, []), ({"threads": b"4"}, []), ({"processes": b"2"}, ["W001"])],
)
def test_uwsgi_needs_threads(monkeypatch: pytest.MonkeyPatch, options: Any, expected: list[str]) -> None:
    uwsgi = types.ModuleType("uwsgi")
    uwsgi.opt = options  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    assert ids(GOOD) == expected


def test_the_admin_page_needs_its_apps() -> None:
    apps = ["django_singleflight", "django.contrib.admin"]
    assert ids(GOOD, INSTALLED_APPS=apps) == ["W002"]


@pytest.mark.parametrize("location", [f"{A},{B}", f"{A};{B}", [A, B]])
def test_several_servers_are_warned_of(location: Any) -> None:
    assert ids(GOOD, ours(location)) == ["W003"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--timeout 30", ["W004"]),
        ("--workers 2 --timeout=30", ["W004"]),
        ("-t 30", ["W004"]),
        ("--timeout 600", []),
        ("--timeout 0", []),
        ("--graceful-timeout 30", []),
        ("--name '--timeout'", []),
        ("--name 'it is", []),
    ],
)
def test_a_worker_that_is_killed_before_the_hard_timeout(
    monkeypatch: pytest.MonkeyPatch, arguments: str, expected: list[str]
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", arguments)
    assert ids(GOOD) == expected


@pytest.mark.parametrize(
    ("url", "others", "expected"),
    [
        ("redis://localhost:1/1", {}, ["W006"]),
        ("redis://:pw@127.0.0.1:1?db=1", {}, ["W006"]),
        ("redis://127.0.0.1:1/0", {}, []),
        ("redis://127.0.0.1:2/1", {}, []),
        (B, {"other": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": A}}, ["W006"]),
        (B, {"other": {"BACKEND": BACKEND, "LOCATION": A, "KEY_PREFIX": "x"}}, ["W006", "W006"]),
        (B, {"other": {"BACKEND": BACKEND, "LOCATION": "unix:///run/redis?db=1"}}, []),
        (B, {"other": {"BACKEND": BACKEND, "LOCATION": A[:-2], "OPTIONS": {"db": 1}}}, ["W006", "W006"]),
    ],
)
def test_what_clear_would_empty(url: str, others: dict[str, Any], expected: list[str]) -> None:
    assert ids({"URL": url}, {**ours(), **others}) == expected


def test_every_message_has_a_hint_and_none_shows_a_password() -> None:
    secret = "geheim"
    settings = {"URL": f"http://:{secret}@host", "LEESE": 1, "LEASE": "x", "CODEC": "no.such.Codec"}
    location = f"redis://:{secret}@host:1/1,redis://:{secret}@host:1/2"
    caches = {**ours(location), "other": ours(location)["default"]}
    with override_settings(SINGLEFLIGHT=settings, CACHES=caches, DEBUG=False):
        messages = check_settings() + check_deployment()
    assert {message.id[-4:] for message in messages} >= {"E001", "E002", "E005", "W003", "W006"}
    assert all(message.hint for message in messages)
    assert secret not in repr(messages) + "".join(map(str, messages))


def test_the_command_check_tells_them() -> None:
    with override_settings(SINGLEFLIGHT={"LEESE": 3}), pytest.raises(SystemCheckError, match="Did you mean"):
        call_command("check")


# The package


def test_the_package_exports_the_decorator_and_nothing_else() -> None:
    from django_singleflight.decorators import single_flight  # noqa: PLC0415 - what is expected

    assert django_singleflight.__all__ == ["single_flight"]
    assert django_singleflight.single_flight is single_flight
    with pytest.raises(AttributeError, match="no attribute 'cache_flight'"):
        django_singleflight.cache_flight  # noqa: B018 - the access is what is tried


# Nothing early


@pytest.fixture
def doorbell() -> Iterator[socket.socket]:
    """A server that nobody may ring at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def manage(*words: str, settings: dict[str, Any], url: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SINGLEFLIGHT_URL"}
    environment |= {
        "DJANGO_SETTINGS_MODULE": "tests.djangoapp.settings",
        "SINGLEFLIGHT_TEST_CACHE": url,
        "SINGLEFLIGHT_TEST_URL": url,
        "SINGLEFLIGHT_TEST_SETTINGS": json.dumps(settings),
    }
    command = [sys.executable, "-W", "error", "manage.py", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        "check",
        "check --deploy",
        "migrate --plan",
        "makemigrations --check",
        "help",
        "collectstatic --dry-run --no-input",
    ],
)
def test_commands_connect_to_nothing(doorbell: socket.socket, command: str, *, given: bool) -> None:
    url = f"redis://:geheim@127.0.0.1:{doorbell.getsockname()[1]}/0"
    apps = ["django_singleflight", "django.contrib.staticfiles"]
    settings = {"INSTALLED_APPS": apps, "STATIC_URL": "static/", "STATIC_ROOT": "/nowhere"}
    done = manage(*command.split(), settings=settings if given else {**settings, "SINGLEFLIGHT": {}}, url=url)
    text = done.stdout + done.stderr
    assert done.returncode == (1 if command == "check --deploy" and not given else 0), text
    assert ("E004" in text) is (command == "check --deploy" and not given)
    assert "geheim" not in text
    with pytest.raises(BlockingIOError):
        doorbell.accept()


def python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": "/usr/bin"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_can_be_imported_before_the_settings_are_there() -> None:
    modules = ["", ".apps", ".cache", ".checks", ".conf", ".groups", ".management.commands.flights", ".signing"]
    code = "; ".join(f"import django_singleflight{name}" for name in modules)
    code += "\nimport threading; from django.conf import settings"
    assert python(f"{code}\nprint(settings.configured, threading.active_count())") == "False 1\n"


def test_the_backend_works_without_the_app_and_without_the_setting(server: Server) -> None:
    code = f"""
        from django.conf import settings
        cache = {{"BACKEND": {BACKEND!r}, "LOCATION": "redis://127.0.0.1:{server.port}/1"}}
        settings.configure(SECRET_KEY="x", CACHES={{"default": cache}})
        import django
        django.setup()
        from django.core.cache import caches
        print(caches["default"].get_or_set("k", lambda: 1), caches["default"].delete("k"))
    """
    assert python(re.sub(r"\n {8}", "\n", code)) == "1 True\n"


# Processes


def test_forked_children_have_groups_that_work(server: Server, start: Callable[..., Child]) -> None:
    result = start("fork_after_use", count=4).result()
    assert result == {"parent": "value", "children": ["value"] * 4, "runs": 1}
