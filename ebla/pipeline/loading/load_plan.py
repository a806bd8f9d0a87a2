"""How a load divides its work: how many partitions, from which sample of keys, and how many tablets a new table gets.

    a small input            one partition, no sample: nothing is computed twice
    any other                as many partitions as cores, or one for each so many bytes of input, if that is more;
                             the key columns of a sample of rows are computed first, as Spark's own range partitioner
                             would do

How large an input is, Spark estimates from its files. Where it cannot tell, there are as many partitions as cores; rows
are sorted on disk where they do not fit into memory, and files are ended at a size, so this is only a matter of speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebla.model.schema import Column
from ebla.pipeline.loading.cuts import choose_cuts, key_of_cut
from ebla.settings import MIB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Shares", "count_partitions", "input_bytes", "sample_fraction", "tablet_keys"]

SMALL_INPUT_BYTES = 8 * MIB
PARTITION_BYTES = 64 * MIB
TABLET_BYTES = 512 * MIB
PARTITIONS_MAX = 10_000
# A guess, to turn bytes of input into rows; the sample is only so much larger or smaller if it is wrong.
ROW_BYTES = 64
SAMPLE_ROWS_PER_PARTITION = 2_000
SAMPLE_FRACTION_UNKNOWN = 0.01
# What Spark says of an input that it knows nothing about is close to the largest number it has.
_UNKNOWN_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Shares:
    """How the rows of a load are to be shared out: about how many bytes there are, how many partitions, some keys."""

    input_bytes: int | None
    partitions: int
    sample: list[bytes]


def input_bytes(frame: DataFrame) -> int | None:
    """Return about how many bytes the input of a DataFrame has, as Spark's planner estimates it; None if it cannot."""
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()
        estimate = int(str(plan.stats().sizeInBytes()))
    except Exception:  # a session without a JVM at hand, or another version of Spark: it was only a hint
        return None
    return estimate if estimate < _UNKNOWN_BYTES else None


def count_partitions(bytes_: int | None, parallelism: int, given: int | None) -> int:
    """Return into how many partitions the rows are to be divided."""
    if given is not None:
        return min(given, PARTITIONS_MAX)
    if bytes_ is None:
        return parallelism
    if bytes_ <= SMALL_INPUT_BYTES:
        return 1
    return min(PARTITIONS_MAX, max(parallelism, -(-bytes_ // PARTITION_BYTES)))


def sample_fraction(bytes_: int | None, partitions: int) -> float:
    """Return which share of the rows is to be looked at to choose cuts."""
    if bytes_ is None:
        return SAMPLE_FRACTION_UNKNOWN
    return min(1.0, SAMPLE_ROWS_PER_PARTITION * partitions * ROW_BYTES / max(1, bytes_))


def tablet_keys(bytes_: int | None, key: Sequence[Column], sample: Sequence[bytes]) -> list[tuple[object, ...]]:
    """Return the keys at which a new table for so much input is cut into tablets."""
    tablets = (bytes_ or 0) // TABLET_BYTES
    if tablets < 2:
        return []
    found = [key_of_cut(key, row) for row in choose_cuts([], sample, tablets)]
    return [values for values in found if values is not None]
