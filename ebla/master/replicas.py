"""Tablets with several replicas: who leads them, and who keeps them. Pure; one step for each tablet in a round.

    its leader's lease is over, or a later run of   led next by a replica that is in sync, alive, and has the log that
    the leader has begun; or the leader resigned    is on record: ChangeLeaders, one change for each table
    a chosen leader does not serve, or is stuck     asked to give up, if another could lead
    fewer replicas than wanted that may return      another server learns: AddReplica
    more in sync than wanted                        the leader is asked to take one out: only it may
    more replicas than wanted, enough in sync       one that is not in sync leaves: RemoveReplica
    one that left, and is deleted                   ForgetReplica

While a lease is valid its epochs end only by the leader's own resignation. No election is needed: whoever is in sync
has every committed entry. Txns of the next leader begin above the bound of the run before, read after its lease was
over.

Several masters may believe that they lead: every change names the configuration that it was decided on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebla.master.catalog import Catalog
from ebla.master.placement import Loads
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TabletInfo
from ebla.master.writes import ChangeTable
from ebla.metadata.values.changes import Change
from ebla.metadata.values.replicating import AddReplica, ChangeLeaders, ForgetReplica, NewLeader, RemoveReplica
from ebla.metadata.values.runs import run_name, start_of_run
from ebla.metadata.values.table_metadata import Replica, TabletMetadata

__all__ = ["Candidates", "ReplicaCare", "ReplicaPlan"]

# So often the time doubles that a chosen leader gets before another is tried.
_DOUBLINGS_MAX = 6


@dataclass(slots=True)
class ReplicaPlan:
    """What one round decided, by table, and what leaders are to be asked. Nothing has happened yet."""

    leaders: dict[str, list[NewLeader]] = field(default_factory=dict)
    steps: dict[str, list[Change]] = field(default_factory=dict)
    give_up: list[tuple[str, str]] = field(default_factory=list)  # leader, tablet
    take_out: list[tuple[str, str]] = field(default_factory=list)

    def changes(self) -> tuple[ChangeTable, ...]:
        """Return the write. Leaders are not to wait for what is refused of the rest: they are by themselves."""
        tables = [ChangeTable(table_id, (ChangeLeaders(tuple(new)),)) for table_id, new in self.leaders.items()]
        tables += [ChangeTable(table_id, tuple(steps)) for table_id, steps in self.steps.items()]
        return tuple(tables)


class Candidates:
    """Which replicas could lead, by what their servers have said."""

    def __init__(self, servers: Servers, loads: Loads) -> None:
        self._servers = servers
        self._loads = loads

    def is_alive(self, server: str) -> bool:
        """Whether a server was heard lately and has its lease."""
        return server in self._loads.hosts

    def has_log(self, replica: Replica) -> bool:
        """Whether the server of a replica has said that it has the log that is on record."""
        server = self._servers.get(replica.server)
        return server is not None and bool(replica.log_id) and server.registration.log_id == replica.log_id

    def of(self, tablet: TabletMetadata) -> list[Replica]:
        """Return the replicas that are in sync, alive, and have their logs."""
        return [one for one in tablet.in_sync if self.is_alive(one.server) and self.has_log(one)]

    def others(self, tablet: TabletMetadata) -> list[Replica]:
        """Return those that could lead in the place of who leads now."""
        return [one for one in self.of(tablet) if one.server != tablet.leader]

    def run_of(self, server: str) -> str:
        """Return the run that a server has registered last."""
        known = self._servers.get(server)
        assert known is not None
        return run_name(server, known.instance.seqno)


@dataclass(frozen=True, slots=True)
class _Unserved:
    """A leader that is not known to serve: its epoch, since when, and how many before it did not either."""

    epoch: int
    since_seconds: float
    tries: int


class ReplicaCare:
    """What one master remembers of replicated tablets, and decides by it."""

    def __init__(self, catalog: Catalog, servers: Servers, settings: MasterSettings, new_id: Callable[[], str]) -> None:
        self._catalog = catalog
        self._servers = servers
        self._settings = settings
        self._new_id = new_id
        self._unserved: dict[str, _Unserved] = {}
        self.give_up: dict[str, tuple[int, str | None]] = {}
        """Tablets whose leaders are asked to resign: at which epoch, and for whom."""
        self.take_out: dict[str, tuple[int, Replica]] = {}
        """Tablets whose leaders are asked to take a replica out of sync, at which epoch."""
        self.to_replicate: dict[str, int] = {}
        """Tables whose leaders are asked to want more replicas of tablets that have one: how many."""
        self.moving: dict[str, tuple[str, str]] = {}
        """Tablets that are to be on one server instead of another: from where, to where."""

    # --- what is to be known first ---

    def lost(self) -> dict[str, str]:
        """Return the tablets whose leader can lead no more at their epoch, and the run that it was."""
        found = {}
        for tablet_id in self._catalog.replicated:
            info = self._catalog.tablet(tablet_id)
            if info is not None and info.table.is_visible and info.tablet.is_served and self._is_lost(info.tablet):
                found[tablet_id] = info.tablet.log or ""
        return found

    def _is_lost(self, tablet: TabletMetadata) -> bool:
        if tablet.leader is None or tablet.log is None:
            return False
        server = self._servers.get(tablet.leader)
        is_later = server is not None and server.instance.seqno > start_of_run(tablet.log)
        return is_later or self._servers.orphans.get(tablet.id) == (tablet.leader, tablet.epoch)

    # --- decisions ---

    def plan(self, lost: Mapping[str, str], bounds: Mapping[str, int], loads: Loads, now: float) -> ReplicaPlan:
        """Decide on every replicated tablet; `bounds` has those of the runs in `lost`, read when these were over."""
        plan = ReplicaPlan()
        candidates = Candidates(self._servers, loads)
        for known in (self._unserved, self.give_up, self.take_out, self.moving):
            for tablet_id in [one for one in known if one not in self._catalog.replicated]:
                del known[tablet_id]
        for tablet_id in [*self._catalog.replicated]:
            info = self._catalog.tablet(tablet_id)
            if info is None or not info.table.is_visible or not info.tablet.is_served:
                continue
            tablet = info.tablet
            resigned = self._servers.resigned.get((tablet.id, tablet.epoch))
            if tablet_id in lost and self._is_lost(tablet) and tablet.log == lost[tablet_id]:
                self._change_leader(plan, info, bounds[lost[tablet_id]], None, candidates, loads, now)
            elif resigned is not None:
                self._change_leader(plan, info, resigned.bound, resigned.successor, candidates, loads, now)
            else:
                self._look_after(plan, info, candidates, loads, now)
        self._servers.forget_messages(self._is_current)
        return plan

    def ask_to_replicate(self) -> list[tuple[str, str]]:
        """Return the leaders that are to want more replicas of a tablet that has one, with the tablet."""
        asked = []
        for table_id in [*self.to_replicate]:
            info = self._catalog.tables.get(table_id)
            is_there = info is not None and info.is_visible
            alone = [one for one in info.metadata.tablets if not one.is_replicated] if info and is_there else []
            if not alone:
                del self.to_replicate[table_id]
            asked += [(one.leader, one.id) for one in alone if one.leader is not None and one.is_served]
        return asked

    def _is_current(self, tablet_id: str, epoch: int) -> bool:
        info = self._catalog.tablet(tablet_id)
        return info is not None and info.tablet.epoch <= epoch

    def _change_leader(
        self,
        plan: ReplicaPlan,
        info: TabletInfo,
        floor: int,
        successor: str | None,
        candidates: Candidates,
        loads: Loads,
        now: float,
    ) -> None:
        tablet = info.tablet
        could = candidates.of(tablet)
        if not could:
            return  # it is down, and waits for one of those that are in sync
        leader = min(
            could, key=lambda one: (one.server != successor, one.server == tablet.leader, loads.leaders[one.server])
        )
        remaining = [one for one in tablet.in_sync if one.server != tablet.leader and candidates.has_log(one)]
        is_old_out = len(remaining) >= tablet.needed and not candidates.is_alive(tablet.leader or "")
        loads.leaders[leader.server] += 1
        self._waited_for(tablet.id, tablet.epoch + 1, now)
        new = NewLeader(
            tablet.id, tablet.number, leader, candidates.run_of(leader.server), floor, is_old_out=is_old_out
        )
        plan.leaders.setdefault(info.table.id, []).append(new)

    def _look_after(
        self, plan: ReplicaPlan, info: TabletInfo, candidates: Candidates, loads: Loads, now: float
    ) -> None:
        tablet = info.tablet
        assert tablet.leader is not None
        is_serving = self._servers.runs(tablet.leader, tablet.id, tablet.epoch)
        if is_serving:
            self._unserved.pop(tablet.id, None)
        if self._should_give_up(tablet, is_serving, now) and candidates.others(tablet):
            self.ask_to_give_up(plan, tablet, None)
        if not is_serving or tablet.split is not None or tablet.join is not None:
            return
        step = self._next_step(plan, tablet, candidates, loads, now)
        if step is not None:
            plan.steps.setdefault(info.table.id, []).append(step)

    def is_settled(self, tablet: TabletMetadata) -> bool:
        """Whether a tablet has all that it wants, in sync, and nothing of it is under way."""
        is_full = len(tablet.in_sync) == len(tablet.replicas) == tablet.wanted and not tablet.leaving
        is_asked = self.give_up.get(tablet.id, (0, None))[0] == tablet.epoch
        return is_full and not is_asked and tablet.id not in self.moving

    def ask_to_give_up(self, plan: ReplicaPlan, tablet: TabletMetadata, successor: str | None) -> None:
        """Have the leader of a tablet asked to resign, for another."""
        assert tablet.leader is not None
        self.give_up[tablet.id] = (tablet.epoch, successor)
        plan.give_up.append((tablet.leader, tablet.id))

    def _should_give_up(self, tablet: TabletMetadata, is_serving: bool, now: float) -> bool:
        """Whether a leader is stuck, has failed, or has not begun to serve in its time."""
        if self._servers.failed.get(tablet.id) == tablet.leader or (tablet.id, tablet.epoch) in self._servers.stuck:
            return True
        if is_serving:
            return False
        known = self._waited_for(tablet.id, tablet.epoch, now)
        patience = self._settings.serve_timeout_seconds * 2.0 ** min(known.tries, _DOUBLINGS_MAX)
        return now - known.since_seconds > patience

    def _waited_for(self, tablet_id: str, epoch: int, now: float) -> _Unserved:
        """Return since when the leader of an epoch is waited for; those before it that never served count as tries."""
        known = self._unserved.get(tablet_id)
        if known is None or known.epoch != epoch:
            known = self._unserved[tablet_id] = _Unserved(epoch, now, 0 if known is None else known.tries + 1)
        return known

    # --- as many replicas as are wanted, where they should be ---

    def _next_step(
        self, plan: ReplicaPlan, tablet: TabletMetadata, candidates: Candidates, loads: Loads, now: float
    ) -> Change | None:
        for leaving in tablet.leaving:
            if self._servers.confirms_absence(leaving.server, tablet.id):
                return ForgetReplica(tablet.id, leaving)
        gone = {
            one.server
            for one in tablet.replicas
            if self._servers.is_dead(one.server, now, self._settings.replace_after_seconds)
        }
        if len(tablet.replicas) - len(gone) < tablet.wanted:
            return self._added(tablet, self._free(tablet, loads), loads)
        move = self.moving.get(tablet.id)
        if move is not None:
            step = self._moved(plan, tablet, move, candidates, loads)
            if step is not None:
                return step
        if len(tablet.in_sync) > tablet.wanted:
            self._take_out_one(plan, tablet, gone, loads)
        elif len(tablet.in_sync) == tablet.wanted:
            for one in tablet.replicas:
                if not one.is_in_sync and (one.server in gone or len(tablet.replicas) > tablet.wanted):
                    return RemoveReplica(tablet.id, tablet.number, Replica(*one.key))
        return None

    def _added(self, tablet: TabletMetadata, server: str | None, loads: Loads) -> AddReplica | None:
        if server is None:
            return None
        loads.replicas[server] += 1
        return AddReplica(tablet.id, tablet.number, Replica(server, self._new_id()))

    def _free(self, tablet: TabletMetadata, loads: Loads) -> str | None:
        """Return the live server with fewest replicas that has none of a tablet; on a host of its own, if any is."""
        there = {one.server for one in (*tablet.replicas, *tablet.leaving)}
        used = {loads.hosts[server] for server in there if server in loads.hosts}
        left = [server for server in loads.hosts if server not in there and self._keeps_replicas(server)]
        spread = [server for server in left if loads.hosts[server] not in used]
        return min(spread or left, key=lambda server: loads.replicas[server], default=None)

    def _keeps_replicas(self, server: str) -> bool:
        known = self._servers.get(server)
        return known is not None and bool(known.registration.log_id)

    def _moved(
        self, plan: ReplicaPlan, tablet: TabletMetadata, move: tuple[str, str], candidates: Candidates, loads: Loads
    ) -> AddReplica | None:
        """Take a step of a move: learn, be in sync, lead if the source did; the source goes as one too many."""
        source, target = move
        there = tablet.replica_on(target)
        if there is None:
            is_free = all(one.server != target for one in tablet.leaving) and candidates.is_alive(target)
            if is_free and tablet.replica_on(source) is not None:
                return self._added(tablet, target, loads)
            del self.moving[tablet.id]
        elif there.is_in_sync and tablet.leader == source:
            self.ask_to_give_up(plan, tablet, target)
        elif tablet.replica_on(source) is None or (there.is_in_sync and len(tablet.replicas) <= tablet.wanted):
            del self.moving[tablet.id]
        return None

    def _take_out_one(self, plan: ReplicaPlan, tablet: TabletMetadata, gone: set[str], loads: Loads) -> None:
        others = [one for one in tablet.in_sync if one.server != tablet.leader]
        move = self.moving.get(tablet.id)
        if not others or tablet.leader is None or (move is not None and move[0] == tablet.leader):
            return
        source = None if move is None else move[0]
        surplus = max(
            others,
            key=lambda one: (one.server == source, one.server in gone, loads.replicas.get(one.server, 1 << 30)),
        )
        self.take_out[tablet.id] = (tablet.epoch, Replica(*surplus.key))
        plan.take_out.append((tablet.leader, tablet.id))
