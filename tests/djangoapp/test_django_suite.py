"""Django's own cache tests, unmodified, against our backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import textwrap
from contextlib import ExitStack
from typing import TYPE_CHECKING

import django
import pytest

from tests.support import parts
from tests.support.processes import ROOT
from tests.support.servers import LAUNCHER, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BACKEND = "django_singleflight.cache.SingleFlightCache"

# A: our class under the official path, so that the tests of Django's Redis backend take it for Django's own.
SWAPPED = f"""
    import django.core.cache.backends.redis as official
    from {BACKEND.rpartition(".")[0]} import SingleFlightCache
    official.RedisCache = SingleFlightCache
    BACKEND = "django.core.cache.backends.redis.RedisCache"
"""
# B: our dotted path. The tests of all backends run against it from a package of their own, too.
NAMED = f"BACKEND = {BACKEND!r}"

SETTINGS = """
from test_sqlite import *
{backend}
CACHES = {{"default": {{"BACKEND": BACKEND, "LOCATION": "redis://127.0.0.1:{port}"}}}}
"""

OF_ALL_BACKENDS = """
import redis
from cache.tests import BaseCacheTests, caches_setting_for_tests, redis_excluded_caches
from django.conf import settings
from django.test import TestCase, override_settings


@override_settings(CACHES=caches_setting_for_tests(base=settings.CACHES["default"], exclude=redis_excluded_caches))
class SingleFlightCacheTests(BaseCacheTests, TestCase):
    incr_decr_type_error = redis.ResponseError
"""


@pytest.fixture(scope="module")
def django_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests of the installed Django, from its source distribution."""
    directory = tmp_path_factory.mktemp("django")
    wanted = f"django=={django.get_version()}"
    words = ["download", "--quiet", "--no-deps", "--no-binary", "django", "--dest", str(directory), wanted]
    command = [sys.executable, "-m", "pip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        parts.missing(f"{wanted} as a source distribution: pip did not end")
    archive = next(directory.glob("*.tar.gz"), None)
    if archive is None:
        parts.missing(f"{wanted} as a source distribution: {done.stderr[-300:]}")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data", members=filter(is_needed, tar))
    return next(directory.glob("*/tests"))


def is_needed(member: tarfile.TarInfo) -> bool:
    """Whether it is the runner, what it needs, or a test of the cache."""
    _, *places = member.name.split("/")
    return places[:1] == ["tests"] and (len(places) <= 2 or places[1] in {"cache", "templates"})


class Run:
    """The labels, running beside other runs: most of their time they sleep."""

    def __init__(self, tests: Path, server: Server, backend: str, *labels: str) -> None:
        name = f"settings_of_{labels[-1].replace('.', '_')}"
        (tests / f"{name}.py").write_text(SETTINGS.format(backend=textwrap.dedent(backend), port=server.port))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tests), str(ROOT)]),
            "PYTHONWARNINGS": "default",
        }
        words = ["runtests.py", f"--settings={name}", "--parallel=1", "--verbosity=2", *labels]
        command = [sys.executable, str(LAUNCHER), str(os.getpid()), sys.executable, *words]
        self._log = tests.parent / f"{labels[-1]}.log"
        with self._log.open("w") as output:
            self._process = subprocess.Popen(command, cwd=tests, env=environment, stdout=output, stderr=output)

    def report(self) -> str:
        """What the runner said, when it has ended."""
        status = self._process.wait(500)
        text = self._log.read_text()
        assert status == 0, text[-8000:]
        return text


@pytest.fixture(scope="module")
def runs(django_tests: Path, server_binary: str) -> Iterator[tuple[Run, Run]]:
    """Both ways at the same time, each with a server of its own, which the tests flush."""
    package = django_tests / "singleflight_cache"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tests.py").write_text(OF_ALL_BACKENDS)
    with ExitStack() as stack:
        servers = [Server(), Server()]
        for server in servers:
            stack.callback(server.stop)
        yield (
            Run(django_tests, servers[0], SWAPPED, "cache.tests.RedisCacheTests"),
            Run(django_tests, servers[1], NAMED, "cache", "singleflight_cache"),
        )


def counts(report: str) -> tuple[int, int, set[str]]:
    """How many tests ran, how many of them were skipped, and why."""
    ran = re.search(r"^Ran (\d+) tests", report, re.MULTILINE)
    skipped = re.search(r"^OK \(skipped=(\d+)", report, re.MULTILINE)
    reasons = re.findall(r"\.\.\. skipped ['\"](.*)['\"]$", report, re.MULTILINE)
    assert ran
    return int(ran[1]), int(skipped[1]) if skipped else 0, set(reasons)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_of_djangos_redis_backend_pass(runs: tuple[Run, Run]) -> None:
    ran, skipped, reasons = counts(runs[0].report())
    assert ran >= 62
    assert skipped <= 3
    assert reasons == {"Culling isn't implemented."}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cache_tests_pass_with_our_backend(runs: tuple[Run, Run]) -> None:
    ran, _, reasons = counts(runs[1].report())
    assert ran >= 540
    others = {f"{each} backend not configured" for each in ("PyLibMCCache", "PyMemcacheCache", "Redis")}
    assert reasons <= {"Culling isn't implemented."} | others
