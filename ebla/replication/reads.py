"""Reads of a leader: at the safe txn, or at a txn that is asked for; and the gate that a bulk load closes.

    safe txn = the largest below every uncommitted one       a read without a txn is there, and never waits
    a read at T: the clock is pushed beyond T, then it waits until everything at or below T is committed

While a gate is closed the safe txn stays below the txn t that it reserved, and reads at or above t wait: a file may
become part of the tablet at any txn from t on. **A gate never opens by time alone**: after a while the load is recorded
as aborted, and METADATA opens it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.replication.actions import Serve
from ebla.replication.messages import Advance, CloseGate, Read
from ebla.replication.recut_changes import AbortLoad

if TYPE_CHECKING:
    from ebla.replication.leader import Leader

__all__ = ["Reads"]


class Reads:
    """What waits to be read, and what must not be read yet."""

    __slots__ = ("_gate_txn", "_gated_at", "_job", "_leader", "_waiting")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._waiting: list[tuple[Read, float]] = []
        self._job: str | None = None
        self._gate_txn = 0
        self._gated_at = 0.0

    # --- which txn -------------------------------------------------------------------------------

    def safe_txn(self) -> int:
        """Return the largest txn at which nothing can change any more."""
        safe = self._below_uncommitted()
        return min(safe, self._gate_txn - 1) if self._job is not None else safe

    def _below_uncommitted(self) -> int:
        replica = self._leader.replica
        uncommitted = replica.log.behind(replica.commit)
        return uncommitted[0].txn - 1 if uncommitted else self._leader.host.txns.last

    def read(self, read: Read) -> None:
        """Answer now, or when everything up to the txn is committed."""
        leader = self._leader
        host = leader.host
        if not leader.is_serving or not leader.has_lease() or not leader.configuration.range.contains(read.row):
            host.answer(read.client, read.token, read.tablet, "retry")
        elif read.txn is None:
            self._serve(read, self.safe_txn())
        elif read.txn > host.wall + host.settings.ahead_seconds * 1e6 and read.txn > host.txns.last:
            host.answer(read.client, read.token, read.tablet, "refused")
        elif self._can_serve(read.txn):
            self._serve(read, read.txn)
        else:
            self._waiting.append((read, host.now + read.deadline_seconds))

    def _can_serve(self, txn: int) -> bool:
        return self._push(txn) and txn <= self.safe_txn()

    def _push(self, txn: int) -> bool:
        return self._leader.host.txns.push(txn)

    def _serve(self, read: Read, txn: int) -> None:
        replica = self._leader.replica
        self._leader.host.act(
            Serve(
                replica.tablet,
                replica.assignment_id,
                self._leader.epoch,
                read.client,
                read.token,
                read.row,
                txn,
                replica.commit,
            )
        )

    def served(self, serve: Serve) -> None:
        """A row was read: tell the client, if the lease was still there afterwards."""
        leader = self._leader
        is_mine = serve.epoch == leader.epoch and leader.is_serving and leader.has_lease()
        leader.host.answer(
            serve.client,
            serve.token,
            serve.tablet,
            "done" if is_mine else "retry",
            serve.txn,
            leader.epoch,
            leader.lease,
        )

    # --- waiting ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Serve what need not wait any more."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        host = self._leader.host
        for read, until in waiting:
            assert read.txn is not None
            if self._can_serve(read.txn):
                self._serve(read, read.txn)
            elif host.now > until:
                host.answer(read.client, read.token, read.tablet, "retry")
            else:
                self._waiting.append((read, until))

    def end(self) -> None:
        """Leadership ends."""
        for read, _ in self._waiting:
            self._leader.host.answer(read.client, read.token, read.tablet, "retry")
        self._waiting = []

    # --- the gate --------------------------------------------------------------------------------

    @property
    def is_gated(self) -> bool:
        """Whether commits are stopped."""
        return self._job is not None

    def close_gate(self, message: CloseGate) -> None:
        """Stop commits, and reserve a txn: above all that was given out, and not given out again."""
        leader = self._leader
        host = leader.host
        if leader.is_serving and leader.has_lease() and not leader.pause.is_closed and self._job in (None, message.job):
            if host.table is None or message.job in host.table.jobs:
                return
            if self._job is None:
                txn = host.txns.allocate(host.wall)
                if txn is None:
                    return
                self._job, self._gate_txn, self._gated_at = message.job, txn, host.now
            host.answer(
                message.client,
                0,
                message.tablet,
                "done",
                self._gate_txn,
                leader.epoch,
                leader.lease,
                leader.configuration.number,
            )

    def advance_to(self, message: Advance) -> None:
        """Pass the txn of the load, before it is committed."""
        leader = self._leader
        if self._job == message.job and leader.has_lease() and self._push(message.txn):
            leader.host.answer(message.client, 1, message.tablet, "done", message.txn, leader.epoch, leader.lease)

    def learn(self) -> None:
        """METADATA says what became of the load: the gate opens."""
        table = self._leader.host.table
        if self._job is not None and table is not None and self._job in table.jobs:
            self._open()

    def _open(self) -> None:
        self._job = None
        self.step()

    def tick(self) -> None:
        """Have a load that takes too long recorded as aborted; give up reads that waited too long."""
        host = self._leader.host
        if self._job is not None and host.now - self._gated_at > host.settings.gate_seconds:
            self._time_out()
        self.step()

    def _time_out(self) -> None:
        assert self._job is not None
        self._leader.host.change(AbortLoad(self._job))
