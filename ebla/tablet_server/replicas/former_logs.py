"""What former runs of a server logged of its replicas: read when a run begins, and carried over into its log.

    log/<server>/log-id     made with the first run; where it is not there, or a log is damaged, another is made
    log/<server>/6, 7       records of replicas in the order in which they were written; read by run 8

A replica that METADATA has in sync, in the log of this id, is there with all that it acknowledged. Should one of the
logs be lost, or not reach as far as it did, the server has another log id from then on, and its replicas learn anew.
The logs stay until all that counts is in the log of the run, and on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ebla.coordination.service import CoordinationService
from ebla.errors import Corruption, MissingFile, StoreError
from ebla.replication.server_log import Key, Record, Replayed, replay
from ebla.storage.files.files import Files
from ebla.storage.log.log_reader import SegmentReading, check_length, check_synced, list_segments
from ebla.storage.log.replica_entry import ReplicaEntry
from ebla.tablet.lead.run import run_name
from ebla.tablet.recovery.server_record import read_extent

__all__ = ["FormerLogs", "read_former_logs"]

_ID = "log-id"

_decode = msgspec.msgpack.Decoder(list[Record]).decode
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FormerLogs:
    """The id of a server's log, and what former runs have of each replica."""

    log_id: str
    found: Mapping[Key, Replayed]


def read_former_logs(
    files: Files, coordination: CoordinationService, server: str, start: int, new_id: Callable[[], str]
) -> FormerLogs:
    """Return what the runs before `start` have left. The caller holds the lease of the server."""
    log_id = _read_id(files, server)
    if log_id is not None:
        try:
            return FormerLogs(log_id, replay(enumerate(_records(files, coordination, server, start))))
        except (Corruption, MissingFile) as error:
            _log.error("a log of this server is not whole, its replicas learn anew: %s", error)
    log_id = new_id()
    _write_id(files, server, log_id)
    return FormerLogs(log_id, {})


def _records(files: Files, coordination: CoordinationService, server: str, start: int) -> Iterator[Record]:
    for number in _former_starts(files, server, start):
        run = run_name(server, number)
        extent = read_extent(coordination, files, run)
        paths = list_segments(files, f"log/{run}", extent)
        before = None
        for path in paths:
            reading = SegmentReading(path, files.read(path), is_last=path == paths[-1])
            if reading.header is not None and before is not None:
                check_length(before, reading.header.sequence, reading.header.previous_bytes)
            for _, entry in reading.all_entries():
                if isinstance(entry, ReplicaEntry):
                    yield from _decode(entry.records)
            before = reading.info()
            check_synced(before, extent)


def _former_starts(files: Files, server: str, start: int) -> list[int]:
    names = [path.rpartition("/")[2] for path in files.list_directories(f"log/{server}")]
    return sorted(int(name) for name in names if name.isdecimal() and int(name) < start)


def _read_id(files: Files, server: str) -> str | None:
    try:
        return files.read(f"log/{server}/{_ID}").decode() or None
    except FileNotFoundError:
        return None


def _write_id(files: Files, server: str, log_id: str) -> None:
    path, new = f"log/{server}/{_ID}", f"log/{server}/{_ID}.new"
    try:
        if files.exists(new):
            files.delete(new)
        with files.create(new) as file:
            file.write(log_id.encode())
            file.sync()
        files.replace(new, path)
        files.sync_directory(f"log/{server}")
    except OSError as error:
        raise StoreError(f"the log of this server cannot be begun: {error}: mend that, then start again") from error
