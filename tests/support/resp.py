"""As much of the Redis protocol as a proxy must understand: the requests."""

from __future__ import annotations


class Request:
    """One request as it was sent."""

    __slots__ = ("arguments", "raw")

    def __init__(self, arguments: list[bytes], raw: bytes) -> None:
        self.arguments = arguments
        self.raw = raw

    @property
    def name(self) -> str:
        """The command's name, in capitals."""
        return self.arguments[0].decode().upper() if self.arguments else ""


class RequestParser:
    """Cuts a byte stream into requests (arrays of bulk strings, as all clients send them)."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Request]:
        """Take ``data`` in; return the requests that are complete now."""
        self._buffer += data
        requests = []
        while (parsed := self._parse()) is not None:
            arguments, size = parsed
            requests.append(Request(arguments, self._buffer[:size]))
            self._buffer = self._buffer[size:]
        return requests

    def _parse(self) -> tuple[list[bytes], int] | None:
        head = self._number(0, b"*")
        if head is None:
            return None
        count, position = head
        arguments = []
        for _ in range(count):
            head = self._number(position, b"$")
            if head is None:
                return None
            length, start = head
            position = start + length + 2
            if len(self._buffer) < position:
                return None
            arguments.append(self._buffer[start : start + length])
        return arguments, position

    def _number(self, position: int, mark: bytes) -> tuple[int, int] | None:
        end = self._buffer.find(b"\r\n", position)
        if end < 0:
            return None
        assert self._buffer[position : position + 1] == mark, self._buffer[position : end + 2]
        return int(self._buffer[position + 1 : end]), end + 2
