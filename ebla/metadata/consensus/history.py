"""The transactions of one table that one server has on disk, and what follows from them. Pure.

    snapshot <-- change <-- change <-- snapshot <-- change <-- change          current
    `------------- kept: the last two snapshots on ------------'    ^-- change  aborted, or not decided yet

- A transaction is **held** if the chain of its bases reaches a snapshot without a gap: then it can be loaded.
- A transaction that is not an ancestor of the current one and does not come after it can never be committed: the base
  that it was built on is current no more.
- A request is found by walking back from the current transaction to the base that the requester had seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ebla.errors import EblaError
from ebla.metadata.values.changes import apply
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import (
    SNAPSHOTS_KEPT,
    ChangeRecord,
    Record,
    SnapshotRecord,
    is_among,
    leads_to,
)

__all__ = ["History", "NotOnRecord"]


class NotOnRecord(LookupError):
    """The walk back came to the end of what is kept."""


class History:
    """The records of one table by txnid. Not safe for several threads."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = {record.txnid: record for record in records}
        # Outcomes that were computed already; forgotten once they are older than the current one.
        self._outcomes: dict[str, TableMetadata] = {}

    def __contains__(self, txnid: str) -> bool:
        return txnid in self._records

    def add(self, record: Record, outcome: TableMetadata) -> None:
        """Take in a transaction that is on disk, with the metadata that it leads to."""
        self._records[record.txnid] = record
        self._outcomes[record.txnid] = outcome

    def remove(self, txnid: str) -> None:
        """Forget a transaction whose file is gone or damaged."""
        self._records.pop(txnid, None)
        self._outcomes.pop(txnid, None)

    def walk(self, txnid: str) -> Iterator[Record]:
        """Yield a transaction and its ancestors as far as they are kept, newest first."""
        record = self._records.get(txnid)
        while record is not None:
            yield record
            record = None if record.base is None else self._records.get(record.base)

    def holds(self, txnid: str) -> bool:
        """Whether a transaction can be loaded from what is on disk."""
        return any(isinstance(record, SnapshotRecord) for record in self.walk(txnid))

    def load(self, txnid: str) -> TableMetadata | None:
        """Return the metadata after a transaction; None if it is not held."""
        if not self.holds(txnid):
            return None
        changes: list[ChangeRecord] = []
        metadata: TableMetadata | None = None
        for record in self.walk(txnid):
            metadata = self._outcomes.get(record.txnid)
            if metadata is not None:
                break
            if isinstance(record, SnapshotRecord):
                metadata = record.metadata
                break
            changes.append(record)
        for record in reversed(changes):
            metadata = None if metadata is None else outcome_of(record, metadata)
        if metadata is not None:
            self._outcomes[txnid] = metadata
        return metadata

    def is_ancestor(self, metadata: TableMetadata, current_txnid: str) -> bool:
        """Whether the transaction that led to `metadata` is the current one or an ancestor of it.

        `NotOnRecord` if the history that is kept does not reach back far enough to tell.
        """
        found = is_among(self.walk(current_txnid), metadata)
        if found is None:
            raise NotOnRecord
        return found

    def find_request(self, current_txnid: str, base: str, request_id: str) -> str | None:
        """Return the transaction between `base` and the current one that carried out a request, or None.

        `NotOnRecord` if the base is not among the ancestors that are kept.
        """
        for record in self.walk(current_txnid):
            if record.txnid == base:
                return None
            if request_id in record.requests:
                return record.txnid
        raise NotOnRecord

    def since(self, txnid: str, known: str | None) -> list[Record]:
        """Return the records that lead from `known` to `txnid`, oldest first; from the oldest snapshot if it is not one
        of its ancestors; none if it is not held.
        """
        records: list[Record] = []
        for record in self.walk(txnid):
            if record.txnid == known:
                return records[::-1]
            records.append(record)
        while records and not isinstance(records[-1], SnapshotRecord):
            records.pop()
        return records[::-1]

    def shortest(self, txnid: str, known: str | None) -> list[Record]:
        """Return the fewest records that lead to `txnid` for one who knows `known`, oldest first; none if not held.

        They begin after `known`, or with the newest snapshot if that is not an ancestor, or is further away.
        """
        records: list[Record] = []
        for record in self.walk(txnid):
            if record.txnid == known:
                return records[::-1]
            records.append(record)
            if isinstance(record, SnapshotRecord):
                return records[::-1]
        return []

    def prunable(self, current: TableMetadata) -> list[str]:
        """Return the transactions that nobody can need now that `current` is committed; forget old outcomes."""
        self._outcomes = {
            txnid: outcome for txnid, outcome in self._outcomes.items() if outcome.sequence >= current.sequence
        }
        kept = set()
        snapshots = 0
        base: str | None = current.txnid
        for record in self.walk(current.txnid):
            kept.add(record.txnid)
            base = record.base
            snapshots += isinstance(record, SnapshotRecord)
            if snapshots == SNAPSHOTS_KEPT:
                break
        if snapshots < SNAPSHOTS_KEPT and base is not None:
            return []  # there is a gap, which is perhaps being filled: what lies beyond it cannot be told apart
        return [
            txnid
            for txnid, record in self._records.items()
            if txnid not in kept and record.sequence <= current.sequence
        ]


def outcome_of(record: Record, base: TableMetadata | None) -> TableMetadata | None:
    """Return what a record leads to from its base; None if that is not what it says itself."""
    try:
        if isinstance(record, SnapshotRecord):
            metadata = record.metadata
            metadata.schema.check()
            metadata.check()
        elif base is None or base.txnid != record.base:
            return None
        else:
            metadata = apply(base, record.changes, record.txnid)
    except EblaError:
        return None
    return metadata if leads_to(record, metadata) else None
