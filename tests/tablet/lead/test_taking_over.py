"""Taking tablets over from a server that died, was stopped, or gave them up: nothing acknowledged is lost."""

from __future__ import annotations

import errno

import pytest

from ebla.coordination.server_lease import TTL_SECONDS
from ebla.errors import OutcomeUnknown, StaleRoute
from ebla.model.ranges import KeyRange
from ebla.service.requests import EraseRange, Modify, Put, ScanRows
from ebla.tablet.lead.taking_over import Offered
from tests.support.simulated_files import Fault, FaultPlan
from tests.tablet.lead.world import Run, World


@pytest.fixture
def world() -> World:
    return World()


def put(run: Run, *keys: int, v: str = "") -> int:
    rows = [{"k": key, "v": v or str(key), "n": key} for key in keys]
    return run.table().write(Put(rows if len(rows) > 1 else rows[0]))


def value(run: Run, key: int) -> object:
    row = run.table().get((key,))
    return None if row is None else row["v"]


def test_a_run_leads_nothing_until_it_is_offered_something(world: World) -> None:
    world.create()
    a = world.start("A")
    world.give(a, "t0")
    assert a.leads() == {"t0"}
    put(a, 7)
    assert value(a, 7) == "7"
    with pytest.raises(StaleRoute):
        put(a, 107)
    with pytest.raises(StaleRoute):
        put(a, 8, 107)
    assert value(a, 8) is None
    with pytest.raises(StaleRoute):
        value(a, 107)


def test_acknowledged_writes_of_a_dead_server_are_served_by_the_next(world: World) -> None:
    world.create()
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0", "t1")
    txn = put(a, 1, 2, 101, 102)
    put(a, 2, v="two")
    row = a.table().codec.encode((101,))
    a.table().write(EraseRange(KeyRange(row, row + b"\0")))
    a.store.abandon()
    world.bury(a)
    world.give(b, "t0")
    assert [value(b, key) for key in (1, 2, 3)] == ["1", "two", None]
    with pytest.raises(StaleRoute):
        value(b, 102)
    world.give(b, "t1")
    assert [value(b, key) for key in (101, 102)] == [None, "102"]
    assert put(b, 3) > txn
    assert world.tablet("t0").leader == b.server
    assert world.tablet("t0").log == b.store.server


def test_what_was_flushed_before_is_not_replayed_again(world: World) -> None:
    world.create(splits=0)
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0")
    put(a, 1)
    a.store.flush(a.store.table("t"))
    put(a, 2)
    a.store.abandon()
    world.bury(a)
    world.give(b, "t0")
    assert [value(b, key) for key in (1, 2)] == ["1", "2"]
    rows = [ref.rows for state in world.tablet("t0").groups for ref in state.fragments]
    assert rows == [1, 1, 1, 1]  # two groups, each row once


def test_a_stopped_server_that_comes_back_acknowledges_and_answers_nothing(world: World) -> None:
    """SIGSTOP and SIGCONT: its own steady clock went on, its threads did not."""
    world.create(splits=0)
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0")
    put(a, 1)
    world.bury(a)
    world.give(b, "t0")
    put(b, 1, v="new")
    a.clock.advance(TTL_SECONDS)
    with pytest.raises(OutcomeUnknown):
        put(a, 1, v="late")
    with pytest.raises(StaleRoute):
        a.lease.check_answer()
    assert value(b, 1) == "new"


def test_what_a_returning_server_writes_through_an_open_file_is_never_replayed(world: World) -> None:
    """Its clock stood still, as that of a bad machine: it writes to its log, and even believes that it may."""
    world.create(splits=0)
    a, b, c = world.start("A"), world.start("B"), world.start("C")
    world.give(a, "t0")
    put(a, 1)
    world.bury(a)
    world.give(b, "t0")
    end = world.tablet("t0").taken
    assert end is not None
    assert end.log == a.store.server
    assert not any(world.files.read(end.segment)[end.offset :]), "behind the end there is only room that was reserved"
    put(a, 1, v="late")
    put(a, 2, v="late")
    assert any(world.files.read(end.segment)[end.offset :])
    put(b, 3)
    b.store.abandon()
    world.bury(b)
    world.give(c, "t0")
    assert [value(c, key) for key in (1, 2, 3)] == ["1", None, "3"]


def test_a_late_flush_of_the_former_leader_is_refused(world: World) -> None:
    world.create(splits=0)
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0")
    put(a, 1)
    world.bury(a)
    world.give(b, "t0")
    before = world.tablet("t0")
    with pytest.raises(Exception, match="epoch"):
        a.store.flush(a.store.table("t"))
    assert world.tablet("t0") == before


def test_a_server_started_again_takes_its_own_tablets_from_its_former_log(world: World) -> None:
    world.create()
    a = world.start("A", 1)
    world.give(a, "t0", "t1")
    put(a, 1, 101)
    a.store.abandon()
    world.runs.remove(a)
    again = world.start("A", 2)
    own = [one for one in world.read().tablets if one.leader == a.server]
    offers = [Offered(world.table_id, one.id, one.replicas[0].assignment_id) for one in own]
    assert again.taker.take(offers) == {}
    assert [value(again, key) for key in (1, 101)] == ["1", "101"]
    assert world.tablet("t0").epoch > own[0].epoch
    assert world.tablet("t0").log == f"{a.server}/2"


def test_a_tablet_that_comes_back_to_the_same_run_has_what_others_wrote(world: World) -> None:
    world.create(splits=0)
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0")
    read_at = put(a, 1)
    assert value(a, 1) == "1"
    assert value(a, 1) == "1"  # cached by now
    a.giver.give_up(a.store.table("t"), ["t0"])
    assert a.leads() == set()
    with pytest.raises(StaleRoute):
        put(a, 1, v="no")
    assert world.tablet("t0").log is None
    world.give(b, "t0")
    put(b, 1, v="b")
    b.giver.give_up(b.store.table("t"), ["t0"])
    world.give(a, "t0")
    assert value(a, 1) == "b"
    with pytest.raises(Exception, match="changed"):
        a.table().write(Put({"k": 1, "v": "lost update", "n": 1}, unchanged_since=read_at))
    put(a, 1, v="a")
    a.store.abandon()
    world.bury(a)
    world.give(b, "t0")
    assert value(b, 1) == "a"


def test_txns_grow_across_leaders_whatever_their_clocks_say(world: World) -> None:
    world.create(splits=0)
    world.clock.advance(3600)
    a = world.start("A")
    world.clock.set_microseconds(world.clock.microseconds() - 3_600_000_000)
    b = world.start("B")
    world.give(a, "t0")
    txn = put(a, 1)
    a.store.abandon()
    world.bury(a)
    world.give(b, "t0")
    assert value(b, 1) == "1"
    assert put(b, 1, v="b") > txn
    assert value(b, 1) == "b"


def test_a_take_over_that_fails_leaves_the_tablet_to_be_taken_again(world: World) -> None:
    world.create(splits=0)
    a, b, c = world.start("A"), world.start("B"), world.start("C")
    world.give(a, "t0")
    put(a, 1)
    a.store.abandon()
    world.bury(a)
    offers = world.offer(b, "t0")
    world.files.plan = FaultPlan(
        when=lambda operation: Fault(errno.ENOSPC) if operation.path.startswith("fragments/") else None
    )
    failed = b.taker.take(offers)
    assert list(failed) == offers
    world.files.plan = FaultPlan()
    assert b.store.pending.paths() == frozenset()
    assert world.tablet("t0").leader is None
    world.give(c, "t0")
    assert value(c, 1) == "1"
    assert list(b.taker.take(offers)) == offers


def test_a_tablet_that_is_offered_to_another_meanwhile_is_not_taken(world: World) -> None:
    world.create(splits=0)
    a, b = world.start("A"), world.start("B")
    first = world.offer(a, "t0")
    world.offer(b, "t0")
    assert list(a.taker.take(first)) == first
    assert world.tablet("t0").leader is None


def test_giving_up_flushes_first_and_can_be_repeated(world: World) -> None:
    world.create()
    a = world.start("A")
    world.give(a, "t0", "t1")
    put(a, 1, 101)
    world.files.plan = FaultPlan(
        when=lambda operation: Fault(errno.ENOSPC) if operation.path.startswith("fragments/") else None
    )
    with pytest.raises(Exception, match="No space"):
        a.giver.give_up(a.store.table("t"), ["t0"])
    world.files.plan = FaultPlan()
    put(a, 2)  # it is led as before
    a.giver.give_up(a.store.table("t"), ["t0"])
    assert a.leads() == {"t1"}
    put(a, 102)
    assert world.tablet("t0").leader is None


def test_scans_are_limited_to_what_is_led_here(world: World) -> None:
    world.create()
    a = world.start("A")
    world.give(a, "t0")
    put(a, 1, 2)
    table = a.table()
    cut = table.codec.encode((100,))
    stream = table.scan(ScanRows(key_range=KeyRange(b"", cut)))
    assert sum(batch.num_rows for batch in stream.tables(whole=True)) == 2
    with pytest.raises(StaleRoute):
        list(table.scan(ScanRows()).tables(whole=True))


def test_nothing_is_written_below_what_the_former_leader_answered_at(world: World) -> None:
    """Its clock was ahead: what it told at a txn must stay true after a clean change of hands."""
    world.create(splits=0)
    world.clock.advance(3600)
    a = world.start("A")
    world.clock.set_microseconds(world.clock.microseconds() - 3_600_000_000)
    b = world.start("B")
    world.give(a, "t0")
    put(a, 1)
    a.store.passing.pass_txn()
    told_at = a.store.read_txn(None)
    a.giver.give_up(a.store.table("t"), ["t0"])
    world.give(b, "t0")
    assert put(b, 2) > told_at


def test_a_row_that_was_cached_is_not_answered_when_its_tablet_was_given_up(world: World) -> None:
    world.create()
    a, b = world.start("A"), world.start("B")
    world.give(a, "t0", "t1")
    put(a, 1, 101)
    for key in (1, 101, 1, 101):
        value(a, key)
    a.giver.give_up(a.store.table("t"), ["t0"])
    world.give(b, "t0")
    put(b, 1, v="b")
    with pytest.raises(StaleRoute):
        value(a, 1)
    assert len(a.store.table("t").row_cache.rows) == 1
    assert value(a, 101) == "101"


def test_a_request_that_a_dead_server_answered_is_not_carried_out_again_by_those_after_it(world: World) -> None:
    world.create()
    a, b, c = world.start("A"), world.start("B"), world.start("C")
    world.give(a, "t0")
    request = Put({"k": 1, "v": "once", "n": 1}, request_id=("client", 1))
    txn = a.table().write(request)
    a.store.abandon()
    world.bury(a)
    world.give(b, "t0", "t1")
    assert b.table().write(request) == txn
    put(b, 1, v="later")
    assert b.table().write(request) == txn
    # What it has for a tablet that had not done so is carried out.
    both = Put([{"k": 1, "v": "once", "n": 1}, {"k": 101, "v": "once", "n": 1}], request_id=("client", 1))
    assert b.table().write(both) > txn
    b.store.abandon()
    world.bury(b)
    world.give(c, "t0", "t1")
    assert c.table().write(request) == txn
    assert [value(c, key) for key in (1, 101)] == ["later", "once"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_request_that_is_repeated_with_the_next_leader_happens_once(world: World, is_clean: bool) -> None:
    world.create(splits=0)
    a, b, c = world.start("A"), world.start("B"), world.start("C")
    world.give(a, "t0")
    put(a, 1)
    row = a.table().codec.encode((1,))
    add = Modify(row, "n", "increment", 5, request_id=("client", 7))
    assert a.table().modify(add) == 6
    if is_clean:
        a.giver.give_up(a.store.table("t"), ["t0"])
    else:
        a.store.abandon()
        world.bury(a)
    world.give(b, "t0")
    b.table().modify(add)
    assert b.table().get((1,))["n"] == 6  # type: ignore[index]
    b.store.abandon()
    world.bury(b)
    world.give(c, "t0")
    c.table().modify(add)
    assert c.table().get((1,))["n"] == 6  # type: ignore[index]
