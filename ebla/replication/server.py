"""A tablet server's part in replication: all its replicas, over one log, under one lease. Events in, actions out.

    messages, syncs, METADATA, leases, ticks  -->  TabletServer  -->  actions (actions.py)     a driver does them

    TabletServer
    `-- TabletReplica      for each tablet and assignment id: leads, follows, learns, or is leaving
        |-- Leader
        `-- Follower

What a driver has to keep: records are appended in the order of the actions, and `synced` is called for what is on disk;
nothing is answered before its action; the steady clock counts the time in which the machine was suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ebla.replication.actions import Action, AskLease, Free, RaiseBound, ReadLog, Renew, Serve
from ebla.replication.configuration import LogEnd, Plan, Position, Table
from ebla.replication.host import Host
from ebla.replication.messages import (
    Ack,
    Adopt,
    Advance,
    ChildReady,
    ChildStart,
    CloseGate,
    Deleted,
    DropConfirmed,
    FollowerRead,
    GiveUp,
    MayDrop,
    Message,
    Outdated,
    Push,
    Put,
    Read,
    TakeOut,
)
from ebla.replication.replica import TabletReplica
from ebla.replication.server_log import Gone, Key, Record, ServerLog, Standing, replay
from ebla.replication.settings import ReplicationSettings
from ebla.replication.takeover import Takeovers

__all__ = ["TabletServer"]


class TabletServer:
    """The machine of one run of a server. Every method takes in one thing that happened."""

    def __init__(
        self,
        name: str,
        start: int,
        log_id: str,
        on_disk: Sequence[tuple[int, int, Record]],
        settings: ReplicationSettings,
    ) -> None:
        """Begin with what the log has: segment, number and record of each."""
        self._on_disk: Sequence[tuple[int, int, Record]] | None = on_disk
        self.host = Host(name, start, log_id, ServerLog(on_disk, settings.segment_records), settings)
        self.replicas: dict[Key, TabletReplica] = {}
        self._by_tablet: dict[str, list[TabletReplica]] = {}
        self._children: list[tuple[int, str, ChildReady]] = []  # to be told when the log is synced
        self._takeovers = Takeovers(self.host, self.replicas, self._make)
        self._metadata_at = -1.0  # when METADATA was last read, or asked for

    def replica(self, tablet: str, assignment_id: str | None = None) -> TabletReplica | None:
        """Return a replica: that of an assignment, or the one that is a member."""
        for one in self._by_tablet.get(tablet, ()):
            is_member = one.configuration is not None and not one.is_leaving
            if one.assignment_id == assignment_id or (assignment_id is None and is_member):
                return one
        return None

    def led(self) -> list[TabletReplica]:
        """Return the replicas that lead."""
        return [one for one in self.replicas.values() if one.leader is not None]

    # --- messages --------------------------------------------------------------------------------

    def receive(self, now: float, wall: int, sender: str, parts: Iterable[Message]) -> list[Action]:
        """Take in what came together from one sender."""
        self._at(now, wall)
        for message in parts:
            _HANDLERS[type(message)](self, sender, message)
        return self.host.taken()

    def _push(self, sender: str, push: Push) -> None:
        replica = self.replica(push.tablet, push.assignment_id)
        if replica is None:
            self.host.read_metadata()
        else:
            replica.follower.push(sender, push)

    def _ack(self, sender: str, ack: Ack) -> None:
        for one in self._by_tablet.get(ack.tablet, ()):
            if one.leader is not None:
                one.leader.ack(sender, ack)
            elif ack.epoch > one.epoch:
                self.host.read_metadata()

    def _outdated(self, sender: str, message: Outdated) -> None:
        self.host.read_metadata()

    def _for_leader(self, tablet: str) -> Any:
        replica = self.replica(tablet)
        return None if replica is None else replica.leader

    def _may_drop(self, sender: str, message: MayDrop) -> None:
        leader = self._for_leader(message.tablet)
        if leader is not None:
            leader.may_drop(sender, message)

    def _drop_confirmed(self, sender: str, message: DropConfirmed) -> None:
        replica = self.replica(message.tablet, message.assignment_id)
        if replica is not None and replica.is_leaving and replica.leader is None:
            self.host.send("master", Deleted(message.tablet, replica.assigned))
            self._delete(replica)

    def _child_start(self, sender: str, message: ChildStart) -> None:
        """Have the first entry of a child on disk, and say so; a later leader of the parent may have another."""
        host = self.host
        key = (message.child, message.assignment_id)
        if host.table is None or message.child in host.table.retired:
            return
        replica = self.replicas.get(key)
        if replica is None:
            replica = self._make(key)
        if replica.configuration is not None or message.epoch < replica.epoch:
            return
        if message.epoch > replica.epoch:
            replica.epoch = message.epoch
            host.write(Standing(key, message.epoch))
        replica.take_first(message.entry)
        ready = ChildReady(message.parent, message.epoch, message.child, message.assignment_id, host.log_id)
        self._children.append((host.log.next_sequence - 1, sender, ready))
        self._tell_children()

    def _child_ready(self, sender: str, message: ChildReady) -> None:
        leader = self._for_leader(message.parent)
        if leader is not None:
            leader.pause.child_ready(sender, message)

    def _give_up(self, sender: str, message: GiveUp) -> None:
        leader = self._for_leader(message.tablet)
        if leader is not None:
            leader.give_up(message)

    def _take_out(self, sender: str, message: TakeOut) -> None:
        leader = self._for_leader(message.tablet)
        if leader is not None:
            leader.take_out(message)

    def _adopt(self, sender: str, message: Adopt) -> None:
        self._takeovers.adopt(message)

    # --- clients and jobs ------------------------------------------------------------------------

    def _put(self, sender: str, put: Put) -> None:
        leader = self._for_leader(put.tablet)
        if leader is None:
            self.host.answer(put.request.client, put.request.sequence, put.tablet, "retry")
        else:
            leader.put(put)

    def _read(self, sender: str, read: Read) -> None:
        leader = self._for_leader(read.tablet)
        if leader is None:
            self.host.answer(read.client, read.token, read.tablet, "retry")
        else:
            leader.reads.read(read)

    def _follower_read(self, sender: str, read: FollowerRead) -> None:
        replica = self.replica(read.tablet)
        if replica is None or replica.leader is not None or replica.configuration is None:
            self.host.answer(read.client, read.token, read.tablet, "retry")
        else:
            replica.follower.read(read)

    def _close_gate(self, sender: str, message: CloseGate) -> None:
        leader = self._for_leader(message.tablet)
        if leader is not None:
            leader.reads.close_gate(message)

    def _advance(self, sender: str, message: Advance) -> None:
        leader = self._for_leader(message.tablet)
        if leader is not None:
            leader.reads.advance_to(message)

    # --- what was asked of the driver ------------------------------------------------------------

    def synced(self, now: float, wall: int, sequence: int) -> list[Action]:
        """The log is on disk up to this record."""
        self._at(now, wall)
        self.host.log.synced = max(self.host.log.synced, sequence)
        for replica in list(self.replicas.values()):
            replica.synced(sequence)
        self._tell_children()
        return self.host.taken()

    def _tell_children(self) -> None:
        if self._children:
            synced = self.host.log.synced
            for sequence, to, ready in self._children:
                if sequence <= synced:
                    self.host.send(to, ready)
            self._children = [one for one in self._children if one[0] > synced]

    def metadata_read(self, now: float, wall: int, table: Table) -> list[Action]:
        """METADATA as it was at some moment; what is older than what is known is passed over."""
        self._at(now, wall)
        host = self.host
        self._metadata_at = now
        if table.version > host.version:
            host.table = table
            self._learn(table)
        return host.taken()

    def served(self, now: float, wall: int, serve: Serve) -> list[Action]:
        """A row was read."""
        self._at(now, wall)
        replica = self.replica(serve.tablet, serve.assignment_id)
        if serve.is_follower and replica is not None:
            self.host.answer(serve.client, serve.token, serve.tablet, "done", serve.txn)
        elif replica is not None and replica.leader is not None:
            replica.leader.reads.served(serve)
        else:
            self.host.answer(serve.client, serve.token, serve.tablet, "retry")
        return self.host.taken()

    def file_made(self, now: float, wall: int, key: Key, epoch: int, upto: Position, name: str) -> list[Action]:
        """A file of a flush is on disk."""
        self._at(now, wall)
        replica = self.replicas.get(key)
        if replica is not None and replica.leader is not None:
            replica.leader.pause.file_made(epoch, upto, name)
        return self.host.taken()

    def log_read(
        self, now: float, wall: int, read: ReadLog, records: Sequence[tuple[int, Record]], end: int
    ) -> list[Action]:
        """The log of another server was read up to its end."""
        self._at(now, wall)
        self._takeovers.log_read(read, records, end)
        return self.host.taken()

    # --- lease and bound -------------------------------------------------------------------------

    def lease_taken(self, now: float, wall: int, number: int, asked_at: float, bound: int) -> list[Action]:
        """A lease of a new number begins. What was led under another is not led any more."""
        self._at(now, wall)
        host = self.host
        host.lease.taken(number, asked_at)
        host.txns.begin(bound)
        for replica in self.replicas.values():
            if replica.leader is None:
                replica.lead_if_chosen()
        host.read_metadata()
        return host.taken()

    def lease_refused(self, now: float, wall: int, number: int) -> list[Action]:
        """The node of the server has this number."""
        self._at(now, wall)
        self.host.lease.refused(number)
        self._keep_lease()
        return self.host.taken()

    def renewed(self, now: float, wall: int, number: int, asked_at: float) -> list[Action]:
        """The lease was renewed."""
        self._at(now, wall)
        self.host.lease.renewed(number, asked_at)
        return self.host.taken()

    def lease_lost(self, now: float, wall: int, number: int, seen: int) -> list[Action]:
        """The lease of this number is over; the node has the number `seen`."""
        self._at(now, wall)
        self.host.lease.lost(number)
        self.host.lease.seen = max(self.host.lease.seen, seen)
        self._keep_lease()
        return self.host.taken()

    def bound_raised(self, now: float, wall: int, bound: int) -> list[Action]:
        """Txns up to this may be given out."""
        self._at(now, wall)
        self.host.txns.raised(bound)
        for replica in self.led():
            assert replica.leader is not None
            replica.leader.begin()
            replica.leader.advance()
        self._raise_bound()
        return self.host.taken()

    def _keep_lease(self) -> None:
        host = self.host
        lease, settings = host.lease, host.settings
        is_due = lease.asked_at is None or host.now - lease.asked_at >= settings.renew_seconds
        if not is_due:
            return
        lease.asked_at = host.now
        if lease.number and lease.valid_until > 0:
            host.act(Renew(lease.number, host.now))
        else:
            host.act(AskLease(host.start, host.log_id, lease.seen, host.now))

    def _raise_bound(self) -> None:
        txns = self.host.txns
        if txns.wanted > txns.bound and self.host.lease.number:
            self.host.act(RaiseBound(self.host.lease.number, txns.wanted))

    # --- time and people -------------------------------------------------------------------------

    def tick(self, now: float, wall: int) -> list[Action]:
        """Some time has passed."""
        self._at(now, wall)
        self._keep_lease()
        if self.host.table is None or now - self._metadata_at > self.host.settings.poll_seconds:
            self._metadata_at = now
            self.host.read_metadata()
        for replica in list(self.replicas.values()):
            replica.tick()
        self._takeovers.tick()
        if self.led():
            self.host.txns.keep_ahead(wall)
        self._raise_bound()
        self._free()
        return self.host.taken()

    def flush(self, now: float, wall: int, tablet: str) -> list[Action]:
        """Bring what a tablet has in its log into a file."""
        self._at(now, wall)
        leader = self._for_leader(tablet)
        if leader is not None:
            leader.pause.flush()
        return self.host.taken()

    def split(self, now: float, wall: int, tablet: str, plan: Plan) -> list[Action]:
        """Split a tablet as planned."""
        self._at(now, wall)
        leader = self._for_leader(tablet)
        if leader is not None:
            leader.pause.split(plan)
        return self.host.taken()

    # --- inside ----------------------------------------------------------------------------------

    def _at(self, now: float, wall: int) -> None:
        host = self.host
        host.now = now
        host.wall = wall
        if host.log.is_full:
            host.log.rotate()
            for key, replica in self.replicas.items():
                host.write(Standing(key, replica.epoch))

    def _learn(self, table: Table) -> None:
        host = self.host
        if self._on_disk is not None:
            self._load(table)
        for configuration in table.tablets.values():
            member = configuration.replica_on(host.name)
            if member is not None and (configuration.tablet, member.assignment_id) not in self.replicas:
                self._make((configuration.tablet, member.assignment_id))
            for replica in list(self._by_tablet.get(configuration.tablet, ())):
                replica.learn(configuration)
        for replica in list(self.replicas.values()):
            if replica.tablet in table.retired:
                if replica.leader is not None:
                    replica.leader.end()
                self._delete(replica)

    def _load(self, table: Table) -> None:
        """Replay the log, less what stands behind ends that METADATA has on record."""
        assert self._on_disk is not None
        records = [(sequence, record) for _, sequence, record in self._on_disk]
        self._on_disk = None
        for key, found in replay(records, self._ends(table)).items():
            if key not in self.replicas:
                self._keep(TabletReplica(self.host, key, found))

    def _ends(self, table: Table) -> list[LogEnd]:
        return [end for one in table.tablets.values() for end in one.log_ends if end.log_id == self.host.log_id]

    def _make(self, key: Key) -> TabletReplica:
        return self._keep(TabletReplica(self.host, key))

    def _keep(self, replica: TabletReplica) -> TabletReplica:
        self.replicas[replica.key] = replica
        self._by_tablet.setdefault(replica.tablet, []).append(replica)
        return replica

    def _delete(self, replica: TabletReplica) -> None:
        self.host.write(Gone(replica.key))
        del self.replicas[replica.key]
        self._by_tablet[replica.tablet].remove(replica)

    def _free(self) -> None:
        log = self.host.log
        if self._on_disk is None and log.synced == log.next_sequence - 1:  # a record that a replica is gone, too
            for segment in log.free(self._is_needed):
                self.host.act(Free(segment))

    def _is_needed(self, key: Key, index: int) -> bool:
        replica = self.replicas.get(key)
        return replica is not None and (replica.configuration is None or index > replica.log.base.index)


_HANDLERS: dict[type, Callable[[TabletServer, str, Any], None]] = {
    Push: TabletServer._push,
    Ack: TabletServer._ack,
    Outdated: TabletServer._outdated,
    MayDrop: TabletServer._may_drop,
    DropConfirmed: TabletServer._drop_confirmed,
    ChildStart: TabletServer._child_start,
    ChildReady: TabletServer._child_ready,
    GiveUp: TabletServer._give_up,
    TakeOut: TabletServer._take_out,
    Adopt: TabletServer._adopt,
    Put: TabletServer._put,
    Read: TabletServer._read,
    FollowerRead: TabletServer._follower_read,
    CloseGate: TabletServer._close_gate,
    Advance: TabletServer._advance,
}
