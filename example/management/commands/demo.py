"""``manage.py demo``: set the demo site up and serve it, until Ctrl-C."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from example import crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
USER = "demo"
WORKERS = 4
THREADS = crowd.SIZE + 20
"""Of each worker: even where all visitors come to one of them, the pages stay alive."""

START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0
PR_SET_PDEATHSIG = 1


class Command(BaseCommand):
    """Serve the demo site on this machine, with everything that it needs; Ctrl-C ends it all."""

    help = "Serve the demo site on 127.0.0.1, with everything that it needs; Ctrl-C ends it all."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own form

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--port", type=int, default=8000, help="(8000)")
        parser.add_argument("--seconds", type=float, default=6.0, help="how long the model takes to answer (6)")

    def handle(self, *args: Any, port: int, seconds: float, **options: Any) -> None:  # noqa: ARG002 - Django's own
        """Set up, serve, and clear away.

        Raises:
            CommandError: something is missing, or the port is taken.
        """
        if importlib.util.find_spec("gunicorn") is None:
            raise CommandError("gunicorn is missing: pip install -e '.[demo]'")
        _require_free(port)
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        with contextlib.suppress(KeyboardInterrupt), _directory() as directory:
            self._serve(directory, port, seconds)

    def _serve(self, directory: Path, port: int, seconds: float) -> None:
        password = secrets.token_urlsafe(9)
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example.settings",
            "EXAMPLE_DIRECTORY": str(directory),
            "EXAMPLE_SECONDS": str(seconds),
            "EXAMPLE_SECRET_KEY": secrets.token_urlsafe(40),
            "DJANGO_SUPERUSER_PASSWORD": password,
        }
        _django(environment, "migrate", "--verbosity=0")
        _django(
            environment,
            "createsuperuser",
            "--noinput",
            f"--username={USER}",
            "--email=demo@example.org",
            "--verbosity=0",
        )
        del environment["DJANGO_SUPERUSER_PASSWORD"]
        settings.DIRECTORY = directory  # where the crowd of this process keeps its journal
        threading.Thread(target=_send_crowds, args=(directory, port), daemon=True).start()
        with _gunicorn(environment, port) as server:
            _wait(server, port)
            address = f"http://127.0.0.1:{port}/"
            self.stdout.write(f"The demo is at  {address}\nLive flights at {address}admin/django_singleflight/flight/")
            self.stdout.write(f"Sign in as      {USER}\nwith password   {password}\nCtrl-C ends it.")
            self.stdout.flush()
            if server.wait():
                raise CommandError(f"gunicorn ended with status {server.returncode}")


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A directory for all that the demo writes; one that was made for it goes with it."""
    given = os.environ.get("EXAMPLE_DIRECTORY")
    directory = Path(given or tempfile.mkdtemp(prefix="singleflight-example-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        if not given:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _gunicorn(environment: dict[str, str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server, in a session of its own, so that Ctrl-C reaches this process alone; ended with all its workers."""
    words = [f"--bind=127.0.0.1:{port}", f"--workers={WORKERS}", f"--threads={THREADS}", "--worker-class=gthread"]
    words += ["--timeout=60", "--graceful-timeout=1", "--log-level=warning", "example.wsgi:application"]
    server = subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-m", "gunicorn", *words],
        env=environment,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread of ours is in a lock that it takes
    )
    try:
        yield server
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave anything behind
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _die_with_parent() -> None:
    """Where the kernel can, have it end the server when this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _django(environment: dict[str, str], *words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "django", *words], env=environment, cwd=ROOT, check=False)  # noqa: S603
    if done.returncode:
        raise CommandError(f"django {words[0]} failed")


def _send_crowds(directory: Path, port: int) -> None:
    """Send a crowd for each question that comes through the pipe."""
    path = directory / "crowd"
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    with open(os.open(path, os.O_RDWR), encoding="utf-8") as pipe:  # noqa: PTH123 - open for writing too: it never ends
        for line in pipe:
            crowd.come(port, line.strip())


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise CommandError(f"port {port} cannot be used ({exc.strerror}): choose another one with --port") from exc


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise CommandError("gunicorn does not answer")
