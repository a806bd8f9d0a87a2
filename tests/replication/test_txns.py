"""No txn is given out above the bound, and none twice."""

from __future__ import annotations

from ebla.replication.txns import Txns


def test_txns_grow_though_the_clock_goes_back() -> None:
    txns = Txns(1000)
    txns.raised(10_000)
    assert [txns.allocate(wall) for wall in (500, 500, 400, 700)] == [500, 501, 502, 700]


def test_nothing_is_given_out_above_the_bound_and_it_is_asked_for() -> None:
    txns = Txns(1000)
    txns.raised(600)
    assert txns.allocate(500) == 500
    assert txns.wanted == 1500
    assert txns.allocate(601) is None
    assert not txns.push(700)
    txns.raised(1500)
    assert txns.push(700)
    assert txns.allocate(600) == 701


def test_a_run_begins_above_the_bound_of_the_one_before() -> None:
    txns = Txns(1000)
    txns.begin(800)
    assert txns.allocate(500) is None
    txns.raised(2000)
    assert txns.allocate(500) == 801
