"""A clone: another table with the same references, and from then on with a life of its own.

    origin   tablet 17  [b"", "m")  -->  a.parquet, b.parquet  <--  [b"", "m")  tablet 41   clone
             tablet 18  ["m", None) -->  b.parquet             <--  ["m", None) tablet 42

No file is copied, so a clone takes as long as writing one METADATA file. Files stay where they are, below the id of the
table that wrote them; they are needed for as long as any table names them.

Invariant: the clone reads as its origin did, at every txn up to the moment of the clone that history still reaches.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["cloned"]


def cloned(origin: TableMetadata, table_id: str, new_id: Callable[[], str]) -> TableMetadata:
    """Return the metadata of a new table with the fragments, erasures and schema of another.

    What belongs to the origin's own life does not come along: who leads its tablets, which replicas they have, how far
    its log is flushed, which bulk jobs and streams it has seen.
    """
    tablets = tuple(_tablet(tablet, new_id()) for tablet in origin.tablets)
    metadata = msgspec.structs.replace(
        origin,
        table_id=table_id,
        txnid="new",
        sequence=0,
        tablets=tablets,
        # Of its own it has one: those who open the store read-only must not stop before what came past the log.
        jobs=((f"clone-{table_id}", newest),) if (newest := origin.newest_txn) else (),
        streams=(),
        replaced=(),
        retired=(),
        former=(),
    )
    metadata.check()
    return metadata


def _tablet(tablet: TabletMetadata, tablet_id: str) -> TabletMetadata:
    # Log indexes count per tablet, and the tablet is new: nothing of it is in any log.
    groups = tuple(msgspec.structs.replace(state, flushed=0) for state in tablet.groups)
    return msgspec.structs.replace(
        tablet,
        id=tablet_id,
        state="running",
        epoch=1,
        leader=None,
        replicas=(),
        log=None,
        groups=groups,
        split=None,
        join=None,
        target=None,
        log_epoch=0,
        taken=None,
        behind=(),
        number=0,
        wanted=1,
        counted=1,
        txn_floor=0,
        leaving=(),
        flushed_epoch=0,
        flushed_index=0,
    )
