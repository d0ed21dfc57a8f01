"""Text for people at a terminal: printable, in columns, no wider than the line."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence

_ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_GAP = "  "


def printable(text: str) -> str:
    """Return ``text`` with what cannot be seen escaped as in a Python string; different texts stay different."""
    if text.isprintable() and "\\" not in text and text == text.strip():
        return text
    body = "".join(_escaped(char) for char in text.strip(" "))
    before = len(text) - len(text.lstrip(" "))
    after = len(text) - before - len(text.strip(" "))
    return "\\x20" * before + body + "\\x20" * after


def _escaped(char: str) -> str:
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Return a message as one line, without what could move a cursor."""
    return "".join(char if char.isprintable() else _escaped(char) for char in " ".join(text.split()))


def unescaped(text: str) -> str | None:
    """Return what `printable` made ``text`` of, or None if it made it of nothing."""
    try:
        original = _ESCAPE.sub(lambda match: match[0].encode().decode("unicode_escape"), text)
        original.encode()
    except UnicodeError:
        return None
    return original if printable(original) == text else None


def width(text: str) -> int:
    """Return how many columns a printable text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def cut(text: str, columns: int) -> str:
    """Return ``text``, its end replaced by an ellipsis if it takes more than ``columns``."""
    if width(text) <= columns:
        return text
    taken = 0
    for place, char in enumerate(text):
        taken += _char_width(char)
        if taken >= columns:
            return text[:place] + "…" * (columns > 0)
    return text


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Return ``text`` filled up with spaces to ``columns``, on its left if it stands at the ``right``."""
    blank = " " * (columns - width(text))
    return blank + text if right else text + blank


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Return rows of equal length as aligned lines; the columns of the numbers in ``right`` stand at the right."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    at_right = frozenset(right)
    return [
        _GAP.join(
            padded(cell, columns, right=place in at_right)
            for place, (cell, columns) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def is_terminal() -> bool:
    """Whether stdout is a terminal that can move its cursor."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def size() -> os.terminal_size:
    """Columns and lines of the terminal, 80 by 24 where there is none."""
    return shutil.get_terminal_size()


def be_lenient() -> None:
    """Have characters that the encoding of stdout or stderr lacks written as escapes, not raised."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
