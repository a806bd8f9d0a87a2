"""A scan as a user holds it: nothing is read until it is iterated or turned into something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ebla.tablet.projection import Projection, spread

DICT_ROWS = 1_024


class Scan:
    """Rows of a table in key order, at one txn.

    Iterate it for dicts, or take it as Arrow, pandas or polars. Each use reads the rows anew, at the same txn.
    """

    def __init__(
        self, batches: Callable[[], Iterator[pa.RecordBatch]], projection: Projection, txn: int, batch_rows: int
    ) -> None:
        self._batches = batches
        self._projection = projection
        self._batch_rows = batch_rows
        self.txn = txn

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the answer."""
        return self._projection.arrow_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches of bounded size, in key order."""
        for batch in self._batches():
            for begin in range(0, batch.num_rows, self._batch_rows):
                yield batch.slice(begin, self._batch_rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return pa.Table.from_batches(self._batches(), self.schema)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self._batches())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches():
            for begin in range(0, batch.num_rows, DICT_ROWS):
                for row in batch.slice(begin, DICT_ROWS).to_pylist():
                    yield spread(row, self._projection)
