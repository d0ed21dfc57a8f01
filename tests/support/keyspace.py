"""One key as the server holds it, with the store whose scripts change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from singleflight_sync.answers import LOG_MARGIN, Answer, Owned, Position, Right, Waiting, new_nonce, terms
from singleflight_sync.connect import from_client
from singleflight_sync.deadline import to_ms
from singleflight_sync.keys import Namespace
from singleflight_sync.log import Entry
from singleflight_sync.sender import script
from singleflight_sync.store import Store
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import redis

    from singleflight_sync.answers import Fate, Forgotten

NAMESPACE = Namespace("ai:flight")
T = TypeVar("T")


class Keyspace:
    """Calls the scripts for one key. After each of them, every key but the number dispenser must have a TTL."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, *, key: str = "report:42", bare: bool = False) -> None:
        self.client: Any = client
        self.store = Store(from_client(client), NAMESPACE, bare=bare)
        self.names = NAMESPACE.names(key)
        self.foreign = b""  # a key that the test has planted: its life is not ours

    @property
    def on_cluster(self) -> bool:
        """Whether a claim is three steps."""
        return self.store.server.is_cluster

    def close(self) -> None:
        """Close the store's connections."""
        self.store.close()

    # Scripts

    def claim(
        self,
        nonce: bytes | None = None,
        *,
        lease: float = 3.0,
        error_ttl: float = 0.0,
        most: int = 3,
        failures: bool = True,
        position: Position | None = None,
        unreadable: bytes | None = None,
        continues: int | None = None,
    ) -> Any:
        """Claim; an empty nonce only looks."""
        asked = terms(lease, error_ttl, most, failures=failures)
        answer = self.store.claim(
            self.names,
            asked,
            b"owner",
            new_nonce() if nonce is None else nonce,
            position,
            unreadable=unreadable,
            continues=continues,
        )
        self.check()
        return answer

    def own(self, nonce: bytes | None = None, *, lease: float = 3.0, error_ttl: float = 0.0, **how: Any) -> Right:
        """Claim, and become the owner."""
        answer = self.claim(nonce, lease=lease, error_ttl=error_ttl, **how)
        assert isinstance(answer, Owned), answer
        return right_of(answer, lease, error_ttl)

    def wait(self, nonce: bytes | None = None, **how: Any) -> Waiting:
        """Claim, and become a follower."""
        answer = self.claim(nonce, **how)
        assert isinstance(answer, Waiting), answer
        return answer

    def look(self, token: int | None, log_id: bytes = b"0-0", *, counted: int | None = None, **how: Any) -> Any:
        """Look, as a follower of ``token`` does."""
        return self.claim(b"", position=Position(token, log_id, counted), **how)

    def look_in(self, pipeline: Any, token: int, log_id: bytes) -> None:
        """Put a look into a pipeline of the client (standalone)."""
        keys = [self.names.result, self.names.meta, self.names.stream, self.store.namespace.owner_seq]
        asked = terms(3.0, 0.0, 3, failures=True)
        args = [b"", asked, b"owner", self.names.key.encode(), b"0", b"%d" % token, log_id, b"", b"", b"", b""]
        pipeline.evalsha(script("claim").digest[1].decode(), len(keys), *keys, *args)

    def renew(self, right: Right) -> tuple[Fate, bool]:
        """Renew the lease."""
        return self._checked(self.store.renew(self.names, right))

    def index(self, right: Right) -> None:
        """Enter the flight into the index."""
        self.store.index(self.names, right)
        self.check()

    def publish(
        self, right: Right, value: bytes = b"value", *, ttl: float | None = 5.0, nonce: bytes | None = None
    ) -> Fate:
        """Publish a value."""
        return self._checked(self.store.publish(self.names, right, nonce or new_nonce(), value, ttl))

    def fail(self, right: Right, error: bytes = b"error", *, keep: float = 0.0, nonce: bytes | None = None) -> Fate:
        """Publish a failure."""
        return self._checked(self.store.fail(self.names, right, nonce or new_nonce(), error, keep))

    def release(self, right: Right, *, counted: bool = False, nonce: bytes | None = None) -> Fate:
        """Release the flight."""
        return self._checked(self.store.release(self.names, right, nonce or new_nonce(), counted=counted))

    def cancel(self, token: int | None = None) -> int | None:
        """Cancel the open flight."""
        return self._checked(self.store.cancel(self.names, token))

    def forget(self, token: int | None = None) -> Forgotten:
        """Forget the result, a kept failure and the open flight."""
        (forgotten,) = self._checked(self.store.forget([self.names], token))
        return forgotten

    def run(self, script: str, *args: bytes) -> Any:
        """Run a script with arguments of the test's own; its raw reply."""
        names, space = self.names, self.store.namespace
        keys = {
            "number": [space.owner_seq],
            "promote": [names.meta, names.stream],
            "giveback": [names.meta],
            "cancel": [names.meta, names.stream],
        }[script]
        return self._checked(self.store._run(script, names, keys, *args))

    # The steps of a claim on a Cluster

    def init(self, nonce: bytes, *, lease: float = 3.0, error_ttl: float = 0.0, most: int = 3) -> Any:
        """The first step: a claim that has no number yet; its raw reply."""
        asked = terms(lease, error_ttl, most, failures=True)
        keys = [self.names.result, self.names.meta, self.names.stream]
        return self._checked(
            self.store._run("claim", self.names, keys, nonce, asked, b"owner", self.names.key.encode(), b"0")
        )

    def number(self, floor: int = 0) -> int:
        """The second step."""
        return int(self.run("number", b"%d" % floor))

    def promote(self, nonce: bytes, number: int, *, lease: float = 3.0, error_ttl: float = 0.0) -> Any:
        """The third step; its raw reply."""
        life = b"%d" % to_ms(max(lease, error_ttl) + LOG_MARGIN)
        return self.run("promote", nonce, b"%d" % number, b"%d" % to_ms(lease), life, self.names.key.encode())

    # What the server holds

    def board(self) -> dict[str, str]:
        """The meta hash."""
        return {name.decode(): value.decode() for name, value in self.client.hgetall(self.names.meta).items()}

    def log(self) -> list[Entry]:
        """The log's entries, oldest first."""
        return [Entry(log_id, fields) for log_id, fields in self.client.xrange(self.names.stream)]

    def events(self) -> list[str]:
        """The log's events, oldest first."""
        return [entry.event.decode() for entry in self.log()]

    def result(self) -> bytes | None:
        """The bytes under the result key."""
        value: bytes | None = self.client.get(self.names.result)
        return value

    def state(self) -> tuple[Any, ...]:
        """All that there is of the key: to see that a script changed nothing."""
        return self.board(), self.log(), self.result(), self.client.get(self.store.namespace.owner_seq)

    def left(self, name: bytes) -> int:
        """What is left of a key's life, in ms; -1: it has no end, -2: there is no such key."""
        life: int = self.client.pttl(name)
        return life

    def now_us(self) -> int:
        """The server's time; on a Cluster all nodes run on this machine."""
        times = self.client.time(target_nodes=self.client.get_primaries()[0]) if self.on_cluster else self.client.time()
        seconds, microseconds = times
        return int(seconds) * 1_000_000 + int(microseconds)

    def check(self) -> None:
        """Every key but the number dispenser has a TTL."""
        names = self.names
        for name in {names.meta, names.result, names.stream, self.store.namespace.live} - {self.foreign}:
            assert self.left(name) != -1, f"{name!r} has no TTL"

    # What happens to it

    def lapse(self) -> None:
        """Let the lease run out."""
        self.client.pexpire(self.names.meta, 1)
        eventually(lambda: not self.client.exists(self.names.meta), what="the lease is over")

    def lose(self) -> None:
        """Lose all data."""
        if self.on_cluster:
            self.client.flushall(target_nodes="primaries")
        else:
            self.client.flushall()

    def age(self, seconds: float) -> None:
        """Make the log older, as if so much time had passed (the lives of keys are left as they are)."""
        entries, life = self.log(), self.left(self.names.stream)
        self.client.delete(self.names.stream)
        for entry in entries:
            milliseconds, _, number = entry.log_id.partition(b"-")
            older = b"%d-%b" % (int(milliseconds) - to_ms(seconds), number)
            self.client.xadd(self.names.stream, entry.fields, id=older)
        self.client.pexpire(self.names.stream, life)

    def _checked(self, answer: T) -> T:
        self.check()
        return answer


def right_of(owned: Owned, lease: float = 3.0, error_ttl: float = 0.0) -> Right:
    """What the owner shows from now on."""
    return Right(owned.token, owned.log_id, to_ms(lease), to_ms(max(lease, error_ttl) + LOG_MARGIN))


ENDINGS = ("succeeded", "failed", "cancelled", "released")


def end(space: Keyspace, right: Right, event: str) -> None:
    """End the open flight so that nothing of it is kept."""
    if event == "succeeded":
        assert space.publish(right, ttl=0) is Answer.DONE
    elif event == "failed":
        assert space.fail(right) is Answer.DONE
    elif event == "cancelled":
        assert space.cancel() == right.token
    else:
        assert space.release(right) is Answer.DONE
    assert space.events()[-1] == event
