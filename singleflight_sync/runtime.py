"""What a group holds while it is in use in one process. A forked child makes its own."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from singleflight_sync.local import Rooms

if TYPE_CHECKING:
    from collections.abc import Hashable

    from singleflight_sync.events import Observers
    from singleflight_sync.follower import Follower
    from singleflight_sync.heartbeat import Lease
    from singleflight_sync.outcome import Outcome
    from singleflight_sync.store import Store


class InProcess:
    """What all groups of this process have in common that mean the same namespace on the same server."""

    def __init__(self) -> None:
        self.rooms: Rooms[Outcome, Follower] = Rooms()
        self.leases: set[Lease] = set()  # the flights that this process owns; each call is atomic


_locks: dict[int, threading.Lock] = {}  # by process; of several threads, ``setdefault`` lets one win
_shared: weakref.WeakValueDictionary[Hashable, InProcess] = weakref.WeakValueDictionary()


def shared(identity: Hashable) -> InProcess:
    """What is held under this identity; it lives as long as a group uses it."""
    pid = os.getpid()
    with _locks.get(pid) or _locks.setdefault(pid, threading.Lock()):
        return _shared.setdefault(identity, InProcess())


@dataclass(frozen=True, slots=True)
class Runtime:
    """One group in one process. ``store`` is None where the flights stay inside the process."""

    name: str
    pid: int
    owner_id: bytes
    store: Store | None
    observers: Observers
    shared: InProcess
    own: set[Lease] = field(default_factory=set)
    """The flights in the air that this group owns; each call is atomic."""
