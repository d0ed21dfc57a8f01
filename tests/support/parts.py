"""Parts that a machine may lack: left out with a reason, or, where all are required, a failure."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

NOT_APPLICABLE = "not applicable: "


def all_required() -> bool:
    """Whether a missing part is a failure."""
    return os.environ.get("SINGLEFLIGHT_TESTS_REQUIRE") == "all"


def missing(reason: str) -> NoReturn:
    """Leave this test out, because the machine lacks what ``reason`` names."""
    pytest.skip(reason)


def not_applicable(reason: str) -> NoReturn:
    """Leave this test out where it can mean nothing (another platform or version)."""
    pytest.skip(NOT_APPLICABLE + reason)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where all parts are required."""
    if not (report.skipped and all_required()) or hasattr(report, "wasxfail"):
        return
    reason = reason_of(report)
    if not reason.startswith(NOT_APPLICABLE):
        report.outcome = "failed"
        report.longrepr = f"left out although SINGLEFLIGHT_TESTS_REQUIRE=all: {reason}"


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that a skipped report gives."""
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
