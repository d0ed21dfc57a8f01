"""The three stories: a herd, a killed owner, a stopped owner; each claim is checked by what Redis and processes say."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from typing import TYPE_CHECKING, Any

from singleflight_sync import SingleFlight, terminal, urls
from singleflight_sync.demo import picture
from singleflight_sync.demo.act import Act
from singleflight_sync.demo.cast import BrokenOffError, Cast
from singleflight_sync.demo.picture import Span
from singleflight_sync.demo.shelter import ended_by_signals, private_server
from singleflight_sync.demo.stage import Stage
from singleflight_sync.demo.witness import Witness
from singleflight_sync.options import Options

if TYPE_CHECKING:
    from collections import Counter

    from singleflight_sync.demo.cast import Actor
    from singleflight_sync.demo.picture import Row

PROCESSES, THREADS = 4, 25
CALLERS = PROCESSES * THREADS
LLM_SECONDS = 2.0
LEASE = Options().lease
SLACK = 5.0  # seconds that a busy machine may add before a claim about time is called false


def tell(url: str | None = None, namespace: str | None = None) -> int:
    """Tell all of it.

    Args:
        url: the server; by default one of its own, in a directory of its own, gone when the demo ends.
        namespace: what the demo's own namespace begins with.

    Returns:
        0 if every claim was true, else 1.

    Raises:
        ConfigurationError: there is no such server.
        StoreError: it cannot be reached.
    """
    stage = Stage()
    with ended_by_signals(), private_server() if url is None else contextlib.nullcontext(url) as address:
        name = f"{namespace or 'ai:flight'}:demo:{secrets.token_hex(4)}"
        with SingleFlight(url=address, namespace=name, on_store_error="raise") as flights:
            witness = Witness(address, name)
            witness.commands()  # raises where there is no server
            _introduce(stage, address, own=url is None)
            setting = {"url": address, "namespace": name, "seconds": LLM_SECONDS}
            try:
                with Cast(PROCESSES, setting) as cast:
                    _tell_all(stage, cast, witness, flights, own=url is None)
            except BrokenOffError as exc:
                stage.claim("the demo goes on to its end", seen=str(exc), wanted="no obstacle")
            finally:
                witness.clear(f"{name}:owner-seq")
                witness.close()
    return _conclude(stage)


def _introduce(stage: Stage, address: str, *, own: bool) -> None:
    server = "an embedded Valkey of its own" if own else urls.redacted(address)
    stage.say(
        f"{PROCESSES} processes, {THREADS} threads each, on {server}.",
        f'Each caller asks an "LLM" (a function that takes {LLM_SECONDS:.0f} s) the same question at the',
        f"same moment. A lease lasts {LEASE:g} s, as by default.",
    )


def _tell_all(stage: Stage, cast: Cast, witness: Witness, flights: SingleFlight, *, own: bool) -> None:
    results = [
        _herd(Act(stage, cast, witness, "Why is the sky blue?"), flights, own=own),
        _killed(Act(stage, cast, witness, "Why is the sea blue?", hold=True)),
        _stopped(Act(stage, cast, witness, "Why is ice blue?", hold=True), flights),
    ]
    rows = [("", "callers", "begun", "finished", "answers", "different", "takeover after"), *results]
    stage.say("", *(f"  {line}" for line in terminal.table(rows, right=range(1, 7))))


def _conclude(stage: Stage) -> int:
    if stage.false:
        stage.say("", picture.coloured(f"{stage.false} of {stage.claims} claims were NOT true.", "bad"))
        return 1
    stage.say("", picture.coloured(f"All {stage.claims} claims were checked, and are true.", "good"))
    return 0


# -- the acts


def _herd(act: Act, flights: SingleFlight, *, own: bool) -> tuple[str, ...]:
    stage, witness = act.stage, act.witness
    stage.title(f"1. A herd: {CALLERS} callers at once")
    before = act.prepare(THREADS)
    act.go()
    act.until("half-way")
    info = flights.peek(act.question)
    if info is not None:
        stage.tell(f"in Redis: 1 owner, {info.followers} followers (one a process, whatever its threads)")
    act.until("done", PROCESSES)
    after = witness.commands()
    owner, last = act.computation(1).who, act.last()
    rows = [_row(act, actor, owner, "owner: asks the LLM", "follows") for actor in act.actors]
    stage.say("", *picture.timeline(rows, last - act.began), "")
    act.claim_answers(CALLERS, by=owner)
    act.claim_counts(begun=1, finished=1)
    wake_up = last - act.of("finished")[0].at
    stage.claim(
        f"the last of {CALLERS} callers had it {wake_up * 1000:.1f} ms after the LLM's end",
        seen=0 <= wake_up < SLACK,
        wanted=True,
    )
    commands = "not counted on a Cluster"
    if before is not None and after is not None:
        commands = _claim_commands(stage, after - before, own=own)
    _compare(stage, act.counted()[0], commands, wake_up)
    return act.summary("a herd", None)


def _claim_commands(stage: Stage, spent: Counter[str], *, own: bool) -> str:
    number = spent["scripts"] + spent["blocked reads"]
    if not own:
        return f"at most {number}"  # the server counts those of its other clients too
    stage.claim(
        f"{number} commands to Redis for {CALLERS} callers: {spent['scripts']} scripts, {spent['blocked reads']} "
        f"blocked reads (and {spent['greetings']} to open connections), as the server counted",
        seen=number < CALLERS,
        wanted=True,
    )
    return str(number)


def _compare(stage: Stage, calls: int, commands: str, wake_up: float) -> None:
    together, apart = calls * LLM_SECONDS, CALLERS * LLM_SECONDS
    rows = [
        ("", f"{CALLERS} callers, one flight", f"{CALLERS} separate calls"),
        ("LLM calls", str(calls), str(CALLERS)),
        ("LLM time", f"{together:.1f} s", f"{apart:.1f} s"),
        ("Redis commands", commands, "-"),
        ("last answer after the LLM's end", f"{wake_up * 1000:.1f} ms", "-"),
    ]
    bars = [("one flight", together, f"{together:.0f} s"), ("separately", apart, f"{apart:.0f} s")]
    stage.say("", *(f"  {line}" for line in terminal.table(rows, right=(1, 2))), "", *picture.bars(bars))


def _killed(act: Act) -> tuple[str, ...]:
    stage, cast = act.stage, act.cast
    stage.title("2. The owner is killed half-way")
    act.prepare(THREADS)
    act.go()
    act.until("half-way")
    first = act.computation(1)
    killed_at = time.monotonic()
    status = cast.lose(first.who)
    stage.tell(f"SIGKILL to {first.who.name}, with its {THREADS} callers", killed_at)
    act.until("done", PROCESSES - 1)
    second, takeover, last = act.computation(2), act.computation(2).at - killed_at, act.last()
    rows: list[Row] = [(first.who.name, act.work(first.who, killed_at), f"{picture.glyphs().dead} SIGKILL")]
    rows += [_row(act, actor, second.who, f"took over: +{takeover:.2f} s", "follows") for actor in act.actors]
    stage.say("", *picture.timeline(sorted(rows), last - act.began), "")
    stage.claim(f"{first.who.name} was killed by SIGKILL", seen=status, wanted=-signal.SIGKILL)
    act.claim_takeover(killed_at, within=LEASE + SLACK)
    act.claim_answers(
        CALLERS - THREADS, by=second.who, whose=f"nothing was lost: all {CALLERS - THREADS} other callers"
    )
    act.claim_counts(begun=2, finished=1)
    return act.summary("a killed owner", takeover)


def _stopped(act: Act, flights: SingleFlight) -> tuple[str, ...]:
    stage, cast = act.stage, act.cast
    cast.fill()
    stage.title("3. An owner is stopped for longer than its lease, and wakes up")
    act.prepare(THREADS)
    act.go()
    act.until("half-way")
    first = act.computation(1)
    stopped_at = time.monotonic()
    first.who.stop()
    stage.tell(f"SIGSTOP to {first.who.name}: alive, but silent; only its lease tells", stopped_at)
    act.until("done", PROCESSES - 1)
    second, takeover = act.computation(2), act.computation(2).at - stopped_at
    woken_at = time.monotonic()
    stage.tell(f"SIGCONT to {first.who.name}: it goes on, and believes that it is the owner", woken_at)
    first.who.tell({"do": "go on"})
    first.who.send(signal.SIGCONT)
    act.until("done", PROCESSES)
    glyphs, last = picture.glyphs(), act.last()
    spans = [*act.work(first.who, stopped_at), Span(stopped_at - act.began, woken_at - act.began, glyphs.stopped)]
    rows: list[Row] = [(first.who.name, spans, "SIGSTOP, SIGCONT")]
    others = [actor for actor in act.actors if actor is not first.who]
    rows += [_row(act, actor, second.who, f"took over: +{takeover:.2f} s", "follows") for actor in others]
    stage.say("", *picture.timeline(sorted(rows), last - act.began), "")
    asleep = woken_at - stopped_at
    stage.claim(
        f"{first.who.name} was stopped for {asleep:.1f} s, longer than its lease of {LEASE:g} s",
        seen=asleep > LEASE,
        wanted=True,
    )
    act.claim_takeover(stopped_at, within=LEASE + SLACK)
    told = [line.facts["reason"] for line in act.of("finished") if line.who is first.who]
    stage.claim(f"woken, {first.who.name} was told: its cancel token says LOST", seen=told, wanted=["LOST"])
    fates = {line.who.name: line.facts["name"] for line in act.of("event") if line.facts["name"] in _FATES}
    stage.claim(
        f"its publication was refused, that of {second.who.name} accepted",
        seen=fates,
        wanted={first.who.name: "FlightLost", second.who.name: "FlightPublished"},
    )
    kept: Any = flights.get(act.question)
    stage.claim(f"Redis keeps the answer of {second.who.name}", seen=kept and kept["said in"], wanted=second.who.name)
    act.claim_answers(CALLERS, by=second.who, whose=f"all {CALLERS} callers, those of {first.who.name} too,")
    act.claim_counts(begun=2, finished=2)
    return act.summary("a stopped owner", takeover)


_FATES = {"FlightLost", "FlightPublished", "FlightFailed", "FlightCancelled"}


def _row(act: Act, actor: Actor, hero: Actor, deed: str, otherwise: str) -> Row:
    return actor.name, act.work(actor), deed if actor is hero else otherwise
