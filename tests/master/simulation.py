"""Masters, tablet servers, a network and a durable side, all driven from one seed.

    python -m tests.master.simulation 4711          one schedule again, with what happened
    python -m tests.master.simulation 0 100000      any number of them

In a schedule everything may happen at any moment: servers and masters die and return, leases run out while their
holders do not know it, messages are lost, late, doubled and reordered, writes have unknown outcomes. Then the faults
stop.

Checked all the time: METADATA keeps its invariants after every transaction; no tablet has two leaders in one epoch; no
server is made to delete a replica that METADATA assigns to it; a table is purged only after it was deleted and its
retention is over; what was acknowledged to a client is durable. Checked at the end: everything converges: every tablet
of every table runs on the servers that METADATA names, nobody has anything else, nothing is left to be done.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from random import Random
from typing import Any

from ebla.errors import EblaError, OutcomeUnknown
from ebla.master.master import Master
from ebla.master.messages import CreateTablet, Heartbeat, HeartbeatReply
from ebla.master.settings import MasterSettings
from ebla.master.writes import ChangeTable, ChangeTables, Operation, PurgeTable, ReadBounds, ReadTables, Write
from ebla.metadata.values.changes import Change
from ebla.metadata.values.handing_over import Offer, OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.recutting import BeginSplit, FinishSplit
from ebla.metadata.values.replicating import ChangeInSync
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import LogEnd, Replica, TabletMetadata
from ebla.model.declaration import Group, Schema
from ebla.model.schema_change import Alteration
from tests.master.memory_durable import MemoryDurable
from tests.master.simulated_server import SimulatedReplica, SimulatedServer

CLUSTER = "c1"
SCHEMA = Schema(key={"user": "binary"}, groups=[Group("g", columns={"n": "int32"})]).number()
FOREIGN = CreateTablet("foreign", "foreign-table", "foreign-assignment", b"", None, SCHEMA, 1, "nobody", ())
LEASE_SECONDS = 3.0
NAMES = ("a", "b", "c")


class Broken(AssertionError):
    """Something that must never be was seen."""


class SimulatedClock:
    """Time, without locks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def microseconds(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic_seconds(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class _Running:
    """An operation under way, and the write it waits for."""

    __slots__ = ("answer", "done", "failed", "master", "operation", "write")

    def __init__(
        self, master: Master, operation: Operation[Any], done: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        self.master = master
        self.operation = operation
        self.done = done
        self.failed = failed
        self.write: Write | None = None
        self.answer: Any = None


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, is_told: bool = False) -> None:
        self.random = Random(seed)
        self.clock = SimulatedClock()
        self.durable = MemoryDurable()
        self.is_told = is_told
        choice = self.random.random()
        self.replication = 3 if choice < 0.2 else 1
        count = 4 if self.replication == 3 else self.random.randint(2, 3)
        self.settings = MasterSettings(
            replication=self.replication,
            assignment_timeout_seconds=4.0,
            silent_after_seconds=4.0,
            replace_after_seconds=4.0,
            retention_seconds=self.random.choice((0.0, 3.0, 8.0)),
            retry_seconds_min=0.5,
            retry_seconds_max=2.0,
            moves_max=3,
            is_log_shared=self.random.random() < 0.5,
        )
        self.is_single = self.replication == 1
        self.was_wiped = False
        self.down_since: dict[str, float] = {}
        self.leads: dict[tuple[str, int], str] = {}
        self.servers = {
            f"s{number}": SimulatedServer(f"s{number}", f"h{number % 3}", CLUSTER, self._lead, self._deleted, self)
            for number in range(count)
        }
        self.has_foreign = self.random.random() < 0.5  # a tablet that nobody knows: a mistake of people, or ours
        if self.has_foreign:
            self.servers["s0"]._take(FOREIGN)
        self.stranger: SimulatedServer | None = None
        if self.random.random() < 0.3:  # a server of another cluster, which asks the wrong master
            self.stranger = SimulatedServer("s0", "h9", "another", self._lead, self._deleted, self)
        self.term = 0
        self.lease_until = 0.0
        self.masters: list[Master] = []  # the last one has the lease; others may not know yet that they have lost it
        self.network: list[tuple[str, str, Any]] = []  # kind, server, message
        self.running: list[_Running] = []
        self.changed: dict[int, dict[str, None]] = {}  # by term: tables that its master is yet to be told of
        self.acknowledged: dict[str, None] = {}  # tables
        self.condemned: dict[str, None] = {}  # tables whose deletion was asked for
        self._ids = itertools.count(1)
        self._faults = True

    def run(self, steps: int = 160) -> None:
        """Let things happen, then stop the faults, and see whether everything comes to rest."""
        actions = (
            (self._deliver, 30),
            (self._progress, 34),
            (self._notice, 10),
            (self._beat, 22),
            (self._send, 12),
            (self._round, 10),
            (self._ask, 7),
            (self._pass, 14),
            (self._lease, 8),
            (self._hurt_server, 3),
            (self._hurt_master, 1),
            (self._split, 3),
            (self._fence, 4),
        )
        names = [action for action, _ in actions]
        weights = list(itertools.accumulate(weight for _, weight in actions))
        self._elect()
        self._begin()
        for action in self.random.choices(names, cum_weights=weights, k=steps):
            action()
        self._converge()

    def _begin(self) -> None:
        """Have a table or two, in service or just made, before the trouble starts."""
        self._faults = False
        for name in NAMES[: self.random.randint(0, 2)]:
            self._created(self._finish(self.masters[-1].create_table(name, SCHEMA, self._splits())))
        for _ in range(self.random.choice((0, 2, 4, 9))):
            self._quiet_turn()
            self.clock.seconds += 0.5
        self._faults = True

    def tell(self, text: str) -> None:
        if self.is_told:
            print(f"{self.clock.seconds:7.2f}  {text}")

    # --- masters ---------------------------------------------------------------------------------

    def _elect(self) -> None:
        """A master takes the lease and loads what is durable."""
        self.term += 1
        self.lease_until = self.clock.seconds + LEASE_SECONDS
        master = Master(
            CLUSTER,
            self.term,
            self.durable.load(),
            self.clock,
            new_id=lambda: f"i{next(self._ids)}",
            random=self.random,
            settings=self.settings,
        )
        self.masters = [*self.masters, master][-2:]
        self.tell(f"term {self.term} begins")

    def _lease(self) -> None:
        if self.clock.seconds > self.lease_until or self.masters[-1].stopped is not None or self.random.random() < 0.1:
            self._elect()
        else:
            self.lease_until = self.clock.seconds + LEASE_SECONDS

    def _hurt_master(self) -> None:
        """A master dies: its operations are never resumed, and what it was writing has landed or never will."""
        master = self.random.choice(self.masters)
        for running in [one for one in self.running if one.master is master]:
            if running.write is not None and running.answer is None and self.random.random() < 0.5:
                self._write(running.write)
            self.running.remove(running)
        master.stop("killed")
        self.tell(f"the master of term {master.term} dies")

    def _round(self) -> None:
        master = self._some_master()
        self._start(master, master.round())

    def _some_master(self) -> Master:
        """Mostly the one with the lease; now and then the one that has lost it and does not know."""
        return self.masters[-1] if self.random.random() < 0.85 else self.masters[0]

    def _send(self) -> None:
        for requests in self._some_master().requests():
            self.network.append(("requests", requests.server, requests))

    # --- operations ------------------------------------------------------------------------------

    def _start(
        self,
        master: Master,
        operation: Operation[Any],
        done: Callable[[Any], None] = lambda result: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        running = _Running(master, operation, done, failed)
        self._resume(running, lambda: next(operation))

    def _resume(self, running: _Running, step: Callable[[], Write]) -> None:
        try:
            running.write = step()
            running.answer = None
            if running not in self.running:
                self.running.append(running)
        except StopIteration as end:
            self._end(running)
            running.done(end.value)
        except EblaError as error:
            self.tell(f"refused: {error}")
            self._end(running)
            running.failed()

    def _end(self, running: _Running) -> None:
        if running in self.running:
            self.running.remove(running)

    def _progress(self) -> None:
        """Carry out a write, or bring its outcome back, or both."""
        if self.running:
            self._advance(self.random.choice(self.running))

    def _advance(self, running: _Running) -> None:
        operation = running.operation
        if running.answer is None:
            assert running.write is not None
            if self._faults and self.random.random() < 0.02:
                if self.random.random() < 0.5:
                    self._write(running.write)
                self._resume(running, lambda: operation.throw(OutcomeUnknown("the reply was lost")))
                return
            running.answer = self._write(running.write)
            if self._faults and self.random.random() < 0.3:
                return  # the outcome is on its way
        answer = running.answer
        if isinstance(answer, EblaError):
            self._resume(running, lambda: operation.throw(answer))
        else:
            self._resume(running, lambda: operation.send(answer))

    def _write(self, write: Write) -> Any:
        if isinstance(write, PurgeTable):
            self._check_purge(write.table_id)
        try:
            answer = self.durable.write(write)
        except EblaError as error:
            return error
        if isinstance(write, ReadTables | ReadBounds):
            return answer
        for table_id in [one.table_id for one in write.tables] if isinstance(write, ChangeTables) else [write.table_id]:
            if self.durable.configs[table_id].metadata_txnid:
                self.durable.current(table_id).check()
            for master in self.masters:
                self.changed.setdefault(master.term, {})[table_id] = None
        self.tell(f"written: {type(write).__name__} {getattr(write, 'table_id', '')}")
        return answer

    def _notice(self) -> None:
        """Tell a master, late, which tables were changed, by whomever."""
        master = self._some_master()
        changed = [*self.changed.pop(master.term, ())]
        if changed:
            self._start(master, master.refresh(changed))

    # --- clients ---------------------------------------------------------------------------------

    def _ask(self) -> None:
        master = self._some_master()
        there = [*master.catalog.names] or NAMES
        name, other = self.random.choice(there), self.random.choice(NAMES)
        if self.random.random() < 0.3:
            name = self.random.choice(NAMES)
        kind = self.random.choice(("create", "create", "rename", "delete", "undelete", "alter"))
        self.tell(f"asked in term {master.term}: {kind} {name} {other}")
        match kind:
            case "create":
                self._start(master, master.create_table(other, SCHEMA, self._splits()), self._created)
            case "alter":
                column = f"n{next(self._ids)}"
                self._start(
                    master,
                    master.alter_table(name, Alteration(add_columns={column: "int32"})),
                    lambda info: self._check_altered(info.id, column),
                )
            case "rename":
                self._start(
                    master, master.rename_table(name, other), lambda info: self._check_was(info.id, other, "running")
                )
            case "delete":
                info = master.catalog.names.get(name)
                if info is not None:
                    self.condemned[info.id] = None
                self._start(master, master.delete_table(name), lambda info: self._check_was(info.id, None, "deleted"))
            case "undelete":
                self._start(master, master.undelete_table(name), lambda info: self._check_was(info.id, name, "running"))

    def _splits(self) -> list[bytes]:
        return [bytes((97 + number,)) for number in range(self.random.randint(0, 3))]

    def _created(self, info: Any) -> None:
        self.acknowledged[info.id] = None
        self._check_there(info.id)

    def _check_altered(self, table_id: str, column: str) -> None:
        config = self.durable.configs[table_id]
        if not config.metadata_txnid:
            return
        columns = [one.name for group in self.durable.current(table_id).schema.groups for one in group.columns]
        if column not in columns:
            raise Broken(f"table {table_id} was said to have the column {column}, and does not")

    def _check_was(self, table_id: str, name: str | None, state: str) -> None:
        if not any(
            one == table_id and (name or called) == called and was == state for one, called, was in self.durable.history
        ):
            raise Broken(f"table {table_id} was said to be {state} as {name}, and never was")

    # --- servers and network ---------------------------------------------------------------------

    def _beat(self) -> None:
        server = self.random.choice([*self.servers.values()])
        if self.stranger is not None and self.random.random() < 0.1:
            self._start(self.masters[-1], self.masters[-1].heartbeat(self.stranger.heartbeat()), self._strange)
        if server.is_up:
            self.network.append(("heartbeat", server.uuid, server.heartbeat()))

    def _strange(self, reply: HeartbeatReply) -> None:
        if reply.refusal is None or reply.refusal.code != "wrong_cluster":
            raise Broken("a server of another cluster was taken for one of this")

    def _deliver(self) -> None:
        if not self.network:
            return
        at = self.random.randrange(len(self.network))
        fate = self.random.random()
        message = self.network[at]
        if fate < 0.8:
            del self.network[at]
        if fate >= 0.15:  # else lost; from 0.8 on it comes again
            self._arrive(*message)

    def _arrive(self, kind: str, uuid: str, message: Any) -> None:
        server = self.servers[uuid]
        if kind == "heartbeat":
            master = self._some_master() if self._faults else self.masters[-1]
            self._start(master, master.heartbeat(message), lambda reply: self._reply(uuid, message, reply))
        elif server.is_up and kind == "requests":
            server.take_requests(message)
        elif server.is_up:
            server.take_reply(*message)

    def _reply(self, uuid: str, heartbeat: Heartbeat, reply: HeartbeatReply) -> None:
        self.network.append(("reply", uuid, (heartbeat, reply)))

    def _split(self) -> None:
        """A server that leads a tablet splits it, without asking the master."""
        server = self.random.choice([*self.servers.values()])
        if not server.is_up or self.replication > 1:
            return
        for replica in server.replicas.values():
            config = self.durable.configs.get(replica.table)
            if config is None or config.state != "running":
                continue
            tablet = self.durable.current(replica.table).by_id(replica.tablet)
            if (
                tablet is None
                or tablet.state != "running"
                or (tablet.epoch, tablet.leader)
                != (
                    replica.epoch,
                    server.uuid,
                )
            ):
                continue
            row = tablet.first + b"m"
            if not tablet.range.contains(row) or tablet.replicas[0].assignment_id != replica.assignment_id:
                continue
            at = TabletAt(tablet.id, tablet.epoch)
            children = (f"i{next(self._ids)}", f"i{next(self._ids)}")
            changes = (BeginSplit(at, row, children), FinishSplit(at, 1, 0))
            (answer,) = self._write(ChangeTables((ChangeTable(replica.table, changes),)))
            if not isinstance(answer, EblaError):
                server.split(tablet.id, children)
                self.tell(f"{server.uuid} splits {tablet.id} into {children}")
            return

    def _hurt_server(self) -> None:
        server = self.random.choice([*self.servers.values()])
        if not server.is_up:
            can_be_wiped = not self.is_single and not self.was_wiped and server.uuid != "s0"  # it has the foreign one
            if can_be_wiped and self.random.random() < 0.3:
                self.was_wiped = True  # one loss: two of them may be all that were in sync
                server.wipe()
                self.tell(f"{server.uuid} has lost its disk")
            server.start()
            self.down_since.pop(server.uuid, None)
            self.tell(f"{server.uuid} is started")
        elif self.random.random() < 0.3:
            server.is_failing = not server.is_failing
        else:
            server.crash()
            self.down_since[server.uuid] = self.clock.seconds
            self.tell(f"{server.uuid} dies")

    def _fence(self) -> None:
        """The leases of servers that are down run out; now and then one that is up was stopped for too long."""
        master = self.masters[-1]
        for uuid, since in self.down_since.items():
            if self.clock.seconds - since > LEASE_SECONDS:
                master.lease_over(uuid)
        if self._faults and self.random.random() < 0.1:
            server = self.random.choice([*self.servers.values()])
            if server.is_up and not self.is_single:
                self.tell(f"{server.uuid} has lost its lease, and begins another run")
                server.start()
                master.lease_over(server.uuid)
            elif server.is_up:
                self.tell(f"{server.uuid} has lost its lease")
                server.lose_lease()
                master.lease_over(server.uuid)

    # --- servers change METADATA -----------------------------------------------------------------

    def take_over(self, server: str, request: CreateTablet) -> int | None:
        tablet = self._tablet(request.table, request.tablet)
        if tablet is None:
            return None
        end = None if tablet.log is None else LogEnd(tablet.log, "1", 0)
        take = TakeOver(TabletAt(tablet.id, request.epoch), server, request.assignment_id, server, end)
        return request.epoch + 1 if self._changed(request.table, take) else None

    def take_own_again(self, server: str, replica: SimulatedReplica) -> int | None:
        tablet = self._tablet(replica.table, replica.tablet)
        if tablet is None or (tablet.leader, tablet.epoch) != (server, replica.epoch):
            return None
        if not tablet.is_served:
            return replica.epoch  # nothing was ever written to it
        end = None if tablet.log is None else LogEnd(tablet.log, "1", 0)
        vacate = VacateTablets((TabletAt(tablet.id, tablet.epoch),), server)
        offer = OfferTablets((Offer(tablet.id, tablet.epoch + 1, None),))  # whoever it was offered to
        take = TakeOver(TabletAt(tablet.id, tablet.epoch + 1), server, replica.assignment_id, server, end)
        return tablet.epoch + 2 if self._changed(replica.table, vacate, offer, take) else None

    def resign(self, server: str, replica: SimulatedReplica) -> bool:
        at = TabletAt(replica.tablet, replica.epoch)
        return self._changed(replica.table, VacateTablets((at,), server, is_flushed=True))

    def tablet_of(self, replica: SimulatedReplica) -> TabletMetadata | None:
        return self._tablet(replica.table, replica.tablet)

    def keep_in_sync(self, server: SimulatedServer, replica: SimulatedReplica, out: Replica | None) -> None:
        """Put a replica in sync that has learned, as the log that it has; take out who is down, or is to go."""
        tablet = self.tablet_of(replica)
        if tablet is None or (tablet.log, tablet.epoch) != (server.run, replica.epoch):
            return
        put = None
        for one in tablet.replicas:
            other = self.servers[one.server]
            has_it = other.is_up and tablet.id in other.replicas
            if has_it and other.replicas[tablet.id].assignment_id == one.assignment_id:
                if (one.log_id != other.log_id or not one.is_in_sync) and (out is None or out.key != one.key):
                    put = Replica(*one.key, other.log_id)
            elif one.is_in_sync and not has_it:
                out = out or one
        if (put is not None and self.random.random() < 0.5) or out is not None:
            self._changed(replica.table, ChangeInSync(tablet.id, tablet.epoch, tablet.number, put, 0, out))

    def _tablet(self, table_id: str, tablet_id: str) -> TabletMetadata | None:
        config = self.durable.configs.get(table_id)
        return None if config is None or config.state != "running" else self.durable.current(table_id).by_id(tablet_id)

    def _changed(self, table_id: str, *changes: Change) -> bool:
        (answer,) = self._write(ChangeTables((ChangeTable(table_id, changes),)))
        return not isinstance(answer, EblaError)

    def _pass(self) -> None:
        self.clock.seconds += self.random.choice((0.1, 0.5, 1.0, 2.5))

    # --- what must always hold -------------------------------------------------------------------

    def _lead(self, tablet: str, server: str, epoch: int) -> None:
        other = self.leads.setdefault((tablet, epoch), server)
        if other != server:
            raise Broken(f"tablet {tablet} is led by {other} and by {server} in epoch {epoch}")

    def _deleted(self, server: str, replica: SimulatedReplica) -> None:
        self.tell(f"{server} deletes {replica.tablet} ({replica.assignment_id})")
        config = self.durable.configs.get(replica.table)
        if config is None:
            raise Broken(f"{server} was made to delete {replica.tablet}, which nobody knows")
        if not config.metadata_txnid:
            return
        if config.state == "deleted" and not self._is_retained(config.deleted_microseconds):
            return
        tablet = self.durable.current(replica.table).by_id(replica.tablet)
        if tablet is not None and any(one.assignment_id == replica.assignment_id for one in tablet.replicas):
            raise Broken(f"{server} was made to delete {replica.tablet}, which it is to have")
        if tablet is None or not tablet.is_served:
            return
        held = {
            uuid: one.replicas[tablet.id].assignment_id
            for uuid, one in self.servers.items()
            if tablet.id in one.replicas
        }
        if not any(held.get(one.server) == one.assignment_id for one in tablet.replicas):
            raise Broken(f"{server} was made to delete {replica.tablet}, which nobody else has")

    def _is_retained(self, deleted_microseconds: int) -> bool:
        return self.clock.microseconds() < deleted_microseconds + self.settings.retention_seconds * 1_000_000

    def _check_purge(self, table_id: str) -> None:
        config = self.durable.configs[table_id]
        if config.state != "deleted" or not config.metadata_txnid:
            return  # refused, or done already
        if self._is_retained(config.deleted_microseconds):
            raise Broken(f"table {table_id} is purged while it can be brought back")

    def _check_there(self, table_id: str) -> None:
        config = self.durable.configs.get(table_id)
        if config is None or (config.state != "running" and table_id not in self.condemned):
            raise Broken(f"table {table_id} was acknowledged and is not there")
        if config.state == "running" and self.durable.names.get(config.name) != table_id:
            raise Broken(f"table {table_id} does not have its name")

    # --- the end ---------------------------------------------------------------------------------

    def _converge(self) -> None:
        self._faults = False
        self.network.clear()
        master = self.masters[-1]
        if master.stopped is None:
            for running in [one for one in self.running if one.master is master]:
                while running in self.running:
                    self._advance(running)
        self.running.clear()
        can_do_without = not self.was_wiped if self.replication == 3 else self.settings.is_log_shared
        dead = self.random.choice([*self.servers]) if can_do_without and self.random.random() < 0.3 else None
        for server in self.servers.values():
            server.is_failing = False
            if server.uuid == dead:
                server.crash()
                self.down_since.setdefault(server.uuid, self.clock.seconds)
            elif not server.is_up:
                server.start()
                del self.down_since[server.uuid]
        self.tell(f"the faults stop; {dead or 'nobody'} stays dead")
        if master.stopped is not None or self.random.random() < 0.5:
            self._elect()
        problem = "nothing was tried"
        for turn in range(400):
            self.clock.seconds += 0.5 if turn < 40 else 1.0
            self._quiet_turn()
            found = self._unsettled(dead)
            if found is None:
                break
            problem = found
        else:
            raise Broken(f"it does not come to rest: {problem}")
        for table_id in self.acknowledged:
            self._check_there(table_id)
        if self.has_foreign and "foreign" not in self.servers["s0"].replicas:
            raise Broken("a tablet that nobody knows was deleted")

    def _quiet_turn(self) -> None:
        master = self.masters[-1]
        self._fence()
        if master.term in self.changed:
            self._finish(master.refresh([*self.changed.pop(master.term)]))
        self._finish(master.round())
        for requests in master.requests():
            if self.servers[requests.server].is_up:
                self.servers[requests.server].take_requests(requests)
        for server in self.servers.values():
            if server.is_up:
                heartbeat = server.heartbeat()
                server.take_reply(heartbeat, self._finish(master.heartbeat(heartbeat)))

    def _finish(self, operation: Operation[Any]) -> Any:
        result: list[Any] = []
        running = _Running(self.masters[-1], operation, result.append, lambda: None)
        self._resume(running, lambda: next(operation))
        while running in self.running:
            self._advance(running)
        return result[0]

    def _unsettled(self, dead: str | None) -> str | None:
        """Return what is not yet as it should be."""
        expected: dict[str, dict[str, tuple[str, int, str, int]]] = {uuid: {} for uuid in self.servers}
        for table_id, config in self.durable.configs.items():
            if config.state == "deleted":
                if config.metadata_txnid and not self._waits_for(table_id, dead):
                    return f"table {table_id} is not purged"
                continue
            metadata = self.durable.current(table_id)
            for tablet in metadata.tablets:
                if tablet.state != "running":
                    return f"tablet {tablet.id} is {tablet.state}"
                if tablet.leader is None or tablet.target is not None:
                    return f"tablet {tablet.id} is led by {tablet.leader} and offered to {tablet.target}"
                for replica in tablet.replicas:
                    if replica.server == dead:
                        return f"tablet {tablet.id} is on {dead}, which is dead"
                    wanted = (replica.assignment_id, tablet.epoch, tablet.leader or "", metadata.schema.version)
                    expected[replica.server][tablet.id] = wanted
            for one in metadata.replaced:
                if one.servers and dead not in one.servers:
                    return f"tablet {one.tablet}, which was replaced, is not forgotten"
        for server in self.servers.values():
            found = {
                replica.tablet: (replica.assignment_id, replica.epoch, replica.leader, replica.version)
                for replica in server.replicas.values()
                if replica.tablet != "foreign"
            }
            if server.uuid != dead and found != expected[server.uuid]:
                return f"{server.uuid} has {found}, and should have {expected[server.uuid]}"
            if any(replica.state != "running" for replica in server.replicas.values() if server.uuid != dead):
                return f"something on {server.uuid} is stopped"
        master = self.masters[-1]
        if any(master.tasks.of(uuid) for uuid in self.servers if uuid != dead):
            return "there are tasks left"
        return None

    def _waits_for(self, table_id: str, dead: str | None) -> bool:
        metadata = self.durable.current(table_id)
        return any(
            dead in servers
            for servers in (
                *([replica.server for replica in tablet.replicas] for tablet in metadata.tablets),
                *(one.servers for one in metadata.replaced),
            )
        )


def run(seed: int, is_told: bool = False) -> None:
    """Run one schedule; what it finds says how to see it again."""
    try:
        Simulation(seed, is_told).run()
    except Exception as error:
        raise Broken(f"seed {seed}: {error!r}: see it with python -m tests.master.simulation {seed}") from error


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for number in range(first, first + count):
        run(number, is_told=count == 1)
