"""Is the catalog whole? METADATA of a table that the catalog does not have tells that it may not be.

    METADATA of an unknown id                                   means
    its id is on record as dropped                              a table that is gone: the files may go
    a mark that it is being made, and its first transaction     a creation under way, or killed: it never was a table
    its first transaction alone, no file of its own             the same, from before there were marks: it stays
    anything else                                               a table that was there: the catalog has lost it

A catalog can lose tables by damage, by being put back to an earlier state, or by being another store's. Then nothing is
garbage: files of a lost table look like files of nobody. The same goes for a table of which METADATA is on disk that
comes after the current one by more than a transaction: what is current there is an earlier state. When a store is
opened, the log of a lost table is kept, as that of a damaged one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, MissingFile
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.metadata_store import CREATING, MetadataStore
from ebla.metadata.values.table_config import TABLES
from ebla.metadata.values.transaction_file import SnapshotRecord
from ebla.storage.files.files import FileInfo, Files

__all__ = ["METADATA", "Strangers", "look_at_strangers", "lost", "lost_tables", "saved_metadata", "went_back"]

METADATA = "metadata"
_log = logging.getLogger(__name__)
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Strangers:
    """Ids with METADATA that the catalog does not have."""

    lost: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    """Their creation was not finished, and perhaps still is under way."""
    dropped: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Nothing tells what they are, and nothing depends on it."""


def saved_metadata(files: Files, without: Collection[str] = ()) -> dict[str, list[FileInfo]]:
    """Return the METADATA files of every table but some, by id; directories without files are there, too."""
    paths = {path.rpartition("/")[2]: path for path in files.list_directories(METADATA)}
    return {table_id: files.list(path) for table_id, path in paths.items() if table_id not in without}


def look_at_strangers(
    files: Files,
    saved: Mapping[str, Collection[FileInfo]],
    known: Collection[str],
    dropped: Collection[str],
    unnamed: Collection[str],
) -> Strangers:
    """Tell what unknown ids with METADATA are; `unnamed` are files that no table of the catalog names."""
    store = MetadataStore(files)
    kinds: dict[str, list[str]] = {"lost": [], "abandoned": [], "dropped": [], "others": []}
    for table_id in sorted(saved.keys() - set(known)):
        kind = "dropped" if table_id in dropped else _kind(store, table_id, saved[table_id], unnamed)
        kinds[kind].append(table_id)
    return Strangers(**{kind: tuple(ids) for kind, ids in kinds.items()})


def _kind(store: MetadataStore, table_id: str, infos: Collection[FileInfo], unnamed: Collection[str]) -> str:
    if not infos:
        return "others"
    records, damaged = store.intact(table_id)
    if any(record.sequence > 1 for record in records):
        return "lost"
    if any(info.path.endswith(f"/{CREATING}") for info in infos):
        return "abandoned"  # what is damaged was being written
    snapshots = [record.metadata for record in records if isinstance(record, SnapshotRecord)]
    is_owner = any(path in unnamed for metadata in snapshots for path in metadata.files())
    return "lost" if damaged or is_owner else "others"


def lost_tables(files: Files, coordination: CoordinationService) -> tuple[str, ...]:
    """Return the tables that the catalog of a store has certainly lost, and tell of them; for who opens the store."""
    known = {path.rpartition("/")[2] for path in coordination.list(TABLES)}
    saved = saved_metadata(files, without=known)
    if not saved:
        return ()
    found = look_at_strangers(files, saved, known, DroppedTables(coordination).ids(), ()).lost
    if found:
        _log.error("%s", lost(found))
    return found


def lost(table_ids: Collection[str]) -> Corruption:
    """Return the error for a catalog that lacks tables."""
    shown = ", ".join(f"{METADATA}/{table_id}" for table_id in sorted(table_ids)[:_SHOWN_MAX])
    more = f" and {len(table_ids) - _SHOWN_MAX} others" if len(table_ids) > _SHOWN_MAX else ""
    return Corruption(
        "the catalog of tables",
        f"{shown}{more} belong to tables that it does not have and that nobody dropped. Nothing was removed: bring the "
        "coordination service back as it was (coordination.sqlite, from a copy of the store), or move such a directory "
        "out of the store if the table is not wanted",
    )


def went_back(store: MetadataStore, table_id: str, infos: Collection[FileInfo], current: tuple[str, int]) -> None:
    """Raise `Corruption` if there is METADATA of a table that can only be there if the current one is an earlier state.

    `infos` was listed before `current`, the id and number of the transaction, was read: so at most one transaction,
    which is being made or was given up, comes after it.
    """
    txnid, sequence = current
    times = [info.modified_seconds for info in infos if info.path.endswith(f"/{txnid}.meta")]
    for info in infos:
        # Nearly always nothing is newer than what is current, and no file is read.
        if info.path.endswith(".meta") and (not times or info.modified_seconds >= times[0]):
            other = info.path.rpartition("/")[2].removesuffix(".meta")
            if other == txnid:
                continue
            try:
                number = store.record(table_id, other).sequence
            except (Corruption, MissingFile):
                continue  # it was being written, or has gone since
            if number > sequence + 1:
                raise Corruption(
                    "the catalog of tables",
                    f"it has transaction {sequence} of table {table_id} as the current one, and {info.path} is number "
                    f"{number}. Nothing was removed: bring the coordination service back as it was",
                )
