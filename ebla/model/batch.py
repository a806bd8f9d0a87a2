"""Rows on their way in: what a client hands to the store, before keys are encoded and names become ids.

    columns   user | day | name | age | _set        one line per row with typed columns, or a row that only shall exist
    cells     user | day | family | qualifier | value [| timestamp]                       one line per cell

Both halves carry the key columns under their own names and in their exact types, never null. They are applied as one
commit. Of two lines for the same thing, the later one wins; so the order of lines is part of the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["PutBatch"]


@dataclass(frozen=True, slots=True)
class PutBatch:
    """One put as a client sends it; a half that is empty is None.

    `columns`: the key columns, any typed columns of columns groups under their names and in their stored types, and
    where rows differ in what they set, ``_set: string``, the field ids of the typed columns that the row sets, with
    spaces between (null = all typed columns of this batch; empty = none: the row is only made to exist).

    `cells`: the key columns, ``family: string``, ``qualifier: string``, ``value: binary``, none of them null, and
    where the user gave versions, ``timestamp: int64`` in microseconds (null = the time of the commit).
    """

    columns: pa.RecordBatch | None = None
    cells: pa.RecordBatch | None = None
