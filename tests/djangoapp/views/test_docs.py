"""What the documentation says of views is what they do."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest

from django_singleflight.keys import IDENTIFIES_NOBODY
from django_singleflight.sharing import REASONS
from tests.support.processes import ROOT

TEXT = (ROOT / "docs" / "views.rst").read_text()
BLOCKS = re.findall(r"code-block:: python\n\n((?:    .*\n|\n)+)", TEXT)


def between(start: str, end: str) -> str:
    return TEXT.partition(start)[2].partition(end)[0]


def test_the_headers_that_identify_nobody_are_listed() -> None:
    listed = re.findall(r"``([A-Za-z0-9-]+)``", between("are left out:", "and those of the setting"))
    assert listed == list(IDENTIFIES_NOBODY)


def test_the_reasons_are_listed() -> None:
    assert set(re.findall(r"``([a-z-]+)``", between("The reasons:", "What cannot be seen"))) == set(REASONS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs(number: int) -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(textwrap.dedent(BLOCKS[number]), names)  # noqa: S102 - our own documentation
    assert any(callable(each) for each in names.values())
