"""A TCP proxy in front of a server that behaves as badly as networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import redis

from tests.support.resp import Request, RequestParser

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.support.servers import Server

    Match = Callable[[bytes], bool] | int


class Rule:
    """What is to happen to requests that match; made by the proxy's methods.

    A number as ``match`` means the n-th request from now, on whatever connection.
    """

    def __init__(self, action: str, match: Match, times: int) -> None:
        self.action = action
        self.requests: list[Request] = []  # those that matched; guarded by the proxy's lock
        self.happened = threading.Event()
        self.released = threading.Event()
        self._match = match
        self._seen = 0
        self._times = times

    def takes(self, request: Request) -> bool:
        """Whether ``request`` is one for this rule. Call it under the proxy's lock."""
        if len(self.requests) >= self._times:
            return False
        self._seen += 1
        matched = self._seen == self._match if isinstance(self._match, int) else self._match(request.raw)
        if matched:
            self.requests.append(request)
        return matched

    def wait(self, within: float = 10.0) -> Request:
        """Wait until it has happened; return the first request that matched."""
        assert self.happened.wait(within), f"no request was met by {self.action!r}"
        return self.requests[0]

    def release(self) -> None:
        """Let the requests that are held go on to the server."""
        self.released.set()


class Link:
    """One client's connection, and ours to the server for it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.dropping = False  # set before the request is sent whose reply must not arrive
        self._proxy = proxy

    def start(self) -> None:
        """Begin to forward."""
        for pump in (self._pump_requests, self._pump_replies):
            threading.Thread(target=pump, name="test-proxy", daemon=True).start()

    def _pump_requests(self) -> None:
        parser = RequestParser()
        with contextlib.suppress(OSError):
            while data := self.client.recv(65_536):
                for request in parser.feed(data):
                    self._proxy.treat(self, request)
        self.close()

    def _pump_replies(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.server.recv(65_536):
                self._proxy.pass_gate()
                if self.dropping:
                    break
                self.client.sendall(data)
        self.close()

    def half_close(self) -> None:
        """End the direction to the client: it reads the end of the stream and can still write."""
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        """Close both sides, towards the client with a reset if asked; the first call decides."""
        if not self._proxy.forget(self):
            return
        if reset:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # Only a shutdown wakes the pump that reads; one of the reading side alone sends nothing.
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            side.close()


class Proxy:
    """Forwards to ``server`` until told otherwise; thread-safe; a context manager.

    Rules (``cut_before_reply`` and the like) concern single requests; ``refuse``, ``black_hole``
    and ``delay`` everything, until ``forward``.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._links: set[Link] = set()  # guarded by _lock
        self._rules: list[Rule] = []  # guarded by _lock
        self._gate = threading.Event()
        self._gate.set()
        self._closed = threading.Event()
        self._delay = 0.0
        self.connections = 0  # accepted so far
        self.commands: Counter[str] = Counter()  # requests so far, by name; guarded by _lock
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()

    # Whole-proxy modes

    def forward(self) -> None:
        """Be a good proxy (again): what a black hole held back arrives now."""
        self._delay = 0.0
        self._gate.set()
        if self._listener is None:
            self._listen()

    def delay(self, seconds: float) -> None:
        """Hand on each piece of data later by ``seconds``, in both directions."""
        self._delay = seconds

    def refuse(self) -> None:
        """Refuse new connections and cut those that exist."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def black_hole(self) -> None:
        """Accept connections and data, and let nothing through in either direction."""
        self._gate.clear()

    def cut(self, *, reset: bool = False) -> None:
        """Close all connections that exist."""
        for link in self._snapshot():
            link.close(reset=reset)

    def half_close(self) -> None:
        """Half-close all connections that exist: clients read the end of the stream."""
        for link in self._snapshot():
            link.half_close()

    # Rules for single requests

    def cut_before_reply(self, match: Match = 1, *, times: int = 1) -> Rule:
        """Forward the request, wait for the server's reply, drop it and close the connection.

        Replies to earlier requests of the same pipeline may be dropped with it.
        """
        return self._add(Rule("cut before reply", match, times))

    def cut_before_request(self, match: Match = 1, *, times: int = 1) -> Rule:
        """Close the connection instead of forwarding the request."""
        return self._add(Rule("cut before request", match, times))

    def hold(self, match: Match = 1, *, times: int = 1) -> Rule:
        """Keep the request, and what follows it on its connection, back until ``release``.

        It arrives then even if its client has given up: a late execution.
        """
        return self._add(Rule("hold", match, times))

    def record(self, match: Match = 1, *, times: int = 1) -> Rule:
        """Forward the request and keep a copy for ``replay``."""
        return self._add(Rule("record", match, times))

    def replay(self, request: Request) -> Any:
        """Send a copy of ``request`` to the server now; return the server's reply."""
        with redis.Redis(port=self._server.port) as client:
            return client.execute_command(*request.arguments)

    # Facts

    @property
    def open(self) -> int:
        """How many connections exist."""
        return len(self._snapshot())

    @property
    def url(self) -> str:
        """The proxy's address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A client that talks through the proxy."""
        return self._server.keep(redis.Redis(port=self.port, **options))

    # Called by links

    def treat(self, link: Link, request: Request) -> None:
        """Do with ``request`` what the first rule that takes it says."""
        with self._lock:
            self.commands[request.name] += 1
            rule = next((rule for rule in self._rules if rule.takes(request)), None)
        action = rule.action if rule else "forward"
        if action == "cut before request":
            link.close()
        elif action == "hold" and rule:
            rule.happened.set()
            rule.released.wait()
        link.dropping |= action == "cut before reply"
        if rule and action != "hold":
            rule.happened.set()
        self.pass_gate()
        link.server.sendall(request.raw)

    def pass_gate(self) -> None:
        """Wait as long as the mode of the proxy demands."""
        if self._delay:
            self._closed.wait(self._delay)
        self._gate.wait()

    def forget(self, link: Link) -> bool:
        """Note that ``link`` is closed; False if it was before."""
        with self._lock:
            known = link in self._links
            self._links.discard(link)
        return known

    # Inner works

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _snapshot(self) -> list[Link]:
        with self._lock:
            return list(self._links)

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(512)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="test-proxy", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server.port), timeout=2)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, client, server)
        with self._lock:
            self._links.add(link)  # before the first byte, or a cut could miss it
        link.start()

    def close(self) -> None:
        """End everything."""
        self._closed.set()
        with self._lock:
            rules = list(self._rules)
        for rule in rules:
            rule.release()
        self.refuse()
        self._gate.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
