"""The files of one group that one attempt of a bulk task writes: sorted records in, references out.

They have no `_txn` column and their references no txn: the owner of the store gives it at the commit.
"""

from __future__ import annotations

import pyarrow as pa

from ebla.model.keys import KeyCodec
from ebla.model.schema import GroupSchema, TableSchema
from ebla.service.job_files import new_file
from ebla.service.job_orders import BulkFragment
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_run import FragmentRun
from ebla.tablet.flush.serialize import reference_to

__all__ = ["GroupFiles"]


class GroupFiles:
    """Writes sorted records of one group to files of a job, none of them much larger than `file_bytes_max`."""

    def __init__(
        self,
        files: Files,
        table_id: str,
        schema: TableSchema,
        group: GroupSchema,
        codec: KeyCodec,
        job: str,
        partition: int,
        file_bytes_max: int,
    ) -> None:
        # Set once.
        self._table_id = table_id
        self._schema = schema
        self._group = group
        self._job = job
        self._partition = partition
        self._run = FragmentRun(files, self._begin_file, table_id, schema, group, codec, file_bytes_max, txn=0)
        # What goes on.
        self._number = 0
        self._numbers: list[int] = []  # of the files, in the order in which they were begun

    def _begin_file(self) -> str:
        self._numbers.append(self._number)
        return new_file(self._table_id, self._job)

    def write(self, records: pa.RecordBatch, number: int, *, unique: bool) -> None:
        """Add records whose rows come after all that went into the open file, if there is one.

        A file that is begun now gets `number` as the second half of its order.
        """
        self._number = number
        self._run.write(records, unique=unique)

    def end_file(self) -> None:
        """Make the open file durable, if there is one; the next records begin another, with columns of their own."""
        self._run.end_file()

    def finish(self) -> list[BulkFragment]:
        """End the open file and return all of them."""
        return [
            BulkFragment(self._group.id, reference_to(info, self._schema.version), (self._partition, number))
            for info, number in zip(self._run.finish(), self._numbers, strict=True)
        ]

    def abandon(self) -> None:
        """Remove all files, finished or not, as far as that is possible."""
        self._run.abandon()
        self._numbers = []
