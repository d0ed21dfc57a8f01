"""``manage.py flights``: look at the flights of all groups, and end them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_singleflight import groups
from singleflight_sync import ConfigurationError, StoreError, terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django_singleflight.groups import Group
    from singleflight_sync import FlightInfo

    IsThere = Callable[[Group, str, int | None], bool]

NOT_FOUND, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130

INTERVAL = 1.0
"""Seconds between two looks under ``--watch``."""

_EXITS = "Exit status: 0 done, 1 not found, 2 usage, 3 store unreachable."
_KEY = "the full key as `list` prints it, or its digest (`sha256 <hex>`, or the hex alone)"
_DIGEST = re.compile(r"(?:sha256 )?([0-9a-f]{64})")
_HEADER = ("AGE", "LEASE", "FOLLOWERS", "TAKEOVERS", "STATUS", "TOKEN", "OWNER", "GROUP", "KEY")
_RIGHT = (0, 1, 2, 3)
_ABSENT = object()


class _Found(NamedTuple):
    name: str
    group: Group
    key: str


class Command(BaseCommand):
    """Look at the flights of all groups, and end them."""

    help = f"Look at the flights of all groups, and end them. {_EXITS}"
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own form

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the commands; what they have in common may stand before or after them."""
        _add_common(parser, {})
        commands = parser.add_subparsers(metavar="COMMAND", required=True)

        def add(name: str, command: Callable[..., None], text: str) -> CommandParser:
            added: CommandParser = commands.add_parser(name, help=text, description=f"{text}. {_EXITS}")
            _add_common(added, {"default": argparse.SUPPRESS})
            added.set_defaults(command=command)
            return added

        listing = add("list", self._list, "print the live flights, oldest first")
        listing.add_argument("--match", metavar="GLOB", help="only keys like this: report:*")
        showing = add("show", self._show, "print all that is known of the live flight of a key")
        for each in (listing, showing):
            each.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
        cancelling = add("cancel", self._cancel, "end the flight of a key now: everybody in it gets an error")
        forgetting = add("forget", self._forget, "drop the result of a key; a flight in the air stores nothing")
        for each in (showing, cancelling, forgetting):
            each.add_argument("key", metavar="KEY", help=_KEY)
        for each in (cancelling, forgetting):
            each.add_argument("--token", type=int, metavar="N", help="only the flight with this fencing token")

    def handle(self, *args: Any, command: Callable[..., None], **options: Any) -> None:  # noqa: ARG002 - Django's own
        """Run one command.

        Raises:
            CommandError: with the exit status.
        """
        if getattr(self, "_called_from_command_line", False):
            terminal.be_lenient()
        try:
            command(options)
            self.stdout.flush()
        except ConfigurationError as exc:
            raise CommandError(str(exc), returncode=USAGE) from exc
        except StoreError as exc:
            raise CommandError(terminal.one_line(str(exc)), returncode=UNREACHABLE) from exc
        except KeyboardInterrupt:
            if not options.get("watch"):
                sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _discard_output()

    # -- the commands

    def _list(self, options: dict[str, Any]) -> None:
        for first in _looks(options):
            infos, problems = _live(options)
            if options["json"]:
                self._print_json(infos)
            elif infos or not problems:
                self._draw(_lines(infos), options, first=first)
            if problems:
                raise StoreError("; ".join(problems))

    def _show(self, options: dict[str, Any]) -> None:
        for first in _looks(options):
            found = _only(options, _peek)
            info = found and found.group.peek(found.key)
            if not info:
                raise _nothing("no live flight", options)
            if options["json"]:
                self._print_json([info])
            else:
                rows = [(name, terminal.printable(str(value))) for name, value in dataclasses.asdict(info).items()]
                self._draw(terminal.table(rows), options, first=first)

    def _cancel(self, options: dict[str, Any]) -> None:
        self._change(options, "cancel", "cancelled", _peek, "no open flight")

    def _forget(self, options: dict[str, Any]) -> None:
        self._change(options, "forget", "forgotten", _anything, "no result, kept failure or open flight")

    def _change(self, options: dict[str, Any], verb: str, done: str, is_there: IsThere, nothing: str) -> None:
        found = _only(options, is_there)
        # A lapsed flight and a kept failure are not seen, and can be ended all the same.
        candidates = _candidates(options) if found is None else [found]
        changed = next((each for each in candidates if getattr(each.group, verb)(each.key, options["token"])), None)
        if changed is None:
            raise _nothing(nothing, options)
        if options["json"]:
            self.stdout.write(json.dumps({"group": changed.name, "key": changed.key, done: True}))
        else:
            self.stdout.write(f"{done} {terminal.printable(changed.key)} (group {changed.name})")

    # -- what they print

    def _print_json(self, infos: Iterable[FlightInfo]) -> None:
        for info in infos:
            self.stdout.write(json.dumps(dataclasses.asdict(info)))
        self.stdout.flush()

    def _draw(self, lines: list[str], options: dict[str, Any], *, first: bool) -> None:
        if not options.get("watch"):
            self.stdout.write("\n".join(lines))
        elif not self.stdout.isatty():
            self.stdout.write("\n".join([time.strftime("%H:%M:%S"), *lines, ""]))
        else:
            columns, rows = terminal.size()
            picture = "".join(f"{terminal.cut(line, columns)}\x1b[K\n" for line in lines[: rows - 1])
            self.stdout.write(("\x1b[2J" if first else "") + "\x1b[H" + picture + "\x1b[J", ending="")
        self.stdout.flush()


# -- which flights are meant


def _candidates(options: dict[str, Any]) -> Iterator[_Found]:
    """All that KEY can mean, in each group: as ``list`` prints it, to the letter, by its digest."""
    text = options["key"]
    digest = _DIGEST.fullmatch(text)
    for name, group in _chosen(options).items():
        with _naming(name):
            keys = [terminal.unescaped(text), text]
            if digest:
                keys += [info.key for info in group.live() if _digest(info.key) == digest[1]]
        yield from (_Found(name, group, key) for key in dict.fromkeys(keys) if key)


def _only(options: dict[str, Any], is_there: IsThere) -> _Found | None:
    """The one place where KEY is found.

    Raises:
        CommandError: it is found in several groups.
    """
    found = {}
    for each in _candidates(options):
        with _naming(each.name):
            if each.name not in found and is_there(each.group, each.key, options.get("token")):
                found[each.name] = each
    if len(found) > 1:
        text = f"key {terminal.printable(options['key'])} is found in several groups: {', '.join(found)}; say --group"
        raise CommandError(text, returncode=USAGE)
    return next(iter(found.values()), None)


def _live(options: dict[str, Any]) -> tuple[list[FlightInfo], list[str]]:
    """The live flights of all groups, oldest first, and which groups could not be asked, and why."""
    infos, problems = [], []
    for name, group in _chosen(options).items():
        try:
            with _naming(name):
                infos += group.live()
        except StoreError as exc:
            problems.append(str(exc))
    glob = options["match"]
    matching = [info for info in infos if glob is None or fnmatch.fnmatchcase(info.key, glob)]
    return sorted(matching, key=lambda info: -info.age), problems


def _chosen(options: dict[str, Any]) -> dict[str, Group]:
    name = options["group"]
    return groups.distinct() if name is None else {name: groups.chosen(name)}


def _peek(group: Group, key: str, token: int | None) -> bool:
    info = group.peek(key)
    return info is not None and token in (None, info.fencing_token)


def _anything(group: Group, key: str, token: int | None) -> bool:
    return _peek(group, key, token) or (token is None and group.get(key, _ABSENT) is not _ABSENT)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Have a `StoreError` name the group."""
    try:
        yield
    except StoreError as exc:
        raise StoreError(f"group {name}: {exc}") from exc


def _nothing(what: str, options: dict[str, Any]) -> CommandError:
    token = options.get("token")
    whose = "" if token is None else f" with token {token}"
    return CommandError(f"{what} of key {terminal.printable(options['key'])}{whose}", returncode=NOT_FOUND)


# -- the rest


def _add_common(parser: CommandParser, default: dict[str, Any]) -> None:
    parser.add_argument("--group", metavar="G", help="only this group: default, cache:<alias>", **default)
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for programs", **default)


def _looks(options: dict[str, Any]) -> Iterator[bool]:
    """Yield whether this is the first look, as often as one is due."""
    yield True
    while options["watch"]:
        time.sleep(INTERVAL)
        yield False


def _lines(infos: list[FlightInfo]) -> list[str]:
    return terminal.table([_HEADER, *map(_row, infos)], right=_RIGHT) if infos else ["no live flights"]


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
        info.group,
        terminal.printable(info.key),
    )


def _discard_output() -> None:
    """Nobody reads stdout any more: what is still buffered must not be written at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
