"""A table that comes from a backup: the METADATA that was saved there, made that of a new table of this store.

    saved     tablet 17  [b"", "m")  -->  fragments/<old table>/a.parquet
    new       tablet 93  [b"", "m")  -->  fragments/<old table>/<job>-<id>.parquet      the same bytes, the same txns

Records keep their txns: *the table reads, at every txn up to that of the backup that its history reaches, as the other
did*. A table that takes the place of another has no history before the moment at which it did: a reader who asks what
was there earlier must not be told what was there in the backup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ebla.errors import Corruption
from ebla.metadata.values.changes import JOBS_MAX
from ebla.metadata.values.clone import cloned
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, TabletMetadata
from ebla.metadata.values.transaction_file import SnapshotRecord, decode, encode

__all__ = ["appeared", "every_reference", "pack_metadata", "renamed_files", "restored", "unpack_metadata"]


def pack_metadata(metadata: TableMetadata) -> bytes:
    """Return METADATA as bytes that go to other processes and machines."""
    return encode(SnapshotRecord(None, metadata.checksum, metadata))


def unpack_metadata(packed: bytes, where: str) -> TableMetadata:
    """Read what `pack_metadata` wrote; `Corruption` of `where` if it is not that, `FormatTooNew` if it is newer."""
    record = decode(packed, where)
    if not isinstance(record, SnapshotRecord):
        raise Corruption(where, "METADATA in it is a change, and no table")
    return record.metadata


def restored(
    saved: TableMetadata, table_id: str, files: Mapping[str, str], new_id: Callable[[], str], *, in_place: bool = False
) -> TableMetadata:
    """Return the METADATA of a new table with what was saved of another; `files` says where its files are by now.

    A table `in_place` remembers the jobs and batches of streams that it has: repeated, they must not happen twice. Any
    other is one that they never wrote to.
    """
    made = renamed_files(cloned(saved, table_id, new_id), files)
    jobs, streams = (saved.jobs, saved.streams) if in_place else ((), ())
    return msgspec.structs.replace(made, jobs=jobs, streams=streams)


def renamed_files(metadata: TableMetadata, files: Mapping[str, str]) -> TableMetadata:
    """Return the same table with other names for its files."""

    def renamed(ref: FragmentRef) -> FragmentRef:
        return msgspec.structs.replace(ref, file=files[ref.file])

    def state_of(state: GroupState) -> GroupState:
        return msgspec.structs.replace(state, fragments=tuple(map(renamed, state.fragments)))

    return _with_states(metadata, state_of)


def appeared(metadata: TableMetadata, job: str, txn: int, *, without_history: bool) -> TableMetadata:
    """Return a table as it appears by a job at a txn; `without_history`, nobody reads it at an earlier one.

    The job says to those who open the store that the txns of the table lie behind it.
    """
    if without_history:

        def state_of(state: GroupState) -> GroupState:
            return msgspec.structs.replace(state, floor_txn=max(state.floor_txn, txn))

        metadata = _with_states(metadata, state_of)
    return msgspec.structs.replace(metadata, jobs=(*metadata.jobs, (job, txn))[-JOBS_MAX:])


def _with_states(metadata: TableMetadata, state_of: Callable[[GroupState], GroupState]) -> TableMetadata:
    def tablet_of(tablet: TabletMetadata) -> TabletMetadata:
        return msgspec.structs.replace(tablet, groups=tuple(map(state_of, tablet.groups)))

    return msgspec.structs.replace(metadata, tablets=tuple(map(tablet_of, metadata.tablets)))


def every_reference(metadata: TableMetadata) -> dict[str, FragmentRef]:
    """Return one reference to every file of a table, by the file."""
    refs: dict[str, FragmentRef] = {}
    for tablet in metadata.tablets:
        for state in tablet.groups:
            for ref in state.fragments:
                refs.setdefault(ref.file, ref)
    return refs
