"""Which rows of a batch can be what they should, before they are sorted: texts parsed, keys made, the rest rejected.

    batch as it came --> c0, c1, ... with `_reason` (null), `_rejected` (null) and `_row`, the encoded key
                     `-> (reason, the row as JSON) of each that does not fit

In the process it is done to what was read from files; on Spark by its Python workers (`spark_fitting`), before Spark
divides and sorts the rows. Values of other types are cast in the tasks, by the same code that a put goes through.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ebla.direct.fragments import ROW
from ebla.errors import RequestError
from ebla.model.casts import is_text
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.pipeline.inputs.input_files import CORRUPT
from ebla.pipeline.inputs.text_parsing import parse_texts
from ebla.pipeline.loading.keyed_rows import each_that_fits, encode_rows
from ebla.pipeline.loading.load_task import REASON, REJECTED
from ebla.pipeline.loading.matching import Matched
from ebla.pipeline.loading.rejects import row_as_json
from ebla.pipeline.spark.spark_text import json_lines
from ebla.pipeline.spark.types import to_spark

__all__ = ["Fitting", "Rejects"]

_SHOWN_LENGTH = 60
_AT = "_at"

Rejects = list[tuple[str, str]]


class Fitting:
    """Divides batches of one input into rows that fit and rows that do not."""

    def __init__(self, columns: Sequence[Matched], schema: TableSchema, key_bytes_max: int) -> None:
        self._columns = list(columns)
        self._key_bytes_max = key_bytes_max
        self._codec = KeyCodec(schema.key, key_bytes_max)
        names = [column.name for column in columns]
        self._key = [f"c{names.index(column.name)}" for column in schema.key]

    def split(self, batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], Rejects]:
        """Return the rows that fit so far, with their keys, and those that do not, with reasons."""
        batch = self._plain(batch)
        given = batch.select([column.name for column in self._columns])
        values, reasons = self._looked_at(given, batch.column(CORRUPT) if CORRUPT in batch.schema.names else None)
        fits = reasons.is_null()
        rejects: Rejects = []
        if reasons.null_count < len(reasons):
            rejects = self._rejected(batch, pc.invert(fits), reasons)
            values, given = values.filter(fits), given.filter(fits)

        def reject(one: pa.RecordBatch, reason: RequestError) -> None:
            at = one.column(_AT)[0].as_py()
            rejects.append((str(reason), _as_json(given.slice(at, 1))[0]))

        numbered = values.append_column(_AT, pa.array(range(values.num_rows), pa.int64()))
        return [*each_that_fits(numbered, self._keyed, reject)], rejects

    def _plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the types by which its columns were matched: dictionaries and long texts are plain."""
        wanted = {column.name: column.given for column in self._columns}
        names = batch.schema.names
        arrays = [
            pc.cast(array, wanted[name]) if array.type != wanted.get(name, array.type) else array
            for name, array in zip(names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _looked_at(self, given: pa.RecordBatch, corrupt: pa.Array | None) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the values, and for each row why it is rejected, or null."""
        reasons = pa.nulls(given.num_rows, pa.string())

        def reject(where: pa.Array, said: pa.Array | str) -> None:
            nonlocal reasons
            if pc.any(where).as_py():
                reasons = pc.if_else(pc.and_(reasons.is_null(), where), said, reasons)

        if corrupt is not None:
            reject(corrupt.is_valid(), "the line cannot be read")
        values = []
        for column, array in zip(self._columns, given.columns, strict=True):
            what = f"{'key column' if column.is_key else 'column'} {column.name!r}"
            if column.is_key:
                reject(array.is_null(), f"{what} is null: a key has none")
            if column.is_parsed:
                assert column.stored is not None
                texts, array = array, parse_texts(array, column.stored)
                shown = pc.utf8_slice_codeunits(texts, 0, _SHOWN_LENGTH)
                said = pc.binary_join_element_wise(f"{what} is {column.stored} and does not take ", shown, "")
                reject(pc.and_(texts.is_valid(), array.is_null()), said)
            values.append(array)
        self._reject_long(values, reject)
        return pa.RecordBatch.from_arrays(values, names=[f"c{at}" for at in range(len(values))]), reasons

    def _reject_long(self, values: Sequence[pa.Array], reject: object) -> None:
        texts = [
            pc.cast(pc.binary_length(array), pa.int64())
            for column, array in zip(self._columns, values, strict=True)
            if column.is_key and is_text(array.type)
        ]
        if texts:
            length = texts[0]
            for more in texts[1:]:
                length = pc.add(length, more)
            too_long = pc.fill_null(pc.greater(length, self._key_bytes_max), False)
            assert callable(reject)
            reject(too_long, f"a key of more than {self._key_bytes_max} bytes: shorten it")

    def _rejected(self, batch: pa.RecordBatch, where: pa.Array, reasons: pa.Array) -> Rejects:
        rows = batch.filter(where)
        texts = _as_json(rows.select([column.name for column in self._columns]))
        if CORRUPT in batch.schema.names:
            lines = rows.column(CORRUPT).to_pylist()
            both = zip(texts, lines, strict=True)
            texts = [text if line is None else row_as_json({"line": line}) for text, line in both]
        return list(zip(reasons.filter(where).to_pylist(), texts, strict=True))

    def _keyed(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with their keys; raise if one of them cannot be a key of the table."""
        encoded = encode_rows(self._codec, [values.column(name) for name in self._key])
        nothing = pa.nulls(values.num_rows, pa.string())
        columns = [*values.columns[:-1], nothing, nothing, encoded]
        return pa.RecordBatch.from_arrays(columns, names=[*values.schema.names[:-1], REASON, REJECTED, ROW])


def _as_json(rows: pa.RecordBatch) -> list[str]:
    """Return rows as they came, as JSON."""
    plain = to_spark(pa.Table.from_batches([rows])).combine_chunks().to_batches()
    texts: list[str] = json_lines(plain[0]).to_pylist()
    return texts
