"""Files that are not there: lost, or merged into others since a read-only open took note of them.

Whoever has the store open for writing sees every change of METADATA, and its files stay for as long as it names them.
A read-only open stays at the METADATA that it found, and nobody waits for it: after `garbage_age_seconds` the files
that were merged since are removed. Nothing is lost then, and the store need only be opened again. Jobs hold the txn at
which they read, and so can open it again as often as they have to.
"""

from __future__ import annotations

from ebla.errors import EblaError, HistoryGone, MissingFile, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.tablet.tables.open_tables import OpenTables

__all__ = ["explained"]


def explained(tables: OpenTables, metadata: MetadataAccess, file: str, error: MissingFile) -> EblaError:
    """Return what to tell a reader of a read-only open who did not find a file: `error`, or that it is out of date."""
    namers = [table for table in tables.all() if file in table.view.metadata.files()]
    for table in namers:
        try:
            if file in metadata.refresh(table.id).files():
                return error
        except UnknownTable:
            continue
        except EblaError:
            return error  # nobody knows
    if not namers:
        return error
    return HistoryGone(
        f"{file} was merged into other files and removed, since the store was opened read-only: open it again, and as "
        "of a snapshot with a name if it has to be the same moment"
    )
