"""What happened, one JSON object a line in a file of the demo's directory; a killed process loses nothing of it."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 1 << 20


class Note(NamedTuple):
    """One event.

    Attributes:
        at: Seconds since the epoch.
        what: ``arrived``, ``answered``, ``lost`` (a visitor); ``begun``, ``ended``, ``killed`` (a call of the model).
        pid: The process in which it happened.
        token: Of a call: the fencing token of its flight.
        question: Of a call: what the model is asked.
    """

    at: float
    what: str
    pid: int
    token: int
    question: str


def note(what: str, token: int = 0, question: str = "") -> None:
    """Write down that something happened in this process."""
    line = json.dumps([time.time(), what, os.getpid(), token, question]) + "\n"
    file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())  # short enough to be one piece
    finally:
        os.close(file)


def notes() -> list[Note]:
    """What was written lately, in the order of time."""
    try:
        with _path().open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return sorted(Note(*each) for each in map(_read, lines) if each)


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # the first line of the tail is a piece of one


def _path() -> Path:
    path: Path = settings.DIRECTORY / "journal"
    return path
