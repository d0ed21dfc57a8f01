"""What a process of the demo runs: so many threads that ask for the same answer at the same moment.

Started as ``-m singleflight_sync.demo.caller PARENT``. It is told what to do, and tells what happens, in lines of JSON
on stdin and stdout. It ends with stdin.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import Any

from singleflight_sync import FlightEvent, SingleFlight, current_flight, supervisor
from singleflight_sync.demo.witness import Witness

HELD_AT_MOST = 30.0  # seconds
TOLD_WITHIN = 10.0  # seconds


class Caller:
    """The threads of one process, and the function that they ask for."""

    def __init__(self, name: str, url: str, namespace: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._flights = SingleFlight(url=url, namespace=namespace, on_store_error="raise")
        self._flights.subscribe(self._note)
        self._witness = Witness(url, namespace)
        self._speaking = threading.Lock()
        self._go = threading.Event()
        self._go_on = threading.Event()

    def obey(self, order: dict[str, Any]) -> None:
        """Do what one line of the story's asks for."""
        if order["do"] == "prepare":
            self._go, self._go_on = threading.Event(), threading.Event()
            work = threading.Thread(target=self._ask_together, args=(order,), daemon=True)
            work.start()
        elif order["do"] == "go":
            self._go.set()
        else:
            self._go_on.set()

    def say(self, what: str, **facts: Any) -> None:
        """Tell the story one line."""
        line = json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n"
        with self._speaking:
            os.write(1, line.encode())

    def _ask_together(self, order: dict[str, Any]) -> None:
        question, go = order["question"], self._go
        ready = threading.Barrier(order["threads"] + 1)
        answers: list[tuple[float, Any]] = []
        errors: list[str] = []

        def ask() -> None:
            ready.wait()
            go.wait()
            try:
                answer = self._flights.run(question, lambda: self._ask_llm(question, hold=order["hold"]))
                answers.append((time.monotonic(), answer))
            except Exception as exc:  # noqa: BLE001 - it is told
                errors.append(f"{type(exc).__name__}: {exc}")

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(order["threads"])]
        for thread in threads:
            thread.start()
        self._witness.counted(f"begun {question}")  # opens its connection, so that it is not counted later
        ready.wait()
        self.say("ready", threads=len(threads))
        for thread in threads:
            thread.join()
        self.say(
            "done",
            answers=[answer for _, answer in answers],
            last=max((at for at, _ in answers), default=0),
            errors=errors,
        )

    def _ask_llm(self, question: str, *, hold: bool) -> dict[str, str]:
        """The "LLM". The first one of a question is held half-way, if the story wants so."""
        flight = current_flight()
        assert flight is not None
        number = self._witness.count(f"begun {question}")
        self.say("begun", number=number, token=flight.fencing_token)
        flight.cancel_token.wait(self._seconds / 2)
        self.say("half-way", number=number)
        if hold and number == 1:
            self._go_on.wait(HELD_AT_MOST)
            flight.cancel_token.wait(TOLD_WITHIN)
        else:
            flight.cancel_token.wait(self._seconds / 2)
        self._witness.count(f"finished {question}")
        reason = flight.cancel_token.reason
        self.say("finished", number=number, reason=None if reason is None else reason.name)
        return {"answer": "Air scatters blue light more than red.", "said in": self._name}

    def _note(self, event: FlightEvent) -> None:
        self.say("event", name=type(event).__name__, token=event.fencing_token)


def main() -> None:
    """Obey until stdin ends."""
    supervisor.die_with(int(sys.argv[1]))  # a stopped process would not see the end of its stdin
    logging.getLogger("singleflight_sync").addHandler(logging.NullHandler())
    caller = Caller(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        caller.obey(json.loads(line))
    os._exit(0)  # whatever its threads do


if __name__ == "__main__":
    main()
