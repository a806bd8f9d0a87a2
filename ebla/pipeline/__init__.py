"""Bulk work: tables loaded, read, written and exported by many tasks at once, on Spark or in this process (`engine`).

    session        a Spark session with what Ebla needs; a Java is found or brought along
    load           files, a DataFrame or Arrow into a table, in one commit
    merge          a table changed by the rows of another: update, insert, delete, in one commit
    update         columns set where a condition is true
    delete         rows erased where a condition is true
    attach         the tables of a store as views of a database in a session, fresh for every query
    scan           a table as a DataFrame, at one snapshot
    export         a snapshot as plain Parquet, CSV or JSON
    backup         tables at one txn, copied file by file; full or incremental
    restore        a table from a backup, new or in place
    check_backup   all of a backup read and compared, without restoring it
    list_backups   what lies in a directory of backups
    prune_backups  backups removed that nobody wants, nor another backup needs
    changes        what changed in a table between two txns, as a DataFrame or as Arrow
    replay         the log of a store that died, sorted into fragments
    mirror         a table kept as another one is, by a stream of its changes
    stream_into    batches of a stream into a table, each once, for a foreachBatch of your own
    stats          how the keys of a table are spread, what is hot, and where to cut it
    presplit       a table cut into tablets by that
    compact        the files of a table merged, as the store itself does it, by many tasks
    gc             files that no table names, found by many tasks, and removed
    verify         every fragment read and held against what is said about it
    register       format("ebla") for a session of your own: read, write, readStream, writeStream

Jobs plan from METADATA and the root of a store. Tasks read and write fragments directly; nothing goes through the log;
what a job made becomes visible by one METADATA transaction, or not at all.

A name is imported when it is first used, so that `import ebla.pipeline` needs no Spark, and neither do those jobs that
run without it; the others raise `MissingExtra` where it is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ebla.extras import needing

if TYPE_CHECKING:
    from ebla.pipeline.attaching.attach import Attachment, attach
    from ebla.pipeline.backups.backup import BackupSummary, backup
    from ebla.pipeline.backups.checking import BackupCheck, check_backup
    from ebla.pipeline.backups.manifest import Backups, list_backups, remove_unfinished
    from ebla.pipeline.backups.pruning import PruneReport, prune_backups
    from ebla.pipeline.backups.restore import RestoreSummary, restore
    from ebla.pipeline.care.compact import CompactSummary, compact
    from ebla.pipeline.care.garbage import GarbageReport, gc
    from ebla.pipeline.care.verify import Finding, VerifyReport, verify
    from ebla.pipeline.change_feed.changes import changes
    from ebla.pipeline.inputs.input_files import InputFiles
    from ebla.pipeline.loading.load import LoadSummary, load
    from ebla.pipeline.merging.change_commit import ChangeSummary
    from ebla.pipeline.merging.merge import delete, merge, update
    from ebla.pipeline.replaying.replay import ReplaySummary, replay
    from ebla.pipeline.scanning.export import ExportSummary, export
    from ebla.pipeline.scanning.scan import scan
    from ebla.pipeline.spark.progress import JobProgress
    from ebla.pipeline.spark.session import session
    from ebla.pipeline.spark_format import register
    from ebla.pipeline.statistics.presplit import PresplitSummary, presplit
    from ebla.pipeline.statistics.stats import TableStats, stats
    from ebla.pipeline.streaming.mirror import StreamSummary, mirror
    from ebla.pipeline.streaming.stream_into import stream_into

__all__ = [
    "Attachment",
    "BackupCheck",
    "BackupSummary",
    "Backups",
    "ChangeSummary",
    "CompactSummary",
    "ExportSummary",
    "Finding",
    "GarbageReport",
    "InputFiles",
    "JobProgress",
    "LoadSummary",
    "PresplitSummary",
    "PruneReport",
    "ReplaySummary",
    "RestoreSummary",
    "StreamSummary",
    "TableStats",
    "VerifyReport",
    "attach",
    "backup",
    "changes",
    "check_backup",
    "compact",
    "delete",
    "export",
    "gc",
    "list_backups",
    "load",
    "merge",
    "mirror",
    "presplit",
    "prune_backups",
    "register",
    "remove_unfinished",
    "replay",
    "restore",
    "scan",
    "session",
    "stats",
    "stream_into",
    "update",
    "verify",
]

# Where each name lives.
_HOMES = {
    "Attachment": "attaching.attach",
    "BackupCheck": "backups.checking",
    "BackupSummary": "backups.backup",
    "Backups": "backups.manifest",
    "ChangeSummary": "merging.change_commit",
    "CompactSummary": "care.compact",
    "ExportSummary": "scanning.export",
    "Finding": "care.verify",
    "GarbageReport": "care.garbage",
    "InputFiles": "inputs.input_files",
    "JobProgress": "spark.progress",
    "LoadSummary": "loading.load",
    "PresplitSummary": "statistics.presplit",
    "PruneReport": "backups.pruning",
    "ReplaySummary": "replaying.replay",
    "RestoreSummary": "backups.restore",
    "StreamSummary": "streaming.mirror",
    "TableStats": "statistics.stats",
    "VerifyReport": "care.verify",
    "attach": "attaching.attach",
    "backup": "backups.backup",
    "changes": "change_feed.changes",
    "check_backup": "backups.checking",
    "compact": "care.compact",
    "delete": "merging.merge",
    "export": "scanning.export",
    "gc": "care.garbage",
    "list_backups": "backups.manifest",
    "load": "loading.load",
    "merge": "merging.merge",
    "mirror": "streaming.mirror",
    "presplit": "statistics.presplit",
    "prune_backups": "backups.pruning",
    "register": "spark_format",
    "remove_unfinished": "backups.manifest",
    "replay": "replaying.replay",
    "restore": "backups.restore",
    "scan": "scanning.scan",
    "session": "spark.session",
    "stats": "statistics.stats",
    "stream_into": "streaming.stream_into",
    "update": "merging.merge",
    "verify": "care.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing("pyspark", f"ebla.pipeline.{name}"):
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
