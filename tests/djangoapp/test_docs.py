"""What the documentation says of the app is what the app says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from django_singleflight import checks, conf
from singleflight_sync import RunOptions, SingleFlight
from tests.support.processes import ROOT

TEXT = (ROOT / "docs" / "django.rst").read_text()
ROW = re.compile(r"^``([A-Z_]+)``\s+(.*?)\s{2,}\S", re.MULTILINE)
DEFAULTS = dict(ROW.findall(TEXT))


def test_the_table_holds_all_settings() -> None:
    assert set(DEFAULTS) == conf.NAMES


@pytest.mark.parametrize("name", sorted(name.upper() for name in RunOptions.__optional_keys__))
def test_the_table_tells_the_defaults(name: str) -> None:
    value = dataclasses.asdict(SingleFlight().options)[name.lower()]
    forms = {repr(value), f'"{value}"', f"{value} s", f"{value:g} s" if isinstance(value, float) else ""}
    if name == "MAX_BYTES":
        forms = {f"{value // 2**20} MiB"}
    assert DEFAULTS[name].strip("`") in forms


def test_the_table_holds_all_checks() -> None:
    known = set(re.findall(r"django_singleflight\.[EW]\d{3}", Path(checks.__file__).read_text()))
    assert set(re.findall(r"^``(django_singleflight\.[EW]\d{3})``", TEXT, re.MULTILINE)) == known
