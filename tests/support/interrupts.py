"""Ctrl-C at every moment: raises ``KeyboardInterrupt`` in a thread wherever CPython could deliver it.

The interpreter looks for signals when a function begins, when a call of a C function returns, and when a
loop goes round; nowhere else. ``Interrupter(n)`` raises at the n-th such moment that the package's code
passes in the traced thread, so that all of them can be tried.
"""

from __future__ import annotations

import _weakrefset
import dis
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import singleflight_sync

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(singleflight_sync.__file__).parent)
CALLS = {number for name, number in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name}
LOOPS = {number for name, number in dis.opmap.items() if name.startswith(("JUMP_BACKWARD", "JUMP_ABSOLUTE"))}
# Called by the collector, which only prints what is raised in there; so is a generator that is left early.
SWALLOWS = {_weakrefset.__file__, weakref.__file__}


class Interrupter:
    """Interrupts the calling thread at moment ``number``, counted from 0, of what it runs; None: only counts.

    Attributes:
        moments: How many moments have passed.
        place: Where it has interrupted; ``""``: there were not so many moments.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._last: dict[FrameType, int] = {}  # the instruction that the frame has executed last
        self.moments = 0
        self.place = ""

    def run(self, function: Callable[[], Any]) -> Any:
        """Call the function; raises ``KeyboardInterrupt`` if the moment came."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            return function()
        finally:
            sys.settrace(before)
            self._last.clear()

    def _called(self, frame: FrameType, *_: Any) -> Any:
        caller = frame.f_back
        if frame.f_code.co_filename in SWALLOWS or frame.f_code.co_name in {"__del__", "<genexpr>"}:
            return None
        if caller in self._last:
            self._last[caller] = -1  # a Python function begins: no C function returns
        mine = frame.f_code.co_filename.startswith(PACKAGE)
        if not mine and caller not in self._last:
            return None
        self._moment(frame)
        if not mine:
            return None
        self._last[frame] = -1
        frame.f_trace_opcodes = True
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            last = self._last.get(frame, -1)
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            if last in CALLS or last in LOOPS:
                self._moment(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._traced

    def _moment(self, frame: FrameType) -> None:
        moment, self.moments = self.moments, self.moments + 1
        if moment == self._number:
            code = frame.f_code
            self.place = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
            raise KeyboardInterrupt(self.place)
