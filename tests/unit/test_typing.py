from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import singleflight_sync as sfs
from tests.support import parts

ROOT = Path(__file__).parents[2]
API = Path("tests", "typing", "api.py")


@pytest.mark.timeout(300)
def test_a_type_checker_knows_the_public_names() -> None:
    """A checker accepts the right calls of ``tests/typing/api.py`` and refuses the wrong ones."""
    if importlib.util.find_spec("mypy") is None:
        parts.not_applicable("the linters' stage checks types: install the extra 'dev' to do it here")
    words = ["-m", "mypy", "--config-file", "setup.cfg", str(API)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if line.startswith(str(API))]
    assert errors == []
    assert "1 source file" in done.stdout, done.stdout + done.stderr


def test_every_public_name_is_type_checked() -> None:
    text = (ROOT / API).read_text()
    assert [name for name in sfs.__all__ if f"sfs.{name}" not in text] == []
