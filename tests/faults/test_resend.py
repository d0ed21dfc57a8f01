"""Every script may be sent twice: at once, when a reply was cut off, and much later, when a network kept a copy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from singleflight_sync.answers import Answer, Owned, new_nonce
from singleflight_sync.errors import StoreError
from singleflight_sync.sender import script as prepared
from tests.support.keyspace import Keyspace, right_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from singleflight_sync.answers import Right
    from tests.support.proxy import Proxy
    from tests.support.servers import Server

SCRIPTS = ("claim", "number", "promote", "renew", "publish", "finish", "cancel", "forget")


@pytest.fixture
def space(server: Server, proxy: Proxy) -> Iterator[Keyspace]:
    """A key behind the proxy, on a server that knows all scripts."""
    for script in SCRIPTS:
        server.client().script_load(prepared(script).source[1].decode())
    space = Keyspace(proxy.client())
    yield space
    space.close()


def calls(script: str) -> Callable[[bytes], bool]:
    """Match the requests that call a script."""
    digest = prepared(script).digest[1]
    return lambda raw: digest in raw


class Case(NamedTuple):
    """One call of a script, on a flight in the air where there must be one."""

    script: str
    act: Callable[[Keyspace, Right], Any]
    answer: Callable[[Right], Any]
    events: list[str]


def done(right: Right) -> Any:
    return Answer.DONE


CASES = {
    "renew": Case("renew", lambda space, right: space.renew(right), lambda _: (Answer.DONE, False), ["claimed"]),
    "publish": Case("publish", lambda space, right: space.publish(right), done, ["claimed", "succeeded"]),
    "fail": Case("finish", lambda space, right: space.fail(right, keep=5.0), done, ["claimed", "failed"]),
    "release": Case("finish", lambda space, right: space.release(right, counted=True), done, ["claimed", "released"]),
    "cancel": Case("cancel", lambda space, _: space.cancel(), lambda right: right.token, ["claimed", "cancelled"]),
    "forget": Case(
        "forget",
        lambda space, _: tuple(space.forget()),
        lambda right: (False, True, right.token),
        ["claimed", "forgotten"],
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
STEPS = ("claim", "number", "promote")


def in_steps(space: Keyspace, script: str) -> Keyspace:
    """Claim in three steps, as on a Cluster, where the script is one of the latter two."""
    space.store.server.is_cluster = script != "claim"
    return space


# A reply is cut off


@pytest.mark.parametrize("script", STEPS)
def test_a_claim_whose_reply_is_cut_off_is_sent_again_and_owns_one_flight(
    space: Keyspace, proxy: Proxy, script: str
) -> None:
    in_steps(space, script)
    rule, sent = proxy.cut_before_reply(calls(script)), proxy.record(calls(script), times=10)
    answer = space.claim()
    rule.wait(0)
    assert len(sent.requests) == 1
    assert isinstance(answer, Owned)
    (entry,) = space.log()
    assert (entry.event, entry.token, entry.log_id) == (b"claimed", answer.token, answer.log_id)
    assert space.board()["ownerToken"] == str(answer.token)
    assert space.left(space.names.meta) > 2_000
    assert space.renew(right_of(answer)) == (Answer.DONE, False)


def test_the_first_step_of_a_claim_whose_reply_is_cut_off_is_sent_again(space: Keyspace, proxy: Proxy) -> None:
    in_steps(space, "promote")
    proxy.cut_before_reply(calls("claim"))
    assert isinstance(space.claim(), Owned)
    assert space.events() == ["claimed"]


def test_a_claim_in_steps_survives_a_cut_in_each_of_them(space: Keyspace, proxy: Proxy) -> None:
    in_steps(space, "promote")
    rules = [proxy.cut_before_reply(calls(script)) for script in STEPS]
    assert isinstance(space.claim(), Owned)
    assert [len(rule.requests) for rule in rules] == [1, 1, 1]
    assert space.events() == ["claimed"]


@cases
def test_a_call_whose_reply_is_cut_off_is_sent_again_and_executed_as_if_once(
    space: Keyspace, proxy: Proxy, case: Case
) -> None:
    right = space.own()
    rule, sent = proxy.cut_before_reply(calls(case.script)), proxy.record(calls(case.script), times=10)
    assert case.act(space, right) == case.answer(right)
    rule.wait(0)
    assert len(sent.requests) == 1
    assert space.events() == case.events
    if case.script == "publish":
        assert space.claim().value == b"value"


@cases
def test_a_call_after_the_lease_whose_reply_is_cut_off_is_executed_as_if_once(
    space: Keyspace, proxy: Proxy, case: Case
) -> None:
    right = space.own()
    space.lapse()
    proxy.cut_before_reply(calls(case.script))
    assert case.act(space, right) == case.answer(right)
    assert space.events() == case.events


@cases
def test_a_call_that_was_cut_off_before_it_arrived_is_sent_again(space: Keyspace, proxy: Proxy, case: Case) -> None:
    right = space.own()
    rule = proxy.cut_before_request(calls(case.script))
    assert case.act(space, right) == case.answer(right)
    rule.wait(0)
    assert space.events() == case.events


# A copy arrives late


@pytest.mark.parametrize("script", STEPS)
def test_a_copy_of_a_claim_that_arrives_after_the_lease_owns_the_same_flight(
    space: Keyspace, proxy: Proxy, script: str
) -> None:
    in_steps(space, script)
    rule = proxy.record(calls(script))
    right = right_of(space.claim())
    space.lapse()
    reply = proxy.replay(rule.wait())
    if script != "number":
        assert reply[:3] == [Answer.OWNER, b"%d" % right.token, right.log_id]
        assert space.board()["ownerToken"] == str(right.token)
    assert space.events() == ["claimed"]
    assert space.renew(right) == (Answer.DONE, False)


@pytest.mark.parametrize("script", STEPS)
def test_a_copy_of_a_claim_that_arrives_after_its_end_changes_nothing(
    space: Keyspace, proxy: Proxy, script: str
) -> None:
    in_steps(space, script)
    rule = proxy.record(calls(script))
    right = right_of(space.claim())
    space.publish(right, ttl=0)
    before = space.state()[:3]
    reply = proxy.replay(rule.wait())
    assert script == "number" or reply == [Answer.REFUSED]
    assert space.state()[:3] == before
    next_right = space.own()
    assert next_right.token > right.token
    proxy.replay(rule.wait())
    assert space.renew(next_right) == (Answer.DONE, False)


MOMENTS = ("after the lease", "after a takeover", "after the next flight")
LATE = [
    (name, moment)
    for name in CASES
    for moment in MOMENTS
    if (name, moment)
    not in {
        # Another `forget` is another wish: it drops what has come meanwhile.
        ("forget", "after a takeover"),
        ("forget", "after the next flight"),
    }
]


@pytest.mark.parametrize(("name", "moment"), LATE)
def test_a_copy_that_arrives_late_changes_nothing(space: Keyspace, proxy: Proxy, name: str, moment: str) -> None:
    case = CASES[name]
    right = space.own()
    rule = proxy.record(calls(case.script))
    case.act(space, right)
    space.lapse()
    if moment != "after the lease":
        space.client.delete(space.names.result)
        next_right = space.own(failures=False)
        if moment == "after the next flight":
            space.publish(next_right, b"next")
    before = space.state()
    proxy.replay(rule.wait())
    space.check()
    if case.script == "renew" and moment == "after the lease":
        assert space.events() == ["claimed"]
    else:
        assert space.state() == before


def test_a_publication_that_arrives_after_a_takeover_stores_nothing(space: Keyspace, proxy: Proxy) -> None:
    """The network held it back until its owner had given up and somebody else had claimed."""
    right = space.own()
    rule = proxy.hold(calls("publish"))
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(space.publish, right)
        rule.wait()
        with pytest.raises(StoreError):
            publishing.result(10)
    space.lapse()
    next_right = space.own()
    before = space.state()
    assert proxy.replay(rule.wait()) == [Answer.LOST]
    rule.release()
    assert space.renew(next_right) == (Answer.DONE, False)
    assert space.state()[1:] == before[1:]


def test_a_claim_that_arrives_after_its_caller_gave_up_costs_one_lease(space: Keyspace, proxy: Proxy) -> None:
    nonce = new_nonce()
    rule = proxy.hold(calls("claim"))
    with ThreadPoolExecutor(1) as pool:
        claiming = pool.submit(space.claim, nonce, lease=0.5)
        request = rule.wait()
        with pytest.raises(StoreError):
            claiming.result(10)
    assert proxy.replay(request)[0] == Answer.OWNER
    rule.release()
    assert space.wait().left <= 0.5
    space.lapse()
    assert isinstance(space.claim(), Owned)
