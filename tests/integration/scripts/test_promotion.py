"""The three steps of a claim on a Cluster, where the number dispenser lives in another slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight_sync.answers import Answer, Owned, Right, Waiting, new_nonce
from singleflight_sync.errors import StoreError
from tests.support.keyspace import ENDINGS, Keyspace, end, right_of

if TYPE_CHECKING:
    from tests.support.topologies import Cluster

pytestmark = pytest.mark.cluster


def promoted(space: Keyspace, nonce: bytes, number: int | None = None, *, lease: float = 3.0) -> Right:
    """Take the second and third step."""
    reply = space.promote(nonce, space.number() if number is None else number, lease=lease)
    assert reply[0] == Answer.OWNER, reply
    return right_of(Owned(int(reply[1]), reply[2], reply[3]), lease)


def board_of_init(space: Keyspace, nonce: bytes) -> bool:
    """Whether the claim of this nonce waits for its number."""
    board = space.board()
    return (board.get("status"), board.get("nonce")) == ("INIT", nonce.decode())


# The first step


@pytest.mark.parametrize(("lease", "life"), [(30.0, 3_000), (3.0, 3_000), (1.0, 1_000)])
def test_a_claim_waits_for_its_number_for_a_short_while(clustered: Keyspace, lease: float, life: int) -> None:
    nonce = new_nonce()
    assert clustered.init(nonce, lease=lease) == [Answer.INIT]
    board = clustered.board()
    assert (board["status"], board["nonce"], board["key"], board["v"]) == ("INIT", nonce.decode(), "report:42", "1")
    assert "ownerToken" not in board
    assert life - 500 < clustered.left(clustered.names.meta) <= life
    assert clustered.log() == []


def test_a_first_step_that_is_sent_again_is_the_same(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    before = clustered.board()
    assert clustered.init(nonce) == [Answer.INIT]
    assert clustered.board() == before
    assert clustered.own(nonce).token == int(clustered.board()["ownerToken"])


def test_a_board_without_an_end_of_its_life_is_cleared_for_it(clustered: Keyspace) -> None:
    clustered.own()
    clustered.client.persist(clustered.names.meta)
    nonce = new_nonce()
    assert clustered.init(nonce) == [Answer.INIT]
    assert board_of_init(clustered, nonce)
    assert "ownerToken" not in clustered.board()


def test_who_comes_meanwhile_is_told_no_token_and_finds_the_flight_in_the_log(clustered: Keyspace) -> None:
    nonce = new_nonce()
    end(clustered, clustered.own(), "released")
    last = clustered.log()[-1].log_id
    clustered.init(nonce)
    follower = clustered.wait()
    assert (follower.token, follower.log_id, follower.place, follower.forgotten) == (None, last, 1, False)
    right = promoted(clustered, nonce)
    behind = clustered.client.xrange(clustered.names.stream, min=b"(" + follower.log_id)
    assert [(log_id, fields[b"token"]) for log_id, fields in behind] == [(right.log_id, b"%d" % right.token)]


def test_on_an_empty_log_it_reads_from_the_beginning(clustered: Keyspace) -> None:
    clustered.init(new_nonce())
    assert clustered.wait().log_id == b"0-0"


def test_places_go_on_from_those_given_meanwhile(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    places = [clustered.wait().place, clustered.wait().place]
    promoted(clustered, nonce)
    places.append(clustered.wait().place)
    assert places == [1, 2, 3]
    assert clustered.board()["followers"] == "3"


def test_there_is_nothing_to_forget_or_cancel_yet(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    before = clustered.state()
    assert tuple(clustered.forget()) == (False, False, None)
    assert clustered.cancel() is None
    assert clustered.state() == before
    right = promoted(clustered, nonce)
    assert clustered.renew(right) == (Answer.DONE, False)


# The third step


def test_a_promotion_writes_board_and_log_and_sets_the_full_lease(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce, lease=30.0)
    number = clustered.number()
    right = promoted(clustered, nonce, number, lease=30.0)
    assert right.token == number
    board = clustered.board()
    assert (board["status"], board["ownerToken"], board["nonce"]) == ("RUNNING", str(number), nonce.decode())
    assert (board["ownerId"], board["leaseMs"], board["takeovers"]) == ("owner", "30000", "0")
    assert 29_000 < clustered.left(clustered.names.meta) <= 30_000
    assert 39_000 < clustered.left(clustered.names.stream) <= 40_000
    assert [(entry.event, entry.token) for entry in clustered.log()] == [(b"claimed", number)]


@pytest.mark.parametrize("lapsed", [False, True], ids=["at once", "after the lease"])
def test_a_promotion_that_is_sent_again_answers_with_the_token_already_there(
    clustered: Keyspace, *, lapsed: bool
) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    right = promoted(clustered, nonce)
    if lapsed:
        clustered.lapse()
    else:
        clustered.client.pexpire(clustered.names.meta, 500)
    clustered.client.pexpire(clustered.names.stream, 600)
    assert promoted(clustered, nonce, right.token) == right
    assert promoted(clustered, nonce, clustered.number()) == right
    assert clustered.events() == ["claimed"]
    assert clustered.left(clustered.names.meta) > 2_000
    assert clustered.left(clustered.names.stream) > 12_000


def test_a_promotion_of_a_forgotten_flight_that_is_sent_again_keeps_its_mark(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    right = promoted(clustered, nonce)
    clustered.forget()
    for _ in range(2):
        assert promoted(clustered, nonce, right.token) == right
        assert clustered.renew(right) == (Answer.DONE, True)
        clustered.lapse()


@pytest.mark.parametrize("event", ENDINGS)
def test_a_late_copy_of_a_promotion_is_refused_once_its_flight_has_ended(clustered: Keyspace, event: str) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    right = promoted(clustered, nonce)
    end(clustered, right, event)
    before = clustered.state()
    assert clustered.promote(nonce, right.token) == [Answer.REFUSED]
    assert clustered.state() == before
    clustered.own()
    before = clustered.state()
    assert clustered.promote(nonce, right.token) == [Answer.REFUSED]
    assert clustered.promote(nonce, right.token + 10**9) == [Answer.REFUSED]
    assert clustered.state() == before


def test_a_promotion_without_its_first_step_is_refused(clustered: Keyspace) -> None:
    assert clustered.promote(new_nonce(), clustered.number()) == [Answer.REFUSED]
    assert clustered.board() == {}
    assert clustered.log() == []


def test_a_promotion_is_refused_while_another_claim_waits_for_its_number(clustered: Keyspace) -> None:
    late, nonce = new_nonce(), new_nonce()
    clustered.init(late)
    clustered.lapse()
    clustered.init(nonce)
    assert clustered.promote(late, clustered.number()) == [Answer.REFUSED]
    assert board_of_init(clustered, nonce)


def test_a_number_must_be_above_the_last_of_the_log(clustered: Keyspace) -> None:
    last = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    for number in (last.token, last.token - 1):
        assert clustered.promote(nonce, number) == [Answer.INIT, b"%d" % last.token]
    assert board_of_init(clustered, nonce)
    assert promoted(clustered, nonce, clustered.number(last.token)).token > last.token


def test_a_claim_asks_for_another_number_where_the_dispenser_is_behind(clustered: Keyspace) -> None:
    far = 8_000_000_000_000_000
    clustered.client.set(clustered.store.namespace.owner_seq, far)
    first = clustered.own()
    clustered.lapse()
    clustered.client.delete(clustered.store.namespace.owner_seq)
    assert clustered.own().token == first.token + 1


def test_a_takeover_is_counted_by_the_first_step(clustered: Keyspace) -> None:
    clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    clustered.init(nonce)
    promoted(clustered, nonce)
    assert clustered.board()["takeovers"] == "1"
    assert clustered.log()[-1].number(b"takeovers") == 1


def test_a_flight_that_goes_on_after_a_loss_is_forgotten_from_its_promotion(clustered: Keyspace) -> None:
    right = clustered.own(continues=5)
    assert clustered.log()[0].number(b"continues") == 5
    assert clustered.renew(right) == (Answer.DONE, True)


def test_nothing_goes_on_while_another_claim_waits_for_its_number(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    assert clustered.claim(continues=5) is Answer.LOST
    assert board_of_init(clustered, nonce)


# Giving back


def test_a_claim_without_a_number_is_given_back_by_its_nonce_alone(clustered: Keyspace) -> None:
    nonce = new_nonce()
    clustered.init(nonce)
    assert clustered.run("giveback", new_nonce()) == 0
    assert board_of_init(clustered, nonce)
    assert clustered.run("giveback", nonce) == 1
    assert clustered.board() == {}
    assert clustered.run("giveback", nonce) == 0


def test_a_flight_in_the_air_is_not_given_back(clustered: Keyspace) -> None:
    nonce = new_nonce()
    right = clustered.own(nonce)
    assert clustered.run("giveback", nonce) == 0
    assert clustered.renew(right) == (Answer.DONE, False)


def test_where_no_number_can_be_had_the_claim_is_given_back_at_once(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    client = cluster.client()
    dispenser = client.get_node_from_key("ai:flight:owner-seq")
    key = next(key for key in map(str, range(100)) if client.get_node_from_key(f"{{{key}}}") != dispenser)
    space = Keyspace(client, key=key)
    request.addfinalizer(space.close)
    space.own()
    space.cancel()
    client.config_set("maxmemory", 1, target_nodes=dispenser)
    try:
        with pytest.raises(StoreError, match="memory"):
            space.claim()
    finally:
        client.config_set("maxmemory", 0, target_nodes=dispenser)
    assert space.board() == {}
    assert isinstance(space.claim(), Owned)


# An open flight behind a claim that waits for its number


def test_a_lapsed_owner_that_comes_back_first_keeps_its_flight(clustered: Keyspace) -> None:
    right = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    assert clustered.renew(right) == (Answer.DONE, False)
    assert clustered.promote(nonce, clustered.number()) == [Answer.REFUSED]
    assert isinstance(clustered.claim(nonce), Waiting)
    assert clustered.publish(right) is Answer.DONE


@pytest.mark.parametrize("event", ["succeeded", "failed", "released"])
def test_a_lapsed_owner_ends_its_flight_before_the_other_has_its_number(clustered: Keyspace, event: str) -> None:
    right = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    end(clustered, right, event)
    assert clustered.promote(nonce, clustered.number()) == [Answer.REFUSED]
    assert isinstance(clustered.claim(nonce), Owned)


def test_a_lapsed_owner_is_lost_once_the_other_is_promoted(clustered: Keyspace) -> None:
    right = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    promoted(clustered, nonce)
    assert clustered.renew(right)[0] is Answer.LOST
    assert clustered.publish(right) is Answer.LOST


def test_a_lapsed_flight_is_forgotten_while_another_claim_waits_for_its_number(clustered: Keyspace) -> None:
    """Its owner may still come back first, and would store what is older than the forget."""
    right = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    clustered.forget()
    assert board_of_init(clustered, nonce)
    assert clustered.publish(right) is Answer.DONE
    assert clustered.result() is None


def test_the_flight_that_is_promoted_after_a_forget_is_not_forgotten(clustered: Keyspace) -> None:
    """Its function begins after the forget."""
    clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    clustered.forget()
    right = promoted(clustered, nonce)
    assert clustered.renew(right) == (Answer.DONE, False)
    assert clustered.publish(right) is Answer.DONE
    assert clustered.claim().token == right.token


def test_a_dead_owners_token_is_named_while_another_claim_waits_for_its_number(clustered: Keyspace) -> None:
    right = clustered.own()
    clustered.lapse()
    nonce = new_nonce()
    clustered.init(nonce)
    assert clustered.look(right.token, right.log_id, counted=right.token).token is None
    assert board_of_init(clustered, nonce)
