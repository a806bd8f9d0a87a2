"""The master's part: ends leases, chooses leaders from the in-sync set, replaces replicas. Events in, actions out.

    leases, METADATA, what servers report  -->  MasterPart  -->  TakeLease, ChangeMetadata, Send

- A lease is taken when it was not renewed for its time and a margin, on this master's own clock.
- A tablet whose leader's lease is over, or whose leader has resigned, gets the next epoch and a leader that is in sync,
  alive, and has the log that is on record. Its txns begin above the bound of the leader before, read after that
  lease was over, or told with the resignation.
- A server that is away for long gets successors as learners; what is too many goes, once enough are in sync.
- Learners are put in sync by the leader alone; a master only passes that on, if the learner is what the leader says.
- A replica that left is forgotten when its server says that it is deleted.

Several masters may believe that they lead: whatever they decide names the configuration that it was decided on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.actions import Action, Change, ChangeMetadata, Send, TakeLease
from ebla.replication.changes import AddReplica, ChangeInSync, ChangeLeader, ForgetReplica, RemoveReplica
from ebla.replication.configuration import Configuration, Table
from ebla.replication.lease import LeaseWatch, ServerNode
from ebla.replication.messages import Adopt, Deleted, GiveUp, Message, Resigned, Stuck, TakeOut
from ebla.replication.settings import ReplicationSettings

__all__ = ["MasterPart"]


class MasterPart:
    """What one master knows, and decides by it."""

    def __init__(
        self, settings: ReplicationSettings, *, new_id: Callable[[], str], is_log_shared: bool = False
    ) -> None:
        self.settings = settings
        self.watch = LeaseWatch(settings)
        self._new_id = new_id
        self._is_log_shared = is_log_shared
        self._resigned: dict[tuple[str, int], Resigned] = {}
        self._adoptions: dict[tuple[str, int], tuple[str, int, str]] = {}  # server, its run, assignment id
        self._stuck: dict[tuple[str, int], None] = {}
        self._deleted: dict[tuple[str, Replica], None] = {}

    # --- what happens ----------------------------------------------------------------------------

    def receive(self, sender: str, parts: Iterable[Message]) -> None:
        """Note what a server reports. It is decided on when METADATA and leases were read the next time."""
        for message in parts:
            if isinstance(message, Resigned):
                self._resigned[message.tablet, message.epoch] = message
            elif isinstance(message, Stuck):
                self._stuck[message.tablet, message.epoch] = None
            elif isinstance(message, Deleted):
                self._deleted[message.tablet, message.replica] = None

    def checked(self, change: ChangeInSync, nodes: dict[str, ServerNode]) -> ChangeInSync:
        """Return what is made of a leader's change: itself, or one without effect that names the same number.

        Who is put in sync must be alive, in the run and with the log in which it was caught up. A change that is merely
        refused would leave its leader waiting: nobody could tell that it does not come through later.
        """
        put = change.put
        if put is None:
            return change
        node = nodes.get(put.server)
        is_fit = node is not None and node.is_held and self._is_same_run(change, node) and self._has_log(put, node)
        return change if is_fit else ChangeInSync(change.tablet, change.epoch, change.number)

    def _is_same_run(self, change: ChangeInSync, node: ServerNode) -> bool:
        return node.start == change.put_start

    def _has_log(self, member: Replica, node: ServerNode) -> bool:
        return node.log_id == member.log_id

    def tick(self, now: float, nodes: dict[str, ServerNode], table: Table) -> list[Action]:
        """Decide, by leases and METADATA as they were read a moment ago."""
        watch = self.watch
        watch.see(nodes, now)
        actions: list[Action] = [
            TakeLease(server, node.number, node.version)
            for server, node in nodes.items()
            if watch.has_run_out(server, now)
        ]
        changes: list[Change] = []
        for tablet in table.tablets.values():
            changes += self._decide(tablet, now, actions)
        for name, replica in self._deleted:
            if name in table.tablets and replica in table.tablets[name].leaving:
                changes.append(ForgetReplica(name, replica))
        if changes:
            actions.append(ChangeMetadata(tuple(changes)))
        return actions

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, tablet: Configuration, now: float, actions: list[Action]) -> list[Change]:
        key = (tablet.tablet, tablet.epoch)
        resigned = self._resigned.get(key)
        if self._is_over(tablet, now):
            floor = self.watch.nodes[tablet.leader].bound
            change = self._next_leader(tablet, floor, None, now)
            if change is None and self._is_log_shared and len(tablet.in_sync) == 1:
                self._adopt(tablet, floor, now, actions)
            return [change] if change is not None else []
        if resigned is not None:
            change = self._next_leader(tablet, resigned.bound, resigned.successor, now)
            return [change] if change is not None else []
        if key in self._stuck:
            del self._stuck[key]
            if any(self._can_lead(member, now) for member in tablet.in_sync if member.server != tablet.leader):
                actions.append(Send(tablet.leader, (GiveUp(tablet.tablet, tablet.epoch),)))
        self._take_out_surplus(tablet, now, actions)
        return self._replace(tablet, now)

    def _is_over(self, tablet: Configuration, now: float) -> bool:
        return self.watch.is_over(tablet.leader, tablet.lease)

    def _can_lead(self, member: Replica, now: float) -> bool:
        node = self.watch.nodes.get(member.server)
        return node is not None and self.watch.is_alive(member.server, now) and self._has_log(member, node)

    def _next_leader(self, tablet: Configuration, floor: int, successor: str | None, now: float) -> ChangeLeader | None:
        """Return the change that gives a tablet its next leader; None if no replica that is in sync is there."""
        candidates = [member for member in self._candidates(tablet) if self._can_lead(member, now)]
        if not candidates:
            return None
        chosen = min(
            candidates,
            key=lambda one: (one.server != successor, one.server == tablet.leader, one.server),
        )
        others = [one for one in tablet.in_sync if one.server != tablet.leader]
        remaining = [one for one in others if self._has_log(one, self.watch.nodes.get(one.server, ServerNode()))]
        return ChangeLeader(
            tablet.tablet,
            tablet.number,
            chosen,
            self.watch.nodes[chosen.server].number,
            floor,
            is_old_out=len(remaining) >= tablet.needed and not self.watch.is_alive(tablet.leader, now),
        )

    def _candidates(self, tablet: Configuration) -> tuple[Replica, ...]:
        return tablet.in_sync

    def _adopt(self, tablet: Configuration, floor: int, now: float, actions: list[Action]) -> None:
        """Have another server take a tablet over from the shared root; the same one is asked until METADATA moves."""
        key = (tablet.tablet, tablet.number)
        chosen = self._adoptions.get(key)
        nodes = self.watch.nodes
        if chosen is None or not self.watch.is_alive(chosen[0], now) or nodes[chosen[0]].start != chosen[1]:
            others = [one for one in sorted(nodes) if one != tablet.leader]
            alive = [one for one in others if self.watch.is_alive(one, now)]
            if not alive:
                return
            chosen = self._adoptions[key] = (alive[0], nodes[alive[0]].start, self._new_id())
        actions.append(Send(chosen[0], (Adopt(tablet.tablet, tablet.number, chosen[2], floor),)))

    def _take_out_surplus(self, tablet: Configuration, now: float, actions: list[Action]) -> None:
        """Ask the leader to take a replica out of sync if there are too many: only it may."""
        others = [one for one in tablet.in_sync if one.server != tablet.leader]
        if len(tablet.in_sync) > tablet.wanted and others:
            surplus = min(others, key=lambda one: (self.watch.is_alive(one.server, now), one.server))
            replica = Replica(surplus.server, surplus.assignment_id)
            actions.append(Send(tablet.leader, (TakeOut(tablet.tablet, tablet.epoch, replica),)))

    def _replace(self, tablet: Configuration, now: float) -> list[Change]:
        """Return one step towards as many replicas as are wanted, on servers that are there."""
        if tablet.plan is not None:
            return []
        watch, members = self.watch, tablet.replicas
        gone = [one for one in members if watch.away_seconds(one.server, now) > self.settings.replace_seconds]
        if len(members) - len(gone) < tablet.wanted:
            there = {member.server for member in members} | {replica.server for replica in tablet.leaving}
            free = [one for one in sorted(watch.nodes) if one not in there and watch.is_alive(one, now)]
            if free:
                replica = Replica(free[0], self._new_id())
                return [AddReplica(tablet.tablet, tablet.number, replica)]
        if len(tablet.in_sync) >= tablet.wanted:
            for member in (*gone, *members):
                if not member.is_in_sync and (member in gone or len(members) > tablet.wanted):
                    replica = Replica(member.server, member.assignment_id)
                    return [RemoveReplica(tablet.tablet, tablet.number, replica)]
        return []
