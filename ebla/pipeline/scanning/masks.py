"""Masks as Spark sees them: a condition on the number of a row in its file.

    which file    _metadata.file_size, as long as no two files of a read have the same one; else the name
    which row     _metadata.row_index                   Parquet's own: nothing is read for it
    few runs      WHEN <file> THEN row_index < 700 OR row_index >= 900
    many          WHEN <file> THEN bit (row_index & 63) of word (row_index >> 6) + <where its mask begins>

The words of all masks are one array, the value of a scalar subquery: it reaches every task once, and compiled code
looks up one bit of it for each row. What can be said in one text is, for each call of the JVM counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from ebla.errors import MissingFile
from ebla.pipeline.scanning.layers import WORD_BITS, Mask
from ebla.pipeline.spark.session import local_frame

__all__ = ["runs_of", "unmasked"]

# With more runs than this, one bit is looked up instead of them.
RUNS_MAX = 16

_ALL_SET = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_FIRST_BIT = np.uint64(1)
_LAST_BIT = np.uint64(WORD_BITS - 1)


def unmasked(rows: DataFrame, root: str, files: Sequence[str], masks: Mapping[str, Mask]) -> DataFrame:
    """Leave the rows that are masked out of `rows`, which Spark reads from `files`. Some of these have masks."""
    try:
        sizes = {file: Path(root, file).stat().st_size for file in files}
    except FileNotFoundError as error:
        raise MissingFile(f"the fragment {error.filename} went while the scan was planned: plan it anew") from None
    # Which file a row comes from is quicker told by a number than by a name.
    by_size = len(set(sizes.values())) == len(sizes)
    of_file = "_metadata.file_size" if by_size else "_metadata.file_name"
    named = {file: str(sizes[file]) if by_size else repr(Path(file).name) for file in masks}
    runs = {file: runs_of(mask, RUNS_MAX) for file, mask in masks.items()}
    if all(own is not None for own in runs.values()):
        conditions = {
            file: " AND ".join(_outside(first, last) for first, last in own or ()) for file, own in runs.items()
        }
        whens = " ".join(f"WHEN {named[file]} THEN {condition}" for file, condition in conditions.items())
        return rows.where(f"CASE {of_file} {whens} ELSE TRUE END")
    words = pa.array([np.concatenate(list(masks.values()))], pa.list_(pa.int64()))
    held = local_frame(rows.sparkSession, pa.table({"words": words})).scalar()
    bit = F.expr(f"int(_metadata.row_index & {WORD_BITS - 1})")
    is_left, begin = F.lit(True), 0
    for file, mask in masks.items():
        own = F.getbit(F.get(held, F.expr(f"int(shiftright(_metadata.row_index, 6)) + {begin}")), bit) == 0
        # One file alone need not be told from others.
        is_left = own if len(files) == 1 else F.when(F.expr(f"{of_file} = {named[file]}"), own).otherwise(is_left)
        begin += len(mask)
    return rows.where(is_left)


def _outside(first: int, last: int) -> str:
    return f"(_metadata.row_index < {first}L OR _metadata.row_index >= {last}L)"


def runs_of(mask: Mask, runs_max: int) -> list[tuple[int, int]] | None:
    """Return the runs of bits that are set, as begin and end; None if they are more than `runs_max`."""
    words = mask.view(np.uint64)
    # Only words that have both, and neighbours of which one ends as the other does not begin, are looked at bit by bit.
    mixed = np.flatnonzero((words != 0) & (words != _ALL_SET))
    begins, ends = words & _FIRST_BIT, words >> _LAST_BIT
    edges = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    if len(mixed) + len(edges) > 2 * runs_max:
        return None
    bits = np.unpackbits(words[mixed].view(np.uint8).reshape(-1, WORD_BITS // 8), axis=1, bitorder="little")
    rows, columns = np.nonzero(bits[:, 1:] != bits[:, :-1])
    bounds = [*(mixed[rows] * WORD_BITS + columns + 1).tolist(), *(edges * WORD_BITS).tolist()]
    if len(words) and begins[0]:
        bounds.append(0)
    if len(words) and ends[-1]:
        bounds.append(len(words) * WORD_BITS)
    bounds.sort()
    return None if len(bounds) > 2 * runs_max else list(zip(bounds[::2], bounds[1::2], strict=True))
