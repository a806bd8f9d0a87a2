"""Stats: how the records of a table are spread over its keys, what is hot, and where it should be cut.

    marks (key_survey.py) --> buckets, hot ranges, cuts (histogram.py) --> TableStats

**Hot** means written to lately, as the txns of the records tell: the newest record of a row that was written a thousand
times counts once, and who reads is not on record. So `commits` stands beside it: how many commits have touched a tablet
since it was made.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from ebla.arguments import checked_callback
from ebla.client.database import Database
from ebla.direct.holding import Holding
from ebla.direct.place import Place
from ebla.errors import RequestError, shown
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.pipeline.spark.progress import Report
from ebla.pipeline.statistics.histogram import Bucket, divide, hot_ranges
from ebla.pipeline.statistics.key_survey import RECENT_SECONDS, KeySurvey, check_number, check_target, key_of, survey_of

__all__ = ["KeyBucket", "TableStats", "TabletStats", "stats"]

BUCKETS = 20
BUCKETS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class KeyBucket:
    """The records of the keys from `first` up to and not including `last`; None has no end. All are about right."""

    first: Any
    last: Any
    records: int
    bytes: int
    recent: int


@dataclass(frozen=True, slots=True)
class TabletStats:
    """A tablet: its keys, what it has of each group, and how many commits have touched it since it was made."""

    id: str
    first: Any
    last: Any
    records: int
    bytes: int
    recent: int
    files: int
    commits: int
    group_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class TableStats:
    """How the records of a table are spread. `hot` are ranges with over twice their share of what is `recent`.

    `unflushed` of the records are in memory and in the log only. `splits` are the keys at which to cut the tablets, as
    it was asked.
    """

    table: str
    records: int
    bytes: int
    recent: int
    recent_seconds: float
    unflushed: int
    files: int
    tablets: tuple[TabletStats, ...]
    buckets: tuple[KeyBucket, ...]
    hot: tuple[KeyBucket, ...]
    splits: tuple[Any, ...]
    seconds: float


def stats(
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    tablets: int | None = None,
    tablet_bytes: int | None = None,
    buckets: int = BUCKETS,
    recent_seconds: float = RECENT_SECONDS,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> TableStats:
    """Return how the records of a table are spread over its keys, and where to cut it.

    `source` is an open database, or the directory of a store that any process may have open. The splits that are
    suggested make it so many `tablets`, or tablets of at most about `tablet_bytes` (by default, what the store itself
    would split at). `recent` is what was written in the last `recent_seconds`. Raises `UnknownTable`.
    """
    began = time.monotonic()
    check_target(tablets, tablet_bytes)
    check_number("buckets", buckets, 1, BUCKETS_MAX)
    checked_callback("progress", progress)
    is_number = isinstance(recent_seconds, (int, float)) and not isinstance(recent_seconds, bool)
    if not is_number or not 0 < recent_seconds < 1e12:
        raise RequestError(f"recent_seconds is a number of seconds greater than 0, not {shown(recent_seconds)}")
    Place.of(source)
    with Holding() as holding:
        found = survey_of(source, table, recent_seconds, holding)
        found.look(spark, progress)
        codec = found.codec
        divided = divide(found.marks, buckets) if found.marks.rows else []
        whole = found.marks.bucket(KeyRange())
        return TableStats(
            table=table,
            records=whole.records,
            bytes=whole.bytes,
            recent=whole.recent,
            recent_seconds=float(recent_seconds),
            unflushed=found.unflushed,
            files=len(found.files),
            tablets=tuple(_tablet(found, one) for one in found.tablets),
            buckets=tuple(_with_keys(bucket, codec) for bucket in divided),
            hot=tuple(_with_keys(bucket, codec) for bucket in hot_ranges(divided)),
            splits=tuple(key_of(row, codec) for row in found.splits(tablets, tablet_bytes)),
            seconds=time.monotonic() - began,
        )


def _tablet(found: KeySurvey, tablet: TabletMetadata) -> TabletStats:
    own = _with_keys(found.marks.bucket(tablet.range), found.codec)
    return TabletStats(
        id=tablet.id,
        first=own.first,
        last=own.last,
        records=own.records,
        bytes=own.bytes,
        recent=own.recent,
        files=len({ref.file for state in tablet.groups for ref in state.fragments}),
        commits=found.state.tablet(tablet.id).index,
        group_bytes={group.name: found.bytes_of(group.id, tablet) for group in found.schema.groups},
    )


def _with_keys(bucket: Bucket, codec: KeyCodec) -> KeyBucket:
    first = None if bucket.rows.first == b"" else key_of(bucket.rows.first, codec)
    last = None if bucket.rows.last is None else key_of(bucket.rows.last, codec)
    return KeyBucket(first, last, bucket.records, bucket.bytes, bucket.recent)
