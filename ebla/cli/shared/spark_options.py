"""What the commands share that may run on Spark: the choice, its address, a progress bar, and what is said without it.

Spark is imported, and started, only when such a command has looked at everything that can be wrong without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

import ebla
from ebla.cli.shared.context import Source
from ebla.extras import needing

if TYPE_CHECKING:
    from ebla.pipeline.spark.engine import SparkStart
    from ebla.pipeline.spark.progress import Report

LOCAL = "local[*]"
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="The Spark to run on: local[*], spark://host:7077, yarn, ...")
]
SparkOption = Annotated[
    bool | None,
    typer.Option("--spark/--no-spark", help="Run on Spark, or in this process.", show_default="by how much there is"),
]
ProgressOption = Annotated[
    bool, typer.Option("--progress", help="Show a progress bar even if standard error is no terminal.")
]


@contextmanager
def needing_spark() -> Iterator[None]:
    """Say what to install if an import inside does not find Spark."""
    with needing("pyspark", "this command runs on Spark and"):
        yield


def spark_start(spark: bool | None, master: str, title: str) -> SparkStart:
    """Return what the options say about where a job runs: --master alone asks for Spark, too."""
    from ebla.pipeline.spark.engine import SparkStart

    if master != LOCAL:
        if spark is False:
            raise ebla.RequestError("--master says which Spark to run on, and --no-spark to run on none: leave one out")
        spark = True
    return SparkStart(spark, master, title, "OFF")


def check_tables(source: Source, tables: Iterable[str] = ()) -> None:
    """Raise `StoreNotFound` or `UnknownTable` before Spark is started, which takes long."""
    from ebla.direct.place import Place

    known = Place.of(source).tables()
    listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "") if known else "no tables yet"
    for table in tables:
        if table == "META" or table.startswith("sys."):
            raise ebla.RequestError(f"{table!r} is a system table, which has no files: `ebla scan {table}` shows it")
        if table not in known:
            raise ebla.UnknownTable(f"there is no table {table!r}: the store has {listed}")


@contextmanager
def progress_bar(title: str, *, force: bool) -> Iterator[Report | None]:
    """Give what draws a bar of the tasks that are done, or None where nobody would see it."""
    with _bar(f"{title}: starting", force=force) as update:
        if update is None:
            yield None
        else:
            # Tasks are known stage by stage: the bar starts anew with every phase.
            yield lambda now: update(f"{title}: {now.phase}", now.tasks_done, now.tasks or None)


@contextmanager
def plain_bar(title: str, *, force: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Give what draws a bar of work that this process does: what it is at, how much is done, and of how much."""
    with _bar(title, force=force) as update:
        yield (lambda text, done, total: None) if update is None else update


@contextmanager
def _bar(title: str, *, force: bool) -> Iterator[Callable[[str, int, int | None], None] | None]:
    if not (force or sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, force_terminal=True if force else None)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # Rows that are printed meanwhile are for whoever reads standard output: a bar takes them over on a terminal only.
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)
