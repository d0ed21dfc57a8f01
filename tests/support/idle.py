"""Ending what the package keeps for a while after its last flight."""

from __future__ import annotations

import pytest

from singleflight_sync import keeper


def end_keeper(within: float = 5.0) -> None:
    """End the timer thread of this process at once; it starts again with the next flight."""
    mine = keeper.keeper()
    thread = mine._thread
    if thread is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keeper, "IDLE", -1.0)
            mine._wake.set()
            thread.join(within)
