"""What must hold at every moment of a schedule, by one who sees all servers, their disks, METADATA and the leases.

- One leader per epoch. Committed entries are in every later leader. Logs agree up to the commit index.
- What is committed is on the disk of every in-sync replica whose log is the one on record, and of `needed`.
- Flushed <= committed. Txns grow, across leaders, and beyond every snapshot that was read.
- No answer without the lease of that epoch. At least `needed` in sync. Never the last copy deleted.
- An entry whose outcome was unknown appears wholly or not at all, once. What is read at a txn never changes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from ebla.replication.actions import Answer
from ebla.replication.configuration import Configuration, Replica, Table
from ebla.replication.messages import Entry
from ebla.replication.recut_changes import CommitLoad
from ebla.replication.replica import TabletReplica
from ebla.replication.server_log import Dropped
from tests.support.linearizability import Operation, is_linearizable

if TYPE_CHECKING:
    from tests.replication.simulation import SimulatedServer, Simulation


class Step:
    """A write or a read of a row by a client, under way or done."""

    __slots__ = ("began", "ended", "is_write", "value")

    def __init__(self, is_write: bool, value: Any, began: float, ended: float = inf) -> None:
        self.is_write = is_write
        self.value = value
        self.began = began
        self.ended = ended


class Violation(AssertionError):
    """Something that must never be was seen."""


class Checks:
    """What is true of a schedule so far."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.committed: dict[str, dict[int, Entry]] = {}  # by tablet and index
        self.leaders: dict[tuple[str, int], str] = {}
        self.read_txn: dict[bytes, int] = {}  # the highest txn that a row was read at
        self.snapshots: dict[tuple[bytes, int], Any] = {}
        self.history: dict[bytes, list[Step]] = {}  # what clients did to a row, and saw of it

    # --- after every event of a server -----------------------------------------------------------

    def observe(self, server: SimulatedServer) -> None:
        """Look at a server's replicas after an event."""
        machine = server.machine
        assert machine is not None
        seen = server.seen_commit
        for key, replica in machine.replicas.items():
            before = seen.get(key, 0)
            if replica.commit > before and not self._is_on_its_own(server, replica):
                seen[key] = replica.commit
                self._committed(server, replica, before)
            if server.before and key in server.before and replica.configuration is not None:
                self._replayed(server, replica, server.before.pop(key))
            leader = replica.leader
            if leader is not None and leader.is_serving and (key, leader.epoch) not in server.seen_serving:
                server.seen_serving.add((key, leader.epoch))
                self._serves(server, replica)

    def stopped(self, server: SimulatedServer) -> None:
        """A server stops: if all is on disk, a replay must give back what its replicas had."""
        machine = server.machine
        if machine is None or machine.host.log.next_sequence - 1 > server.synced:
            server.before = {}
        else:
            server.before = {
                key: (replica.log.base.index, list(replica.log.entries))
                for key, replica in machine.replicas.items()
                if replica.configuration is not None
            }

    def _replayed(self, server: SimulatedServer, replica: TabletReplica, before: tuple[int, list[Entry]]) -> None:
        assert replica.configuration is not None
        for end in replica.configuration.log_ends:
            if end.assignment_id == replica.assignment_id and end.log_id == server.log_id:
                for entry in replica.log.entries:
                    if server.number_at(replica.key, entry.index) > end.sequence:
                        raise Violation(f"{server.name} replays {entry} of {replica.key}, behind the end {end}")
                return
        base = replica.log.base
        below = replica.epoch if replica.leader is not None else replica.epoch + 1  # what it leads with is new
        first = max(base.index, before[0]) + 1
        expected, found = (
            [entry for entry in entries if entry.index >= first and base.epoch <= entry.epoch < below]
            for entries in (before[1], replica.log.entries)
        )
        if found != expected:
            raise Violation(f"{server.name} had {expected} of {replica.key}, and replays {found}")

    def dropped(self, server: SimulatedServer, record: Dropped) -> None:
        """A replica drops entries: none that is committed, if it is in sync."""
        configuration = self.simulation.table.tablets.get(record.key[0])
        member = configuration.replica_on(server.name) if configuration is not None else None
        if configuration is None or member is None or not member.is_in_sync or member.log_id != server.log_id:
            return
        if member.assignment_id != record.key[1]:
            return
        for index, entry in self.committed.get(record.key[0], {}).items():
            if index >= max(record.index, configuration.flushed.index + 1) and server.has_on_disk(record.key, entry):
                raise Violation(f"{server.name} is in sync, and drops {entry}")

    def _is_on_its_own(self, server: SimulatedServer, replica: TabletReplica) -> bool:
        """Tell whether one replica commits by itself and without its lease: maybe behind the end of its log."""
        leader = replica.leader
        has_lease = leader is not None and self.simulation.nodes[server.name].number == leader.lease
        return self.simulation.is_log_shared and not has_lease

    def _committed(self, server: SimulatedServer, replica: TabletReplica, before: int) -> None:
        truth = self.committed.setdefault(replica.tablet, {})
        for entry in replica.log.between(before, replica.commit):
            known = truth.get(entry.index)
            if known is not None:
                if known is not entry and known != entry:
                    raise Violation(f"{server.name} has {entry} as committed, and {known} was")
                continue
            if replica.leader is None:
                raise Violation(f"{server.name} takes {entry} for committed, and it is not")
            truth[entry.index] = entry
            self._is_new(server, replica, entry, truth)

    def _is_new(self, server: SimulatedServer, replica: TabletReplica, entry: Entry, truth: dict[int, Entry]) -> None:
        before = truth.get(entry.index - 1)
        if before is None and entry.index > 1:
            raise Violation(f"{entry} is committed, and the one before is not")
        if before is not None and not before.txn < entry.txn:
            raise Violation(f"txns do not grow: {before} {entry}")
        for row, _ in entry.rows:
            if entry.txn <= self.read_txn.get(row, 0):
                raise Violation(f"{entry} is committed, and {row!r} was read at {self.read_txn[row]} before")
        configuration = self.simulation.table.tablets.get(replica.tablet)
        if configuration is None:
            raise Violation(f"{entry} is committed in a tablet that is gone")
        copies = self._copies(configuration, entry)
        lost = sum(self._was_lost_since(member, server, entry) for member in configuration.in_sync)
        if copies + lost < configuration.needed:
            raise Violation(f"{entry} is committed, and on {copies} disks")

    def _was_lost_since(self, member: Replica, leader: SimulatedServer, entry: Entry) -> bool:
        """Tell whether a replica lost its disk after the leader wrote an entry: it may have acknowledged it before."""
        server = self.simulation.servers[member.server]
        number = leader.number_of(entry)
        written_at = 0.0 if number is None else leader.written_at[number]
        return server.log_id != member.log_id and server.wiped_at >= written_at

    def _copies(self, configuration: Configuration, entry: Entry) -> int:
        """Count the in-sync replicas that have an entry on disk; all whose log is the one on record must."""
        copies = 0
        for member in configuration.in_sync:
            server = self.simulation.servers[member.server]
            if server.log_id != member.log_id:
                continue
            if entry.index > configuration.flushed.index and not server.has_on_disk(
                (configuration.tablet, member.assignment_id), entry
            ):
                raise Violation(f"{member} is in sync, and does not have {entry}")
            copies += 1
        return copies

    def _serves(self, server: SimulatedServer, replica: TabletReplica) -> None:
        leader = replica.leader
        assert leader is not None
        known = self.leaders.setdefault((replica.tablet, leader.epoch), server.name)
        if known != server.name:
            raise Violation(f"{replica.tablet} is led in epoch {leader.epoch} by {known} and {server.name}")
        for index, entry in self.committed.get(replica.tablet, {}).items():
            if entry.epoch > leader.epoch:
                continue  # it lost its place, and does not know yet
            if index > replica.log.base.index and replica.log.between(index - 1, index) != [entry]:
                raise Violation(f"{server.name} leads {replica.tablet} at {leader.epoch} without {entry}")

    # --- METADATA --------------------------------------------------------------------------------

    def metadata_changed(self, before: Table, after: Table) -> None:
        """Look at METADATA after a change."""
        for name, tablet in after.tablets.items():
            old = before.tablets.get(name)
            if old is tablet:
                continue
            truth = self.committed.get(name, {})
            if len(tablet.in_sync) < tablet.needed:
                raise Violation(f"{name} has {tablet.in_sync} in sync, and needs {tablet.needed}")
            if old is not None and (tablet.epoch < old.epoch or tablet.txn_floor < old.txn_floor):
                raise Violation(f"{name}: an epoch or a floor went back")
            flushed = tablet.flushed
            if flushed.index and (flushed.index not in truth or truth[flushed.index].epoch != flushed.epoch):
                raise Violation(f"{name} is flushed to {flushed}, and that is not committed")
            if old is None or old.in_sync != tablet.in_sync or old.epoch != tablet.epoch:
                for entry in truth.values():
                    if entry.index > flushed.index:
                        self._copies(tablet, entry)
            if old is not None and old.schema_version < tablet.schema_version:
                self._check_flushed(old, "altered", tablet.schema_version)
        for name in before.tablets.keys() - after.tablets.keys():
            self._check_flushed(before.tablets[name], "split", None)

    def _check_flushed(self, tablet: Configuration, what: str, version: int | None) -> None:
        for entry in self.committed.get(tablet.tablet, {}).values():
            is_old = version is None or entry.schema_version < version
            if entry.kind == "write" and is_old and entry.index > tablet.flushed.index:
                raise Violation(f"{tablet.tablet} is {what}, and {entry} is not flushed")

    def loaded(self, change: CommitLoad) -> None:
        """A bulk load is committed at a txn: no row of it was read at that or later."""
        for entry in self.simulation.files[change.file]:
            for row, _ in entry.rows:
                if change.txn <= self.read_txn.get(row, 0):
                    raise Violation(f"{row!r} is loaded at {change.txn}, and was read at {self.read_txn[row]} before")

    def deleted(self, server: SimulatedServer, key: tuple[str, str]) -> None:
        """A server deletes a replica: others must have what is committed."""
        configuration = self.simulation.table.tablets.get(key[0])
        if configuration is None:
            return
        if any(member.assignment_id == key[1] for member in configuration.replicas):
            raise Violation(f"{server.name} deletes {key}, which is a member")
        least = 1 if self.simulation.wiped else configuration.needed
        for entry in self.committed.get(key[0], {}).values():
            if entry.index > configuration.flushed.index and self._copies(configuration, entry) < least:
                raise Violation(f"{server.name} deletes {key}, and {entry} is nowhere else")

    # --- clients ---------------------------------------------------------------------------------

    def answered(self, server: SimulatedServer, answer: Answer) -> None:
        """A leader tells a client something: it must lead, and hold the lease that its epoch is bound to."""
        configuration = self.simulation.table.tablets.get(answer.tablet)
        if configuration is None:
            return  # split by its own leader, who does not know yet: its children are not led before it does
        if configuration.epoch != answer.epoch or self.simulation.nodes[server.name].number != answer.lease:
            raise Violation(f"{server.name} answers for epoch {answer.epoch}, which is over: {answer}")

    def read(self, row: bytes, txn: int, value: Any) -> None:
        """A row was read at a txn, and a client was told."""
        known = self.snapshots.setdefault((row, txn), value)
        if known != value:
            raise Violation(f"{row!r} at {txn} was {known}, and is {value}")
        self.read_txn[row] = max(txn, self.read_txn.get(row, 0))

    def finish(self) -> None:
        """Look at the whole schedule."""
        simulation = self.simulation
        versions: dict[bytes, list[tuple[int, Any]]] = {}
        for tablet in simulation.table.tablets.values():
            for file in tablet.files:
                for entry in simulation.files[file]:
                    self._add(versions, tablet, entry)
            for entry in self.committed.get(tablet.tablet, {}).values():
                if entry.index > tablet.flushed.index:
                    self._add(versions, tablet, entry)
        for row, found in versions.items():
            values = [value for _, value in found]
            if len(set(values)) != len(values):
                raise Violation(f"{row!r} has something twice: {sorted(found)}")
        for (row, txn), value in self.snapshots.items():
            at = [one for one in versions.get(row, ()) if one[0] <= txn]
            now = max(at) if at else None
            if now != value:
                raise Violation(f"{row!r} at {txn} was {value}, and is {now} in the end")
        for row, steps in self.history.items():
            read = {step.value for step in steps if not step.is_write}
            history = [
                Operation("write" if step.is_write else "read", step.value, step.began, step.ended)
                for step in steps
                if not step.is_write or step.ended < inf or step.value in read  # else nobody saw whether it happened
            ]
            if not is_linearizable(history):
                raise Violation(f"{row!r}: no order explains {history}")

    def _add(self, versions: dict[bytes, list[tuple[int, Any]]], tablet: Configuration, entry: Entry) -> None:
        for row, value in entry.rows:
            if tablet.range.contains(row):
                versions.setdefault(row, []).append((entry.txn, value))

    def txn_of(self, row: bytes, value: Any) -> int | None:
        """Return the txn of a value that was written to a row, if that is committed."""
        for truth in self.committed.values():
            for entry in truth.values():
                if (row, value) in entry.rows:
                    return entry.txn
        return None
