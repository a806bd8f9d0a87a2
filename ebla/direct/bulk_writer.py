"""Writing the fragments of a bulk job: rows in, files without `_txn` out, for a commit that comes later.

    write(batch) ... --> gathered to a chunk --> admitted like a put --> one file per group
                                    sorted: streamed into open files, rolled when large, at row boundaries only
                                    unsorted: every chunk is sorted by itself and becomes a file per group

The rows of a key must be in one chunk of sorted input, so that the last of them can win: the key that a chunk ends with
is kept back for the next one. Chunks of unsorted input may overlap; their files are numbered, and the commit puts later
ones above earlier ones.

One writer serves one attempt of one task. What an attempt wrote is nothing until a commit names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, InvalidKey, RequestError, StoreError
from ebla.model.batch import PutBatch
from ebla.model.casts import cast_array
from ebla.model.keys import KeyCodec
from ebla.model.order import Mask, common_prefix_length, is_strictly_sorted, sort_rows
from ebla.model.schema import TableSchema
from ebla.rows.row_parts import check_keys, typed_columns
from ebla.rows.rows import to_put_batch
from ebla.service.job_files import check_job
from ebla.service.job_orders import BulkFragment
from ebla.settings import MIB, Settings
from ebla.storage.files.files import Files
from ebla.storage.record.records import ROW, SET, size_bytes
from ebla.tablet.jobs.bulk_files import GroupFiles
from ebla.tablet.write.admission import Admission
from ebla.tablet.write.mutation import Mutation

__all__ = ["BulkWriter"]

# Sorted rows are worked on in chunks of this size, unsorted ones sorted in chunks of that.
SORTED_CHUNK_ROWS = 65_536
SORTED_CHUNK_BYTES = 16 * MIB
UNSORTED_CHUNK_BYTES = 64 * MIB
ROWS_MAX = 1 << 31

Kind = Literal["put", "erase"]


class BulkWriter:
    """Writes the rows of one task attempt to fragments. Not safe to use from several threads.

    Rows are shaped as `Table.put` takes them; they may bring their encoded keys along as a binary column ``_row``. With
    `is_sorted`, they come in the order of their keys. Of several rows with one key the later ones win, as in a put;
    `duplicates` counts the rows that were followed by another one of the same key, in one chunk if they are unsorted.
    With `replace`, what a row does not give is erased. Cells without a timestamp get `stamp_microseconds`. Rows
    that do not fit, and a disk that fails, abandon the whole attempt.
    """

    def __init__(
        self,
        files: Files,
        table_id: str,
        schema: TableSchema,
        job: str,
        partition: int,
        *,
        stamp_microseconds: int,
        is_sorted: bool,
        settings: Settings | None = None,
        replace: bool = False,
        file_bytes_max: int = 128 * MIB,
    ) -> None:
        self.duplicates = 0
        self.rows = 0
        self._files = files
        self._schema = schema
        self._settings = settings or Settings()
        self._stamp = stamp_microseconds
        self._is_sorted = is_sorted
        self._replace = replace
        self._codec = KeyCodec(schema.key, self._settings.key_bytes_max)
        self._admission = Admission(schema, self._codec)
        self._outputs = {
            group.id: GroupFiles(files, table_id, schema, group, self._codec, check_job(job), partition, file_bytes_max)
            for group in schema.groups
        }
        self._chunk_bytes = SORTED_CHUNK_BYTES if is_sorted else UNSORTED_CHUNK_BYTES
        self._chunk_rows = SORTED_CHUNK_ROWS if is_sorted else ROWS_MAX
        self._typed = typed_columns(schema)
        self._kind: Kind | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._cut_rows, self._cut_bytes = self._chunk_rows, self._chunk_bytes
        self._last: bytes | None = None
        self._chunks = 0
        self._is_abandoned = False

    # --- what callers do ---

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows: key columns and any columns and cells of the table, in the same shape in every call."""
        self._gather("put", rows)

    def erase(self, keys: pa.RecordBatch) -> None:
        """Take keys, the key columns alone, of rows that are to be erased whole."""
        extra = [name for name in keys.schema.names if name not in (*self._schema.key_names, ROW)]
        if extra:
            raise InvalidBatch(f"rows are erased by their keys alone: leave out {', '.join(map(repr, extra[:10]))}")
        self._gather("erase", keys)

    def finish(self) -> list[BulkFragment]:
        """Write what is left, and return the files, which are durable then."""
        with self._abandoned_on_error():
            self._cut(final=True)
            return [made for output in self._outputs.values() for made in output.finish()]

    def abandon(self) -> None:
        """Remove all files of this attempt, as far as that is possible. Nobody names them, so none is missed."""
        self._is_abandoned = True
        self._gathered = []
        for output in self._outputs.values():
            output.abandon()

    @contextlib.contextmanager
    def _abandoned_on_error(self) -> Iterator[None]:
        if self._is_abandoned:
            # What was written before the error is gone; what would come now would be taken for the whole.
            raise RequestError("this attempt was abandoned, and its rows are gone: begin again with another writer")
        try:
            yield
        except OSError as error:
            self.abandon()
            raise StoreError(f"cannot write a fragment: {error}; free space, then run the job again") from error
        except BaseException:
            self.abandon()
            raise

    # --- chunks ---

    def _gather(self, kind: Kind, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if rows.schema.metadata is not None:
            rows = rows.replace_schema_metadata(None)
        with self._abandoned_on_error():
            if kind != self._kind or (self._gathered and rows.schema != self._gathered[0].schema):
                self._change_shape(kind)
            for piece, piece_bytes in _pieces(rows, self._chunk_bytes):
                self._gathered.append(piece)
                self._gathered_rows += piece.num_rows
                self._gathered_bytes += piece_bytes
                if self._gathered_rows >= self._cut_rows or self._gathered_bytes >= self._cut_bytes:
                    self._cut(final=False)

    def _change_shape(self, kind: Kind) -> None:
        if self._kind is not None and self._is_sorted:
            raise RequestError("sorted rows come in one shape: give the same columns in every call, or unsorted rows")
        self._cut(final=True)
        self._kind = kind

    def _cut(self, *, final: bool) -> None:
        """Write what was gathered; of sorted rows that go on, keep back those of the last key."""
        if not self._gathered:
            return
        given = self._gathered[0] if len(self._gathered) == 1 else pa.concat_batches(self._gathered)
        rows = self._encoded(given)
        repeats: Mask | None = None
        end = len(rows)
        if self._is_sorted:
            repeats = _repeats_in_order(rows, self._last)
            self._last = rows[-1].as_py()
            if not final:
                end = 0 if repeats.all() else int(len(repeats) - 1 - np.argmin(repeats[::-1]))
        self._keep(given.slice(end))
        if end:
            self._work(given.slice(0, end), rows.slice(0, end), None if repeats is None else repeats[:end])

    def _keep(self, tail: pa.RecordBatch) -> None:
        if tail.num_rows > 1 and self._has_only_columns(tail):
            # The last one stands for all of them already.
            self.duplicates += tail.num_rows - 1
            self.rows += tail.num_rows - 1
            tail = tail.slice(tail.num_rows - 1)
        self._gathered = [tail] if tail.num_rows else []
        self._gathered_rows = tail.num_rows
        self._gathered_bytes = size_bytes(tail)
        # One key with very many rows of cells is not looked through again for every batch that comes.
        self._cut_rows = max(self._chunk_rows, 2 * self._gathered_rows)
        self._cut_bytes = max(self._chunk_bytes, 2 * self._gathered_bytes)

    def _has_only_columns(self, batch: pa.RecordBatch) -> bool:
        return all(name in self._typed or name in self._schema.key_names or name == ROW for name in batch.schema.names)

    def _encoded(self, given: pa.RecordBatch) -> pa.Array:
        if ROW in given.schema.names:
            return given.column(ROW)
        keys = []
        for column in self._schema.key:
            if column.name not in given.schema.names:
                raise InvalidBatch(f"key column {column.name!r} is missing: the rows have {given.schema.names[:20]}")
            keys.append(cast_array(given.column(column.name), column.type, f"key column {column.name!r}", InvalidKey))
        check_keys(self._schema.key, keys)
        return self._codec.encode_arrays(keys)

    # --- records ---

    def _work(self, batch: pa.RecordBatch, rows: pa.Array, repeats: Mask | None) -> None:
        """Write a chunk: sorted rows with what repeats in them, or unsorted ones."""
        self.rows += len(rows)
        if ROW in batch.schema.names:
            batch = batch.drop_columns([ROW])
        order: pa.Array | None = None
        if repeats is None:
            span = pc.min_max(rows)
            skip = common_prefix_length(span["min"].as_py(), span["max"].as_py())
            places, repeats = sort_rows(rows, skip)
            order = pa.array(places)
        last = np.ones(len(rows), dtype=np.bool_)
        last[:-1] = ~repeats[1:]
        self.duplicates += len(rows) - int(last.sum())
        if self._kind == "erase":
            self._write_mutation(self._admission.erase(rows))
        else:
            self._put(batch, rows, order, last)
        self._chunks += 1
        if not self._is_sorted:
            for output in self._outputs.values():
                output.end_file()

    def _put(self, batch: pa.RecordBatch, rows: pa.Array, order: pa.Array | None, last: Mask) -> None:
        if self._replace and not last.all():
            # A row that replaces another also takes away what it does not mention, so the earlier ones go first.
            kept = np.flatnonzero(last) if order is None else np.sort(order.to_numpy()[last])
            batch, rows = batch.take(pa.array(kept)), rows.take(pa.array(kept))
            if order is not None:
                order = pa.array(sort_rows(rows)[0])
            last = np.ones(len(rows), dtype=np.bool_)
        settings = self._settings
        put = to_put_batch(
            batch,
            self._schema,
            value_bytes_max=settings.value_bytes_max,
            batch_bytes_max=max(settings.batch_bytes_max, 4 * self._chunk_bytes),
        )
        if self._is_plain(put):
            assert put.columns is not None
            self._write_columns(put.columns, rows, order, last)
        else:
            self._write_mutation(self._admission.put(put, replace=self._replace))

    def _is_plain(self, put: PutBatch) -> bool:
        """Tell whether all rows set the same typed columns, and nothing else is to be said about them."""
        if put.cells is not None or put.columns is None or SET in put.columns.schema.names:
            return False
        if not self._replace:
            return True
        names = put.columns.schema.names
        return all(any(column.name in names for column in group.columns) for group in self._schema.groups)

    def _write_columns(self, batch: pa.RecordBatch, rows: pa.Array, order: pa.Array | None, last: Mask) -> None:
        """Write rows that all set the same columns: the quick way, with the keys as they came."""
        if order is not None:
            take = order if last.all() else order.filter(pa.array(last))
            batch, rows = batch.take(take), rows.take(take)
        elif not last.all():
            batch, rows = batch.filter(pa.array(last)), rows.filter(pa.array(last))
        named = dict(zip(batch.schema.names, batch.columns, strict=True))
        keys = {} if self._codec.is_simple else {f"key:{i}": named[n] for i, n in enumerate(self._schema.key_names)}
        for group in self._schema.groups:
            values = {str(column.id): named[column.name] for column in group.columns if column.name in named}
            if not values:
                continue
            if self._replace:
                for column in group.columns:
                    if column.name not in named:
                        values[str(column.id)] = pa.nulls(len(rows), column.type)
            records = {**keys, ROW: rows, **values}
            made = pa.RecordBatch.from_arrays(list(records.values()), names=list(records))
            self._outputs[group.id].write(made, self._chunks, unique=True)

    def _write_mutation(self, mutation: Mutation) -> None:
        for group, part in mutation.groups.items():
            self._outputs[group].write(part.stamped(self._stamp), self._chunks, unique=part.unique)


def _pieces(rows: pa.RecordBatch, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield a batch in pieces that are not much larger than `bytes_max`, and about how large each is."""
    whole_bytes = size_bytes(rows)
    pieces = max(1, min(rows.num_rows, -(-whole_bytes // bytes_max)))
    length = -(-rows.num_rows // pieces)
    for begin in range(0, rows.num_rows, length):
        yield rows.slice(begin, length), whole_bytes // pieces


def _repeats_in_order(rows: pa.Array, before: bytes | None) -> Mask:
    """Tell which of the sorted rows equal the one before them; raise if they are not sorted."""
    if before is not None and rows[0].as_py() < before:
        raise RequestError("the rows are not in the order of their keys: sort them, or write them as unsorted")
    repeats = np.zeros(len(rows), dtype=np.bool_)
    if is_strictly_sorted(rows):
        return repeats
    following, preceding = rows.slice(1), rows.slice(0, len(rows) - 1)
    if not pc.all(pc.greater_equal(following, preceding)).as_py():
        raise RequestError("the rows are not in the order of their keys: sort them, or write them as unsorted")
    repeats[1:] = pc.equal(following, preceding).to_numpy(zero_copy_only=False)
    return repeats
