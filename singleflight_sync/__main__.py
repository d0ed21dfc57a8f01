"""The command line: ``python -m singleflight_sync --help``."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import itertools
import json
import logging
import math
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from singleflight_sync import SingleFlight, terminal
from singleflight_sync.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight_sync import FlightInfo

DONE, NOT_FOUND, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

_EXITS = "Exit status: 0 done, 1 not found (demo: a claim was false), 2 usage, 3 store unreachable."
_KEY = "the key as `list` prints it, or its digest (`sha256 <hex>`, or the hex alone)"
_DIGEST = re.compile(r"(?:sha256 )?([0-9a-f]{64})")
_HEADER = ("AGE", "LEASE", "FOLLOWERS", "TAKEOVERS", "STATUS", "TOKEN", "OWNER", "KEY")
_RIGHT = (0, 1, 2, 3)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; usage errors raise ``SystemExit`` as argparse does."""
    terminal.be_lenient()
    logging.getLogger("singleflight_sync").addHandler(logging.NullHandler())  # errors are told once, in one line
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.command(arguments)
        print(end="", flush=True)
    except ConfigurationError as exc:
        status = _fail(exc, USAGE)
    except StoreError as exc:
        status = _fail(exc, UNREACHABLE)
    except KeyboardInterrupt:
        status = DONE if arguments.command is _watch else INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        status = INTERRUPTED if arguments.command is _demo else DONE
    except OSError as exc:
        _discard_output()
        status = _fail(exc, USAGE)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is told in one line
        status = _fail(f"{type(exc).__name__}: {exc}", UNREACHABLE)
    return status


# -- the commands


def _list(arguments: argparse.Namespace) -> int:
    with _group(arguments) as flights:
        infos = _matching(flights, arguments)
    if arguments.json:
        _print_json(infos)
    else:
        print(*_lines(infos), sep="\n")
    return DONE


def _show(arguments: argparse.Namespace) -> int:
    with _group(arguments) as flights:
        info = next(filter(None, map(flights.peek, _meant(flights, arguments.key))), None)
    if info is None:
        return _fail(f"no live flight of key {terminal.printable(arguments.key)}", NOT_FOUND)
    if arguments.json:
        _print_json([info])
    else:
        rows = [(name, terminal.printable(str(value))) for name, value in dataclasses.asdict(info).items()]
        print(*terminal.table(rows), sep="\n")
    return DONE


def _cancel(arguments: argparse.Namespace) -> int:
    with _group(arguments) as flights:
        return _change(arguments, flights, flights.cancel, "cancelled", "no open flight")


def _forget(arguments: argparse.Namespace) -> int:
    with _group(arguments) as flights:
        return _change(arguments, flights, flights.forget, "forgotten", "no result, kept failure or open flight")


def _change(
    arguments: argparse.Namespace,
    flights: SingleFlight,
    change: Callable[[str, int | None], bool],
    done: str,
    nothing: str,
) -> int:
    key = next((key for key in _meant(flights, arguments.key) if change(key, arguments.token)), None)
    if key is None:
        whose = "" if arguments.token is None else f" with token {arguments.token}"
        return _fail(f"{nothing} of key {terminal.printable(arguments.key)}{whose}", NOT_FOUND)
    print(json.dumps({"key": key, done: True}) if arguments.json else f"{done} {terminal.printable(key)}")
    return DONE


def _watch(arguments: argparse.Namespace) -> int:
    redraws = terminal.is_terminal() and not arguments.json
    with _group(arguments) as flights:
        for number in itertools.count(1):
            infos = _matching(flights, arguments)
            if arguments.json:
                _print_json(infos)
            else:
                place = terminal.printable(flights.namespace.name)
                title = f"{time.strftime('%H:%M:%S')}  live flights in {place}: {len(infos)}"
                _draw([title, "", *_lines(infos)], redraws=redraws, first=number == 1)
            print(end="", flush=True)
            if number == arguments.count:
                break
            time.sleep(arguments.interval)
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise ConfigurationError("the demo is told to people: it has no --json, its exit status says if it was true")
    from singleflight_sync.demo.story import tell  # noqa: PLC0415 - the other commands need none of it

    return tell(arguments.url, arguments.namespace)


# -- what they share


def _group(arguments: argparse.Namespace) -> SingleFlight:
    settings: dict[str, Any] = {"url": arguments.url, "namespace": arguments.namespace}
    given = {name: value for name, value in settings.items() if value is not None}
    return SingleFlight(on_store_error="raise", **given)


def _matching(flights: SingleFlight, arguments: argparse.Namespace) -> list[FlightInfo]:
    glob = arguments.match
    return [info for info in flights.live() if glob is None or fnmatch.fnmatchcase(info.key, glob)]


def _meant(flights: SingleFlight, text: str) -> Iterator[str]:
    """The keys that ``text`` can mean, in this order: as `list` prints it, to the letter, by its digest."""
    original = terminal.unescaped(text)
    if original not in (None, text):
        yield original
    yield text
    digest = _DIGEST.fullmatch(text)
    if digest:
        keys = [info.key for info in flights.live()]
        yield from (key for key in keys if hashlib.sha256(key.encode()).hexdigest() == digest[1])


# -- what they print


def _print_json(infos: Sequence[FlightInfo]) -> None:
    for info in infos:
        print(json.dumps(dataclasses.asdict(info)))


def _lines(infos: Sequence[FlightInfo]) -> list[str]:
    if not infos:
        return ["no live flights"]
    return terminal.table([_HEADER, *map(_row, infos)], right=_RIGHT)


def _row(info: FlightInfo) -> tuple[str, ...]:
    host, pid = (*info.owner_id.split("/"), "")[:2]
    return (
        f"{info.age:.1f}s",
        f"{info.lease_left:.1f}s",
        str(info.followers),
        str(info.takeovers),
        terminal.printable(info.status) + " forgotten" * info.forgotten,
        str(info.fencing_token or "-"),
        terminal.printable(f"{host}:{pid}"),
        terminal.printable(info.key),
    )


def _draw(lines: list[str], *, redraws: bool, first: bool) -> None:
    if not redraws:
        print(*lines, "", sep="\n")
        return
    columns, rows = terminal.size()
    if len(lines) >= rows:
        shown = max(0, rows - 2)
        lines = [*lines[:shown], f"… {len(lines) - shown} more"]
    picture = "".join(f"{terminal.cut(line, columns)}\x1b[K\n" for line in lines)
    print(("\x1b[2J" if first else "") + "\x1b[H" + picture + "\x1b[J", end="")


def _fail(problem: object, status: int) -> int:
    if sys.stderr is not None:
        print(f"singleflight_sync: {terminal.one_line(str(problem))}", file=sys.stderr)
    return status


def _discard_output() -> None:
    """Have what is still buffered for stdout go nowhere, so that Python does not fail on it once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


# -- how they are called


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # A URL that stands where none belongs may hold a password.
        message = re.sub(r"(?<=://).*@|(?<=password=).*", "***", message)
        sys.exit(_fail(f"{message} (see --help)", USAGE))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m singleflight_sync",
        description="Look at the flights of a namespace, and end them.",
        epilog=_EXITS,
        parents=[_common()],
        allow_abbrev=False,
    )
    parser.set_defaults(url=None, namespace=None, json=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        name = command.__name__.strip("_")
        added = commands.add_parser(
            name, parents=[_common()], help=text, description=text, epilog=_EXITS, allow_abbrev=False
        )
        added.set_defaults(command=command)
        return added

    add(_demo, "see it work, on a server of its own: a herd, a killed owner, a stopped owner")
    listing = add(_list, "print the live flights, oldest first")
    watching = add(_watch, "print the live flights again and again")
    watching.add_argument("--interval", type=_seconds, default=1.0, help="seconds between two draws (1)")
    watching.add_argument("--count", type=_whole, help="end after so many draws")
    for each in (listing, watching):
        each.add_argument("--match", metavar="GLOB", help="only keys like this: report:*")
    showing = add(_show, "print all that is known of the live flight of a key")
    cancelling = add(_cancel, "end the flight of a key now: everybody in it gets an error")
    forgetting = add(_forget, "drop the result of a key; a flight in the air stores nothing")
    for each in (showing, cancelling, forgetting):
        each.add_argument("key", metavar="KEY", help=_KEY)
    for each in (cancelling, forgetting):
        each.add_argument("--token", type=int, metavar="N", help="only the flight with this fencing token")
    return parser


def _common() -> _Parser:
    """The options that stand before or after the command: what is not given there leaves alone what was given here."""
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--url", help="the server; by default SINGLEFLIGHT_URL, else the embedded one")
    common.add_argument("--namespace", help="prefix of the Redis keys (ai:flight)")
    common.add_argument("--json", action="store_true", help="one JSON object a line, for programs")
    return common


def _seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
