"""Copying some blocks of a fragment into a new one: what can still be read of a damaged file.

    blocks 0 1 2 3 4 of a file  -->  blocks 0 1 4 of another

The new file is laid out as the old one, whatever the schema of its table is by now: the same columns in the same types
under the same field ids, the same blocks, the same choice of dictionaries, statistics and bloom filters. Only what its
footer counts is counted anew. So whoever refers to the old file can refer to the new one in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebla.storage.files.files import Files, parent_of
from ebla.storage.fragment.fragment_format import FOOTER_KEY, Footer, FragmentInfo
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.fragment_writer import BLOOM_FALSE_POSITIVES, FragmentSink, tail_of
from ebla.storage.record.records import ROW, TIMESTAMP, TXN

__all__ = ["copy_blocks"]


def copy_blocks(files: Files, source: Fragment, blocks: Sequence[int], target: str, txn: int | None) -> FragmentInfo:
    """Write blocks of a fragment, by their numbers, at least one, to a new file; it is durable when this returns.

    `txn` is that of all records where the file has no `_txn` column. Of a promise that some blocks may not keep, that
    the newest record of a row says all (`topped`), nothing is said.
    """
    with files.open_input(source.file) as opened:
        reader = pq.ParquetFile(opened, pre_buffer=False, page_checksum_verification=True)
        writing = _Copying(reader, source)
        sink = FragmentSink(files.create(target))
        try:
            footer = writing.write(sink, blocks)
            sink.flush()
            size = sink.tell()
            sink.make_durable()
        except BaseException:
            sink.close()
            files.delete(target)
            raise
        sink.close()
    files.sync_directory(parent_of(target))
    txn_min, txn_max = (footer.txn_min, footer.txn_max) if txn is None else (txn, txn)
    assert txn_min is not None, "records that do not share a txn have a column for it"
    assert txn_max is not None
    return FragmentInfo(
        target,
        footer.rows,
        size,
        footer.first,
        footer.last,
        txn_min,
        txn_max,
        footer.unique,
        footer.has_erasures,
        footer.has_partial,
        tail_of(files, target, size),
    )


class _Copying:
    """How one file was written, and so how some of its blocks are."""

    def __init__(self, reader: pq.ParquetFile, source: Fragment) -> None:
        self._reader = reader
        self._footer = source.footer
        metadata = reader.metadata
        group = metadata.row_group(0)
        columns = [group.column(at) for at in range(metadata.num_columns)]
        types = source.written_types()
        self._schema = pa.schema([field.with_type(types.get(field.name, field.type)) for field in reader.schema_arrow])
        self._row = source.physical_name(ROW)
        compression = columns[0].compression.lower()
        delta = {name: "DELTA_BINARY_PACKED" for name in (TXN, TIMESTAMP) if name in self._schema.names}
        self._settings = {
            "compression": "none" if compression == "uncompressed" else compression,
            "use_dictionary": [c.path_in_schema for c in columns if c.has_dictionary_page],
            "column_encoding": delta or None,
            "write_page_checksum": True,
            "write_statistics": [c.path_in_schema for c in columns if c.is_stats_set],
            "sorting_columns": list(group.sorting_columns),
            "store_schema": True,
        }
        if any(c.bloom_filter_offset is not None for c in columns):
            rows = max(self._footer.block_rows)
            self._settings["bloom_filter_options"] = {self._row: {"ndv": rows, "fpp": BLOOM_FALSE_POSITIVES}}

    def write(self, sink: FragmentSink, blocks: Sequence[int]) -> Footer:
        """Write the blocks and the footer, and return what it says."""
        last = b""
        txns: list[int] = []
        with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), self._schema, **self._settings) as writer:
            for number in blocks:
                block = self._reader.read_row_group(number, use_threads=False).cast(self._schema)
                rows = block.column(self._row)
                last = _bytes_of(rows[len(rows) - 1].as_py())
                if TXN in self._schema.names:
                    span = pc.min_max(block.column(TXN)).as_py()
                    txns += [span["min"], span["max"]]
                writer.write_table(block, row_group_size=block.num_rows)
            footer = msgspec.structs.replace(
                self._footer,
                rows=sum(self._footer.block_rows[number] for number in blocks),
                first=self._footer.block_first[blocks[0]],
                last=last,
                txn_min=min(txns, default=None),
                txn_max=max(txns, default=None),
                block_first=[self._footer.block_first[number] for number in blocks],
                block_rows=[self._footer.block_rows[number] for number in blocks],
            )
            writer.add_key_value_metadata({FOOTER_KEY: msgspec.json.encode(footer).decode()})
        return footer


def _bytes_of(row: str | bytes) -> bytes:
    return row.encode() if isinstance(row, str) else row
