"""A server stops before a master calls its lease over."""

from __future__ import annotations

from ebla.replication.lease import Lease, LeaseWatch, ServerNode
from ebla.replication.settings import ReplicationSettings

SETTINGS = ReplicationSettings(lease_seconds=3.0, lease_margin_seconds=0.5)


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    lease = Lease(3.0)
    lease.taken(5, asked_at=10.0)
    assert lease.covers(5, 12.9)
    assert not lease.covers(5, 13.0)
    lease.renewed(5, asked_at=11.0)
    assert lease.covers(5, 13.9)


def test_a_lease_covers_no_other_number() -> None:
    lease = Lease(3.0)
    lease.taken(5, asked_at=10.0)
    lease.lost(5)
    assert not lease.covers(5, 10.5)
    lease.taken(7, asked_at=11.0)
    assert lease.covers(7, 11.5)
    assert not lease.covers(5, 11.5)


def test_answers_that_were_overtaken_change_nothing() -> None:
    lease = Lease(3.0)
    lease.taken(7, asked_at=10.0)
    lease.taken(6, asked_at=12.0)
    lease.renewed(6, asked_at=13.0)
    lease.lost(6)
    assert lease.covers(7, 12.9)
    assert not lease.covers(7, 13.0)


def test_a_master_counts_from_when_it_saw_a_lease_renewed() -> None:
    watch = LeaseWatch(SETTINGS)
    for now, version in ((100.0, 1), (102.0, 2), (105.0, 2), (105.6, 2)):
        watch.see({"s": ServerNode(4, version, True)}, now)
        assert watch.has_run_out("s", now) is (now > 105.5)
    assert not watch.is_over("s", 4)
    watch.see({"s": ServerNode(5, 3, False)}, 106.0)
    assert watch.is_over("s", 4)
    assert not watch.is_alive("s", 106.0)
