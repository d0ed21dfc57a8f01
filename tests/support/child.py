"""The child's side of ``processes``: ``-m tests.support.child PARENT FUNCTION ARGUMENTS``."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from tests.support.launch import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable


class Channel:
    """How a child talks to the test that started it. ``send`` may be called by any thread."""

    def __init__(self) -> None:
        # What a function prints goes to stderr, so that messages stay alone on their pipe.
        self._out = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: Any) -> None:
        """Send one message, anything that JSON can carry."""
        os.write(self._out, json.dumps(message).encode() + b"\n")  # one write: lines stay whole

    def wait(self) -> Any:
        """Wait for the next message of the test (a barrier); end with it if it is gone."""
        line = sys.stdin.readline()
        if not line:
            os._exit(1)
        return json.loads(line)


def resolve(path: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def main(path: str, arguments: str) -> None:
    """Call the function with the channel and its arguments; report how it ended."""
    channel = Channel()
    try:
        value = resolve(path)(channel, **json.loads(arguments))
    except BaseException as error:
        channel.send({"raised": type(error).__name__, "text": traceback.format_exc()})
        raise
    channel.send({"returned": value})


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(sys.argv[2], sys.argv[3])
