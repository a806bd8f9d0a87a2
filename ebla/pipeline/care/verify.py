"""Verifying tables: every fragment is read in full, by many tasks, and held against its footer and its reference.

    METADATA --> files, each with its reference --> a task for some of them: `tablet.inspection` --> findings
             --> what is missing is looked up again: a file that no table names any more is no finding

Nothing is changed. A finding says what is wrong, and what would put it right. Files that no table names are not looked
for here: `gc` lists them, and so does `ebla.verify`, as orphans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ebla.arguments import checked_callback
from ebla.client.database import Database
from ebla.direct.fragments import fragment_at, inspect, pack_schema, unpack_schema
from ebla.direct.place import Place, named_tables
from ebla.errors import Corruption, EblaError, MissingFile, SchemaError, TooManyFiles, UnknownTable
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.model.keys import KeyCodec
from ebla.pipeline.spark.engine import SparkChoice, choose_engine
from ebla.pipeline.spark.portions import portions_of
from ebla.pipeline.spark.progress import Report

__all__ = ["Finding", "VerifyReport", "verify"]

MIB = 1 << 20
TASK_BYTES = 64 * MIB

REPAIRS = {
    "missing": "restore {file} from a backup or a copy of the store, else `ebla salvage` gives it up; reads of these "
    "keys fail until then",
    "damaged": "restore {file} from a backup or a copy of the store, else `ebla salvage` keeps what can be read; reads "
    "of its damaged blocks fail until then",
    "metadata": "see `ebla verify` and `ebla repair`; if they cannot mend it, `ebla restore` the table from a backup",
    "wrong": "compact the table if its rows read well, else restore {file} from a backup; and report it as a fault",
}


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be, and what would put it right."""

    table: str
    file: str
    kind: str  # metadata, missing, damaged or wrong
    problem: str
    tablets: tuple[str, ...]
    repair: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what was found."""

    tables: tuple[str, ...]
    files: int
    rows: int
    bytes: int
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A file to be looked at, as METADATA knows it."""

    table: str
    schema: bytes  # packed
    ref: FragmentRef
    tablets: tuple[str, ...]


def verify(
    source: Database | str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    *,
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> VerifyReport:
    """Read every fragment of some tables, or of all, and report what is not as it should be.

    `source` is a database that this process has open, or the root of a store that anybody may have open. Rows that were
    not flushed yet are in the log, which has checksums of its own. `spark` says where the work is done: a session or
    True on Spark, False in this process; None lets the size decide. Raises `UnknownTable` for a table that is not
    there.
    """
    began = time.monotonic()
    checked_callback("progress", progress)
    place = Place.of(source)
    tables = named_tables(tables)
    names: list[str] = []
    suspects: list[_Suspect] = []
    findings: list[Finding] = []
    for name in place.tables() if tables is None else tables:
        try:
            metadata = place.metadata(name)
        except (Corruption, MissingFile, SchemaError) as error:
            findings.append(Finding(name, "", "metadata", str(error), (), REPAIRS["metadata"]))
        else:
            if metadata is None:
                if tables is None:
                    continue  # dropped meanwhile
                raise UnknownTable(f"there is no table {name!r}: check the name")
            suspects += _suspects(name, metadata)
        names.append(name)
    engine = choose_engine(spark, sum(suspect.ref.bytes for suspect in suspects), "verify")
    portions = portions_of(suspects, lambda one: one.ref.bytes, TASK_BYTES)
    if portions:
        task = partial(_look, place.root)
        found = engine.run(task, portions, group=f"ebla-verify-{time.time_ns()}", phase="verifying", report=progress)
        looked = [finding for portion in found for finding in portion]
        findings += [finding for finding in looked if _is_still_named(place, finding)]
    return VerifyReport(
        tables=tuple(names),
        files=len(suspects),
        rows=sum(suspect.ref.rows for suspect in suspects),
        bytes=sum(suspect.ref.bytes for suspect in suspects),
        findings=tuple(sorted(findings, key=lambda finding: (finding.table, finding.file, finding.problem))),
        seconds=time.monotonic() - began,
    )


def _suspects(name: str, metadata: TableMetadata) -> list[_Suspect]:
    """Return every file of a table once, however many tablets refer to it."""
    refs: dict[str, FragmentRef] = {}
    tablets: dict[str, list[str]] = {}
    for tablet in metadata.tablets:
        for state in tablet.groups:
            for ref in state.fragments:
                refs.setdefault(ref.file, ref)
                tablets.setdefault(ref.file, []).append(tablet.id)
    schema = pack_schema(metadata.schema)
    return [_Suspect(name, schema, ref, tuple(dict.fromkeys(tablets[file]))) for file, ref in refs.items()]


def _is_still_named(place: Place, finding: Finding) -> bool:
    """Tell whether a table still names a file: it may have been replaced, and removed, since the job began."""
    if finding.kind != "missing":
        return True
    metadata = place.metadata(finding.table)
    return metadata is not None and finding.file in metadata.files()


# --- in a task -----------------------------------------------------------------------------------


def _look(root: str, suspects: Sequence[_Suspect]) -> list[Finding]:
    return [finding for suspect in suspects for finding in look_at(root, suspect)]


def look_at(root: str, suspect: _Suspect) -> Iterator[Finding]:
    """Yield what is wrong with a file."""
    ref = suspect.ref

    def finding(kind: str, problem: str) -> Finding:
        return Finding(suspect.table, ref.file, kind, problem, suspect.tablets, REPAIRS[kind].format(file=ref.file))

    try:
        fragment = fragment_at(root, ref)
        size = Path(root, ref.file).stat().st_size
        if size != ref.bytes:
            yield finding("wrong", f"it has {size} bytes, and METADATA says {ref.bytes}")
        for problem in inspect(fragment, ref, KeyCodec(unpack_schema(suspect.schema).key)):
            yield finding("wrong", problem)
    except MissingFile:
        yield finding("missing", "the file is not there")
    except TooManyFiles:
        raise
    except (EblaError, OSError) as error:
        yield finding("damaged", str(error))
