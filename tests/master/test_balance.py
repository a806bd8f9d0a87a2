"""The balancer: what it moves, what it leaves alone, and that it stops."""

from __future__ import annotations

import random as dice
from collections import Counter

import pytest

from ebla.master.balance import Move, Placed, plan_moves
from ebla.master.messages import HandOverTablet
from ebla.master.settings import MasterSettings
from tests.master.master_world import MasterWorld


def hosts(count: int) -> dict[str, str]:
    return {f"s{number}": f"h{number}" for number in range(count)}


def applied(tablets: list[Placed], moves: list[Move]) -> list[Placed]:
    by_tablet = {move.tablet: move for move in moves}
    after = []
    for placed in tablets:
        move = by_tablet.get(placed.tablet)
        if move is not None:
            servers = tuple(move.target if server == move.source else server for server in placed.servers)
            placed = Placed(placed.tablet, move.leader, servers, True)  # type: ignore[arg-type]
        assert placed.leader in placed.servers
        assert len(set(placed.servers)) == len(placed.servers)
        after.append(placed)
    return after


def balanced(tablets: list[Placed], servers: dict[str, str], **options: object) -> list[Placed]:
    """Repeat rounds until there is nothing left to do."""
    for _ in range(200):
        moves = plan_moves(tablets, servers, moves_max=5, **options)  # type: ignore[arg-type]
        assert len(moves) <= 5
        assert len({move.tablet for move in moves}) == len(moves), "one change per tablet at a time"
        if not moves:
            return tablets
        tablets = applied(tablets, moves)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("seed", range(20))
def test_rounds_end_with_replicas_and_leaders_spread(seed: int) -> None:
    random = dice.Random(seed)
    servers = hosts(random.randint(2, 7))
    replication = random.randint(1, min(3, len(servers)))
    used = random.sample([*servers], random.randint(replication, len(servers)))
    tablets = []
    for number in range(random.randint(1, 60)):
        chosen = tuple(random.sample(used, replication))
        tablets.append(Placed(f"t{number}", random.choice(chosen), chosen, True))
    after = balanced(tablets, servers)
    replicas = Counter(dict.fromkeys(servers, 0)) + Counter()
    replicas.update(server for placed in after for server in placed.servers)
    counts = [replicas[server] for server in servers]
    assert max(counts) - min(counts) <= 1
    leaders = Counter(placed.leader for placed in after)
    if replication == 1:
        assert leaders == replicas


def test_new_server_takes_its_share_a_few_tablets_at_a_time() -> None:
    tablets = [Placed(f"t{number}", f"s{number % 2}", (f"s{number % 2}",), True) for number in range(30)]
    first = plan_moves(tablets, hosts(3), moves_max=4)
    assert [move.target for move in first] == ["s2"] * 4
    after = balanced(tablets, hosts(3))
    assert Counter(placed.leader for placed in after) == {"s0": 10, "s1": 10, "s2": 10}
    moved = sum(before.servers != now.servers for before, now in zip(tablets, after, strict=True))
    assert moved == 10, "no more than the share"


def test_even_cluster_is_left_alone() -> None:
    tablets = [Placed(f"t{number}", f"s{number % 3}", (f"s{number % 3}",), True) for number in range(10)]
    assert plan_moves(tablets, hosts(3), moves_max=10) == []
    assert plan_moves(tablets, {}, moves_max=10) == []
    assert plan_moves([], hosts(3), moves_max=10) == []


def test_tablet_that_is_not_settled_is_left_alone() -> None:
    tablets = [Placed(f"t{number}", "s0", ("s0",), False) for number in range(10)]
    assert plan_moves(tablets, hosts(2), moves_max=10) == []


def test_what_moves_is_led_by_one_that_has_it() -> None:
    tablets = [Placed(f"t{number}", "s0", ("s0", "s1"), True) for number in range(6)]
    for move in plan_moves(tablets, hosts(3), moves_max=10):
        assert move.leader in ("s0", "s1"), "not the one that has nothing yet"


def test_moves_keep_replicas_on_different_hosts() -> None:
    servers = {"a1": "a", "a2": "a", "b1": "b"}
    tablets = [Placed(f"t{number}", "a1", ("a1", "b1"), True) for number in range(12)]
    for placed in balanced(tablets, servers):
        assert {servers[server] for server in placed.servers} == {"a", "b"}
    leaders = Counter(placed.leader for placed in balanced(tablets, servers))
    assert max(leaders.values()) - min(leaders.values()) <= 2


# --- in the master -------------------------------------------------------------------------------


def test_dry_run_shows_the_plan_and_a_round_carries_it_out() -> None:
    world = MasterWorld(settings=MasterSettings(moves_max=2))
    world.create("users", [b"g", b"m", b"t"])
    world.join("s1")
    world.settle()
    world.join("s2")
    plan = world.master.plan_balance()
    assert [(move.source, move.target) for move in plan] == [("s1", "s2")] * 2
    assert world.master.plan_balance() == plan, "it changes nothing"
    world.requests()
    world.round()
    moved = {move.tablet for move in plan}
    offered = {tablet.id: tablet for tablet in world.metadata().tablets if tablet.target is not None}
    assert offered.keys() == moved
    assert {tablet.leader for tablet in offered.values()} == {"s1"}, "until it has resigned"
    asked = {(server, type(request), request.tablet) for server, request in world.requests()}
    assert asked == {("s1", HandOverTablet, one) for one in moved}
    assert world.master.plan_balance() == [], "one change per tablet at a time"


def test_nothing_moves_while_servers_are_still_expected() -> None:
    """A new master knows nobody: those who register first must not get everything."""
    world = MasterWorld(settings=MasterSettings(silent_after_seconds=60.0, replace_after_seconds=60.0))
    world.create("users", [b"g", b"m", b"t"])
    world.join("s1", "s2")
    world.settle("users", ["s1", "s2"])
    reported = world.reported("users", "s1")
    world.restart()
    world.join("s1", "s3")
    world.beat("s1", reported)
    assert world.master.plan_balance() == []
    world.clock.advance(61)
    for server in ("s1", "s3"):
        world.beat(server, has_report=False)
    assert {move.target for move in world.master.plan_balance()} == {"s3"}
