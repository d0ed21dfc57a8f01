"""The slow and costly model that everybody asks."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from django.conf import settings

import singleflight_sync as sfs
from example import journal

if TYPE_CHECKING:
    from pathlib import Path

STEP = 0.05
"""Seconds between two looks at the cancel token."""


def answer(question: str) -> dict[str, str | int]:
    """Think for some seconds; the running flight says whether it still makes sense."""
    flight = sfs.current_flight()
    token = flight.fencing_token if flight else 0
    journal.note("begun", token, question)
    try:
        for _ in range(round(settings.SECONDS / STEP)):
            time.sleep(STEP)
            if flight:
                flight.cancel_token.checkpoint()
            if _sentence(token).exists():
                die(token)
    finally:
        journal.note("ended", token)
    return {"text": f"“{question}” is a very good question.", "pid": os.getpid()}


def condemn(token: int) -> None:
    """Have the process that owns this flight die. It does so itself, and so no other process can be hit."""
    _sentence(token).touch()


def die(token: int) -> None:
    """As from the kernel's out-of-memory killer: nothing is cleaned up."""
    journal.note("killed", token)
    os.kill(os.getpid(), signal.SIGKILL)


def _sentence(token: int) -> Path:
    path: Path = settings.DIRECTORY / f"kill-{token}"
    return path
