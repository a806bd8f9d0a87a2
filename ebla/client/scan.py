"""A scan as a user holds it: nothing is read until it is iterated or turned into something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from ebla.client.frames import pandas_frame, polars_frame
from ebla.client.staying import StaysHere
from ebla.errors import RequestError
from ebla.model.keys import KeyCodec
from ebla.model.projection import spread
from ebla.model.python_values import python_rows
from ebla.rows.row import beyond_python
from ebla.service.service import RowStream

DICT_ROWS = 1_024


class Position(NamedTuple):
    """How far a scan has come: the txn it reads at, and the key of the last row it gave (None: none yet).

    A plain value that can be stored or sent elsewhere: ``table.scan(..., resume=position)`` goes on right after it. The
    key is the row's encoding as bytes where Python has no such value, as with nanoseconds in a time of day.
    """

    txn: int
    key: tuple[Any, ...] | bytes | None


class Scan(StaysHere):
    """Rows of a table in key order, at one txn.

    Iterate it for dicts, or take it as Arrow, pandas or polars. Each use reads the rows anew, at the same txn.
    `position` says how far the latest use has come.
    """

    def __init__(
        self,
        stream: RowStream,
        codec: KeyCodec,
        resumed_after: tuple[Any, ...] | bytes | None = None,
        *,
        is_ordered: bool = True,
    ) -> None:
        # Set once.
        self._stream = stream
        self._is_ordered = is_ordered
        self._codec = codec
        # The key of the last row that was given out, or the batch it was in, of which it is made when asked for.
        self._last: tuple[Any, ...] | bytes | pa.RecordBatch | None = resumed_after
        self._last_at = 0
        self._last_row: bytes | None = None  # encoded, if it was given out later than that

    def __repr__(self) -> str:
        names = ", ".join(self.schema.names)
        return f"<ebla.Scan of {names} at txn {self.txn}: iterate it, or to_arrow(), to_pandas(), to_polars(), count()>"

    @property
    def txn(self) -> int:
        """The txn of the rows; of a scan that follows newer commits (`latest`), that of the rows read last."""
        return self._stream.txn

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the answer."""
        return self._stream.projection.arrow_schema

    @property
    def position(self) -> Position:
        """Where to go on later with `resume`: after the last batch or row that was given out."""
        if not self._is_ordered:
            raise RequestError("rows that come in any order have no last one: scan with ordered=True for a position")
        if self._last_row is not None:
            self._last, self._last_row = self._codec.shown_exactly(self._last_row), None
        elif isinstance(self._last, pa.RecordBatch):
            last = self._last.slice(self._last_at, 1).select(self._stream.projection.schema.key_names)
            self._last = self._codec.shown_exactly(self._codec.encode_arrays(last.columns)[0].as_py())
        return Position(self.txn, self._last)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches of bounded size, in key order."""
        for table in self._stream.tables(whole=False):
            for batch in table.to_batches(max_chunksize=self._stream.batch_rows):
                self._last, self._last_at = batch, batch.num_rows - 1
                yield batch

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        table = pa.concat_tables([self.schema.empty_table(), *self._stream.tables(whole=True)])
        if table.num_rows:
            last = table.select(self._stream.projection.schema.key_names).slice(table.num_rows - 1)
            self._last, self._last_at = last.to_batches()[0], 0
        return table

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame, every value as it is stored. Needs the extra ``ebla[frames]``.

        Columns that numpy has no exact form of, such as integers with nulls, are of pandas' nullable types.
        """
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame. Needs the extra ``ebla[frames]``."""
        return polars_frame(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the rows to whatever reads Arrow streams: ``pyarrow.table(scan)``, ``duckdb.sql("from scan")``."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches()).__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Return the number of rows, reading no more than it takes to tell."""
        return self._stream.count()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        few = self._stream.few_rows()
        if few is not None:
            for self._last_row, row in few:
                yield row
            return
        projection = self._stream.projection
        is_plain = projection.versions == 1 and all(output.kind == "typed" for output in projection.outputs)
        for table in self._stream.tables(whole=False):
            for batch in table.to_batches(max_chunksize=DICT_ROWS):
                for at, row in enumerate(_dicts(batch, projection.may_lose_times)):
                    self._last, self._last_at = batch, at
                    yield row if is_plain else spread(row, projection)


def _dicts(batch: pa.RecordBatch, check_times: bool) -> list[dict[str, Any]]:
    try:
        return python_rows(batch, check_times=check_times)
    except OverflowError as reason:
        raise beyond_python(reason) from None
