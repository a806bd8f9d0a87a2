"""What a requester makes of the files that a metadata server sent: the metadata after the last of them. Pure.

known  +  change, change, ...  -->  metadata          each record is checked in every byte, and must fit the one before
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.errors import Corruption
from ebla.metadata.consensus.history import outcome_of
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import decode

__all__ = ["metadata_after"]


def metadata_after(table_id: str, contents: Sequence[bytes], known: TableMetadata | None) -> TableMetadata:
    """Return the metadata after the last of `contents`, which follow `known` or begin with a snapshot.

    `Corruption` if they do not lead to what they say.
    """
    metadata = known
    for content in contents:
        record = decode(content, f"METADATA of table {table_id}, as it was received")
        metadata = outcome_of(record, metadata) if record.table_id == table_id else None
        if metadata is None:
            raise Corruption(f"METADATA of table {table_id}", f"transaction {record.txnid} does not fit what is known")
    if metadata is None:
        raise Corruption(f"METADATA of table {table_id}", "nothing was received")
    return metadata
