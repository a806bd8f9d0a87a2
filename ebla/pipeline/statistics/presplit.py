"""Presplit: a table cut into tablets where its records are, or where those of a coming load will be.

marks (key_survey.py) --> pieces of each tablet --> rows to cut at (histogram.py) --> one split after the other
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebla.arguments import checked_callback, checked_flag
from ebla.client.database import Database, service_of
from ebla.client.embedded.opening import open_alone
from ebla.direct.holding import Holding
from ebla.direct.opens import TASK_SETTINGS, opened
from ebla.direct.place import Place
from ebla.errors import ReadOnly, RequestError
from ebla.pipeline.spark.progress import Report
from ebla.pipeline.statistics.key_survey import RECENT_SECONDS, check_target, key_of, sampled, survey_of
from ebla.service.requests import Split

__all__ = ["PresplitSummary", "presplit"]


@dataclass(frozen=True, slots=True)
class PresplitSummary:
    """The keys at which a table was cut, or would be in a dry run, and how many tablets it had and has."""

    table: str
    splits: tuple[Any, ...]
    tablets_before: int
    tablets: int
    dry_run: bool
    seconds: float


def presplit(
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    tablets: int | None = None,
    tablet_bytes: int | None = None,
    frame: DataFrame | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> PresplitSummary:
    """Cut a table into so many `tablets`, or into tablets of at most about `tablet_bytes`, where its records are.

    With a `frame` of rows that are to be loaded, a sample of their keys counts too, so that a table can be cut before
    it has anything. Tablets are only cut, never joined; a key that fills a tablet cannot be divided. Every cut is a
    transaction of its own, and copies no row: an interrupted run leaves fewer cuts, and can be run again.

    Raises `UnknownTable`, `CannotSplit` if the table is fixed, and `StoreLocked` if another process has the store open
    for writing: then run it there, or as a `dry_run`, which changes nothing.
    """
    began = time.monotonic()
    if tablets is None and tablet_bytes is None:
        raise RequestError("say into how many tablets to cut, or of how many bytes each")
    checked_callback("progress", progress)
    dry_run = checked_flag("dry_run", dry_run)
    check_target(tablets, tablet_bytes)
    Place.of(source)
    if frame is not None:
        spark = spark or frame.sparkSession
    with opened(source, TASK_SETTINGS) if dry_run else _writing(source) as database, Holding() as holding:
        found = survey_of(database, table, RECENT_SECONDS, holding)
        found.look(spark, progress, sampled(frame, found.schema, tablets))
        rows = found.splits(tablets, tablet_bytes)
        if not dry_run:
            serving = service_of(database).table(table)
            for row in rows:
                serving.carry_out(Split(row))
        before = len(found.tablets)
        keys = tuple(key_of(row, found.codec) for row in rows)
        return PresplitSummary(table, keys, before, before + len(rows), dry_run, time.monotonic() - began)


@contextlib.contextmanager
def _writing(source: Database | str | os.PathLike[str]) -> Iterator[Database]:
    if isinstance(source, Database):
        if source.read_only:
            raise ReadOnly("the store was opened read-only: open it without read_only to cut a table")
        yield source
        return
    with open_alone(source, create=False) as database:
        yield database
