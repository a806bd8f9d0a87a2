"""Mistakes, to be planted one at a time: each breaks one rule of the protocol, and the simulation must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ebla.metadata.values import replica_rules
from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication import changes, server
from ebla.replication.configuration import Configuration
from ebla.replication.follower import Follower
from ebla.replication.leader import Leader
from ebla.replication.lease import Lease
from ebla.replication.master_part import MasterPart
from ebla.replication.membership import Membership
from ebla.replication.messages import DropConfirmed, Resigned
from ebla.replication.pause import Pause
from ebla.replication.progress import Progress
from ebla.replication.reads import Reads
from ebla.replication.replica import TabletReplica
from ebla.replication.replies import Replies
from ebla.replication.server import TabletServer
from ebla.replication.txns import Txns


class _GivenUp:
    """The configuration in which a split was given up by time."""

    def __init__(self, number: int) -> None:
        self.given_up = number


Plant = Callable[[pytest.MonkeyPatch], None]
MISTAKES: dict[str, Plant] = {}
MOODS: dict[str, str] = {}  # what schedules need more of, to come to where some mistakes show


def mistake(plant: Plant) -> Plant:
    MISTAKES[plant.__name__] = plant
    return plant


def mistake_in(mood: str) -> Callable[[Plant], Plant]:
    def kept(plant: Plant) -> Plant:
        MOODS[plant.__name__] = mood
        return mistake(plant)

    return kept


# --- commit --------------------------------------------------------------------------------------


@mistake
def a_majority_commits(patch: pytest.MonkeyPatch) -> None:
    def majority(self: Membership, members: Any, own: int, progress: dict[str, Progress], leader: str) -> int:
        members = list(members)
        found = [own if one.server == leader else progress[one.server].acked_as(one) for one in members]
        return sorted(found, reverse=True)[len(found) // 2]

    patch.setattr(Membership, "_all_have", majority)


@mistake
def who_is_taken_out_is_not_waited_for_from_the_asking_on(patch: pytest.MonkeyPatch) -> None:
    commit_index = Membership.commit_index

    def early(self: Membership, *arguments: Any) -> int:
        if self.pending is not None and self.pending.out is not None:
            return self._all_have(self._asked, *arguments)
        return commit_index(self, *arguments)

    patch.setattr(Membership, "commit_index", early)


@mistake
def who_is_put_in_sync_is_not_waited_for_before_metadata_says_so(patch: pytest.MonkeyPatch) -> None:
    def one_set(self: Membership, *arguments: Any) -> int:
        return self._all_have(self.configuration.in_sync, *arguments)

    patch.setattr(Membership, "commit_index", one_set)


@mistake_in("moves")
def acknowledgements_of_other_assignments_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "takes", lambda self, ack, epoch: ack.epoch == epoch and ack.start >= self.start)


@mistake
def acknowledgements_of_any_log_count(patch: pytest.MonkeyPatch) -> None:
    """In sync without the log id: a disk that was lost and came back empty counts as the one on record."""
    patch.setattr(Progress, "acked_as", lambda self, member: self.acked)


@mistake
def followers_acknowledge_before_they_sync(patch: pytest.MonkeyPatch) -> None:
    def early(self: Follower, runs: Any) -> None:
        self._send(self.matched if runs is None else 0, runs)

    patch.setattr(Follower, "_acknowledge", early)


@mistake
def leaders_count_themselves_before_they_sync(patch: pytest.MonkeyPatch) -> None:
    append = TabletReplica.append

    def early(self: TabletReplica, entry: Any) -> None:
        append(self, entry)
        self.durable = entry.index

    patch.setattr(TabletReplica, "append", early)


# --- logs ----------------------------------------------------------------------------------------


@mistake
def followers_cut_their_log_at_the_commit_index(patch: pytest.MonkeyPatch) -> None:
    """As Kafka did before KIP-101: by what was known to be committed, instead of by epoch and index."""
    enter = Follower.enter

    def cut(self: Follower) -> None:
        replica = self._replica
        if replica.log.last_index > replica.commit:
            replica.drop_from(replica.commit + 1)
        enter(self)

    patch.setattr(Follower, "enter", cut)


@mistake_in("churn")
def drops_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: TabletReplica, index: int) -> None:
        self.log.drop_from(index)
        self._unsynced = type(self._unsynced)(one for one in self._unsynced if one[1] < index)
        self.durable = min(self.durable, index - 1)

    patch.setattr(TabletReplica, "drop_from", forgetful)


@mistake
def followers_do_not_compare_what_they_have(patch: pytest.MonkeyPatch) -> None:
    """Entries of an index that is there are passed over, whatever epoch they are of."""

    def careless(self: Follower, entries: Any) -> bool:
        for entry in entries:
            if entry.index > self._replica.log.last_index:
                self._replica.append(entry)
        return True

    patch.setattr(Follower, "_take", careless)


# --- leases --------------------------------------------------------------------------------------


@mistake
def leaders_answer_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "has_lease", lambda self: not self.is_resigned)


@mistake
def any_lease_of_the_server_will_do(patch: pytest.MonkeyPatch) -> None:
    """A lease that was lost and taken anew covers the epochs of the one before."""
    patch.setattr(Lease, "covers", lambda self, number, now: now < self.valid_until)


@mistake
def leases_are_counted_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    def late(self: Lease, number: int, asked_at: float) -> None:
        if number == self.number:
            self.valid_until = max(self.valid_until, asked_at + 2 * self.seconds)

    patch.setattr(Lease, "renewed", late)


@mistake
def masters_do_not_wait_for_the_end_of_a_lease(patch: pytest.MonkeyPatch) -> None:
    is_over = MasterPart._is_over

    def early(self: MasterPart, tablet: Configuration, now: float) -> bool:
        return is_over(self, tablet, now) or self.watch.away_seconds(tablet.leader, now) > 0.6

    patch.setattr(MasterPart, "_is_over", early)


@mistake
def who_resigned_goes_on_answering(patch: pytest.MonkeyPatch) -> None:
    def half(self: Leader, successor: Any) -> None:
        self.host.send("master", Resigned(self.replica.tablet, self.epoch, self.host.txns.bound, successor))

    patch.setattr(Leader, "resign", half)


# --- members -------------------------------------------------------------------------------------


@mistake
def fewer_than_needed_may_be_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "_can_take_out", lambda self, configuration: len(configuration.in_sync) > 1)
    patch.setattr(
        replica_rules,
        "with_in_sync",
        lambda tablet, members: changes._replace(tablet, replicas=members, counted=tablet.wanted),
    )


@mistake
def learners_are_level_by_a_commit_index_that_may_be_old(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not know what the one before had committed."""
    patch.setattr(Leader, "_level_index", lambda self: self.replica.commit)


@mistake
def any_member_may_be_chosen_to_lead(patch: pytest.MonkeyPatch) -> None:
    def member(tablet: Configuration, leader: Replica) -> bool:
        return any(one.server == leader.server for one in tablet.replicas)

    patch.setattr(MasterPart, "_candidates", lambda self, tablet: tablet.replicas)
    patch.setattr(MasterPart, "_has_log", lambda self, member, node: True)
    patch.setattr(replica_rules, "is_in_sync_in", member)
    is_chosen = TabletReplica._is_chosen

    def chosen(self: TabletReplica, configuration: Configuration) -> bool:
        members = tuple(
            Replica(one.server, one.assignment_id, self.host.log_id, True) if one.server == self.host.name else one
            for one in configuration.replicas
        )
        return is_chosen(self, changes._replace(configuration, replicas=members))

    patch.setattr(TabletReplica, "_is_chosen", chosen)


@mistake
def changes_do_not_name_the_configuration_that_they_were_decided_on(patch: pytest.MonkeyPatch) -> None:
    def any_base(table: Any, change: Any) -> Configuration:
        tablet = changes.known(table, change.tablet)
        return changes._replace(tablet, number=tablet.number + 1)

    patch.setattr(changes, "based_on", any_base)


# --- txns ----------------------------------------------------------------------------------------


@mistake
def new_leaders_ignore_the_floor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_floor", lambda self: 0)


@mistake
def txns_are_given_out_above_the_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Txns, "_reaches", lambda self, txn: True)


@mistake
def reads_do_not_wait_for_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "_below_uncommitted", lambda self: self._leader.host.txns.last)


@mistake
def reads_do_not_push_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Reads, "_can_serve", lambda self, txn: not self._leader.replica.log.behind(self._leader.replica.commit)
    )


# --- flush and replies ---------------------------------------------------------------------------


@mistake
def what_is_not_committed_is_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pause, "_may_flush", lambda self, window: True)


@mistake
def the_window_of_replies_is_not_logged_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replies, "all", lambda self: ())


@mistake
def requests_older_than_the_window_are_taken_for_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replies, "_can_tell", lambda self, request: True)


# --- split, load, drop ---------------------------------------------------------------------------


@mistake
def the_pause_of_a_split_ends_by_time(patch: pytest.MonkeyPatch) -> None:
    """The finish may still land: what was written after the pause is lost."""
    begin, tick = Pause._begin, Pause.tick

    def beginning(self: Pause) -> None:
        if self._leader.configuration.number != getattr(self._leader.successor, "given_up", None):
            begin(self)

    def ticking(self: Pause) -> None:
        if self._plan is not None and self._leader.host.now - self._closed_at > 0.3:
            self._leader.successor = _GivenUp(self._leader.configuration.number)
            self._asked_number = None
            self._open()
        tick(self)

    patch.setattr(Pause, "_begin", beginning)
    patch.setattr(Pause, "tick", ticking)


@mistake
def splits_finish_without_a_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pause, "_is_drained", lambda self: True)


@mistake
def splits_finish_without_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pause, "is_closed", property(lambda self: False))
    step = Pause.step

    def stepping(self: Pause) -> None:
        patch_closed = self._plan is not None or self._version > 0
        step(self)
        if patch_closed and not self._is_flushing and self._asked_number is None and self._is_drained():
            self._start_children() if self._plan is not None else None
            if self._plan is None or self._are_children_ready():
                self._finish()

    patch.setattr(Pause, "step", stepping)


@mistake
def children_begin_without_the_window_of_replies(patch: pytest.MonkeyPatch) -> None:
    take_first = TabletReplica.take_first
    patch.setattr(
        TabletReplica,
        "take_first",
        lambda self, entry: take_first(self, changes._replace(entry, window=(), forgotten_txn=0)),
    )


@mistake
def gates_open_by_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "_time_out", Reads._open)


@mistake
def reads_go_past_a_closed_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "safe_txn", Reads._below_uncommitted)


@mistake
def replicas_are_deleted_on_the_strength_of_metadata(patch: pytest.MonkeyPatch) -> None:
    tick = TabletReplica.tick

    def ticking(self: TabletReplica) -> None:
        if self.is_leaving:
            self.host.send(self.host.name, DropConfirmed(self.tablet, self.assignment_id))
        tick(self)

    patch.setattr(TabletReplica, "tick", ticking)


@mistake
def replicas_are_deleted_whatever_their_assignment(patch: pytest.MonkeyPatch) -> None:
    def any_assignment(self: TabletServer, sender: str, message: DropConfirmed) -> None:
        replica = self.replica(message.tablet)
        if replica is not None:
            self._delete(replica)

    patch.setitem(server._HANDLERS, DropConfirmed, any_assignment)


# --- what outlives a restart ---------------------------------------------------------------------


@mistake_in("alone")
def what_stands_behind_the_end_of_a_log_is_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TabletServer, "_ends", lambda self, table: [])


@mistake
def late_flushes_of_earlier_leaders_count(patch: pytest.MonkeyPatch) -> None:
    flush = changes._flush

    def late(tablet: Configuration, change: Any) -> Configuration:
        return flush(changes._replace(tablet, flushed=change.base), change)

    patch.setattr(changes, "_flush", late)
    patch.setattr(changes, "led_at", lambda tablet, epoch: tablet)


@mistake
def changes_without_effect_keep_the_number(patch: pytest.MonkeyPatch) -> None:
    """A copy of a change that was refused may land later, when it fits."""
    with_tablet = changes.with_tablet

    def keep(table: Any, tablet: Configuration) -> Any:
        before = table.tablets[tablet.tablet]
        if changes._replace(tablet, number=before.number) == before:
            tablet = before
        return with_tablet(table, tablet)

    patch.setattr(changes, "with_tablet", keep)
