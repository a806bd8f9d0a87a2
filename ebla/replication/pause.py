"""What a leader does to the log of its tablet: flush it to files; stop writes for a moment, to split or to alter.

    flush    window of replies into the log --> committed --> file of what is before it --> METADATA: flushed
    pause    writes are refused --> all committed and flushed --> split: children have the window --> METADATA: finish
                                                              `--> alter: METADATA: written under the new version

Only committed entries are flushed. The replies to them go once more into the log behind, before the flushed point
passes them: the tail of the log always holds the whole window.

**The pause ends only when the outcome is known**: METADATA shows another configuration number than the one that the
finish named. A split that takes too long is cancelled by a change that names the same number: one of the two is durable
first, and makes the other impossible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.replication.actions import MakeFile
from ebla.replication.changes import Flush
from ebla.replication.configuration import Plan, Position, Replica
from ebla.replication.messages import ChildReady, ChildStart, Entry
from ebla.replication.recut_changes import BeginSplit, CancelSplit, FinishSplit, ReachSchema

if TYPE_CHECKING:
    from ebla.replication.leader import Leader

__all__ = ["Pause"]


class Pause:
    """A flush under way, and the reason for which writes are stopped, if any."""

    __slots__ = (
        "_asked_number",
        "_change",
        "_closed_at",
        "_file",
        "_flush_window",
        "_leader",
        "_plan",
        "_ready",
        "_version",
        "_window_entry",
    )

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        # A flush: the window is logged (its index), the file is being made, METADATA is asked.
        self._flush_window: int | None = None
        self._file: tuple[Position, Position] | None = None
        self._change: Flush | None = None
        # A pause: for a split as planned, or for a schema.
        self._plan: Plan | None = None
        self._version = 0
        self._closed_at = 0.0
        self._ready: dict[tuple[str, str], Replica] = {}
        self._window_entry: Entry | None = None
        self._asked_number: int | None = None

    @property
    def is_closed(self) -> bool:
        """Whether writes are refused."""
        return self._plan is not None or self._version > 0

    @property
    def is_asking(self) -> bool:
        """Whether a finish was asked for, and nobody knows yet what became of it."""
        return self._asked_number is not None

    # --- flush -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Begin to bring what is committed into a file."""
        leader = self._leader
        if leader.is_serving and not self._is_flushing and self._has_writes():
            self._flush_window = leader.append_window()
            leader.advance()

    @property
    def _is_flushing(self) -> bool:
        return self._flush_window is not None or self._file is not None or self._change is not None

    def _has_writes(self) -> bool:
        return any(entry.kind == "write" for entry in self._leader.log.entries)

    def _step_flush(self) -> None:
        leader = self._leader
        log = leader.log
        if self._flush_window is not None and self._may_flush(self._flush_window):
            upto = self._flush_window - 1
            epoch = log.epoch_at(upto)
            if epoch is None or upto <= log.base.index:  # flushed by then
                self._flush_window = None
                return
            self._flush_window = None
            self._file = (log.base, Position(epoch, upto))
            replica = leader.replica
            leader.host.act(MakeFile(replica.tablet, replica.assignment_id, leader.epoch, *self._file))

    def _may_flush(self, window: int) -> bool:
        return window <= self._leader.replica.commit

    def file_made(self, epoch: int, upto: Position, name: str) -> None:
        """A file is on disk: METADATA is asked to count it."""
        leader = self._leader
        if self._file is not None and epoch == leader.epoch and self._file[1] == upto:
            base, upto = self._file
            self._file = None
            self._change = Flush(leader.replica.tablet, leader.epoch, base, upto, name)
            self._ask_flush()

    def _ask_flush(self) -> None:
        """Ask only under the lease: without it, with one replica, what is committed here may be nobody's."""
        if self._change is not None and self._leader.has_lease():
            self._leader.host.change(self._change)

    # --- pause -----------------------------------------------------------------------------------

    def split(self, plan: Plan) -> None:
        """Save a plan; the pause begins when METADATA has it."""
        leader = self._leader
        configuration = leader.configuration
        if leader.is_serving and configuration.plan is None and not self.is_closed and not leader.reads.is_gated:
            leader.host.change(BeginSplit(leader.replica.tablet, leader.epoch, configuration.number, plan))

    def learn(self) -> None:
        """METADATA is newer: see what became of what was asked for."""
        leader = self._leader
        configuration = leader.configuration
        if self._change is not None and configuration.flushed != self._change.base:
            self._change = None
        if self._asked_number is not None and configuration.number > self._asked_number:
            self._asked_number = None
        if self._plan is not None and configuration.plan != self._plan and self._asked_number is None:
            self._open()
        if 0 < self._version <= configuration.schema_version:
            self._open()
        self._begin()

    def _open(self) -> None:
        self._plan = None
        self._version = 0
        self._ready = {}
        self._window_entry = None

    def _begin(self) -> None:
        """Stop writes if METADATA asks for it: a plan, or a newer schema. One reason at a time."""
        leader = self._leader
        if not leader.is_serving or self.is_closed or leader.reads.is_gated:
            return
        table = leader.host.table
        configuration = leader.configuration
        if configuration.plan is not None:
            self._plan = configuration.plan
        elif table is not None and table.schema_version > configuration.schema_version:
            self._version = table.schema_version
        else:
            return
        self._closed_at = leader.host.now

    def step(self) -> None:
        """Go on, as far as what was waited for is there."""
        self._begin()
        self._step_flush()
        if not self.is_closed or self._is_flushing or self._asked_number is not None:
            return
        if not self._is_drained():
            return
        leader = self._leader
        if leader.membership.pending is not None:
            return  # it names the same number
        if self._plan is not None:
            self._start_children()
            if self._are_children_ready():
                self._finish()
        else:
            self._finish()

    def _is_drained(self) -> bool:
        """Tell whether all is committed, and nothing but the window is left in the log; see to it if not."""
        leader = self._leader
        log = leader.log
        if leader.replica.commit < log.last_index:
            return False
        if self._has_writes():
            self._flush_window = leader.append_window()
            return False
        return True

    # --- split -----------------------------------------------------------------------------------

    def _start_children(self) -> None:
        if self._window_entry is None:
            leader = self._leader
            txn = leader.host.txns.allocate(leader.host.wall)
            if txn is None:
                return
            replies = leader.replies
            self._window_entry = Entry(
                leader.epoch, 1, txn, "window", window=replies.all(), forgotten_txn=replies.forgotten_txn
            )
            self._send_children()

    def _send_children(self) -> None:
        plan, entry = self._plan, self._window_entry
        leader = self._leader
        if plan is None or entry is None:
            return
        for child, replicas in zip(plan.children, plan.replicas, strict=True):
            for one in replicas:
                if (child, one.server) not in self._ready:
                    message = ChildStart(leader.replica.tablet, leader.epoch, child, one.assignment_id, entry)
                    leader.host.send(one.server, message)

    def child_ready(self, sender: str, message: ChildReady) -> None:
        """A replica of a child has the window on its disk."""
        plan = self._plan
        if plan is None or message.epoch != self._leader.epoch or message.child not in plan.children:
            return
        at = plan.children.index(message.child)
        if any(one.server == sender and one.assignment_id == message.assignment_id for one in plan.replicas[at]):
            self._ready[message.child, sender] = Replica(sender, message.assignment_id, message.log_id, True)
            self.step()

    def _confirmed(self, child: str) -> tuple[Replica, ...]:
        return tuple(member for (name, _), member in self._ready.items() if name == child)

    def _are_children_ready(self) -> bool:
        assert self._plan is not None
        leader = self._leader
        return all(
            len(self._confirmed(child)) >= leader.configuration.needed and (child, leader.host.name) in self._ready
            for child in self._plan.children
        )

    def _finish(self) -> None:
        leader = self._leader
        self._asked_number = leader.configuration.number
        leader.host.change(self._finishing())

    def _finishing(self) -> FinishSplit | ReachSchema:
        leader = self._leader
        tablet, epoch, number = leader.replica.tablet, leader.epoch, leader.configuration.number
        if self._plan is None:
            return ReachSchema(tablet, epoch, number, self._version)
        left, right = self._plan.children
        return FinishSplit(
            tablet, epoch, number, (self._confirmed(left), self._confirmed(right)), leader.host.txns.bound
        )

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask again for what was not answered; give up a split that takes too long."""
        leader = self._leader
        self._ask_flush()
        if self._plan is not None and leader.host.now - self._closed_at > leader.host.settings.split_seconds:
            self._time_out()
        elif self._asked_number == leader.configuration.number:
            leader.host.change(self._finishing())
        elif self._plan is not None:
            self._send_children()
        self.step()

    def _time_out(self) -> None:
        """Make the finish impossible; METADATA ends the pause."""
        leader = self._leader
        self._asked_number = leader.configuration.number
        leader.host.change(CancelSplit(leader.replica.tablet, leader.configuration.number))
