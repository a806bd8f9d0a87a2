"""Giving up a damaged fragment and keeping the rest: by the directory of a store that is closed.

    ebla.salvage("data", file)                       what would be lost; needs no lock, changes nothing
    ebla.salvage("data", file, accept_loss=True)     does it

    look        every table that refers to the file; what of the file can be read        salvage_plan.py
    copy        the blocks that can, into a new file beside it                           fragment_copy.py
    commit      for each table one METADATA transaction: the new file in the place of the old one
    set aside   the old file, to `salvaged/`, when no table refers to it any more: nothing deletes it there

Cut off anywhere, every table has either the old file or the new one; the same command goes on with those that have the
old one. A file that is as it was written is not given up. What is lost is told by the report and in the log of the
program, as a warning of `ebla.client.embedded.salvaging`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ebla.arguments import checked_flag
from ebla.client.embedded.coordination_place import connect_at, is_store, no_store
from ebla.client.embedded.opening import checked_root, new_id
from ebla.client.embedded.owning import owning
from ebla.clock import SystemClock
from ebla.errors import Corruption, EblaError, MissingFile, OutcomeUnknown, RequestError, SchemaError, StoreError, shown
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from ebla.model.keys import KeyCodec
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files, parent_of
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.fragment.fragment_copy import copy_blocks
from ebla.storage.fragment.fragment_format import FragmentInfo
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.tablet.check.inspection import headings, inspect
from ebla.tablet.check.salvage_plan import (
    Condition,
    Loss,
    instead_of,
    look_into,
    losses_of,
    references_to,
    replacements,
)
from ebla.tablet.recovery.open_metadata import open_metadata

__all__ = ["Loss", "SalvageReport", "salvage", "told"]

FRAGMENTS = "fragments/"
ASIDE = "salvaged/"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What is lost with a damaged file, or was if `is_applied`.

    `records` were written to it, `records_kept` of them can be read and are in `new_file`; `aside` is where the damaged
    one lies now. `unread` are tables whose METADATA cannot be read: they may refer to the file, which then stays.
    """

    file: str
    problem: str
    tables: tuple[str, ...]
    records: int
    records_kept: int
    losses: tuple[Loss, ...]
    unread: tuple[str, ...]
    new_file: str | None = None
    aside: str | None = None
    is_applied: bool = False


def salvage(path: str | os.PathLike[str], file: str | os.PathLike[str], *, accept_loss: bool = False) -> SalvageReport:
    """Give up a damaged fragment file, as `verify` names it, and keep what can be read of it.

    Without `accept_loss`, only say what would be lost. All tables that refer to the file change, each in one
    transaction; the store must be closed, else it is `StoreLocked`. Raises `RequestError` if the file is whole, or no
    table refers to it. Bring back the file from a backup instead if you have it.
    """
    root = checked_root(path)
    if not is_store(root):
        raise no_store(root)
    named = _named(file, root)
    if not checked_flag("accept_loss", accept_loss):
        clock = SystemClock()
        with connect_at(root, clock, read_only=True) as coordination:
            files = LocalFiles(root)
            server = open_metadata(coordination, files, clock, new_id, read_only=True)
            return _Salvage(files, server, named).look()
    with owning(root) as owned:
        server = open_metadata(owned.coordination, owned.files, owned.clock, new_id)
        return _Salvage(owned.files, server, named).carry_out()


def _named(file: str | os.PathLike[str], root: Path) -> str:
    """Return the path of a file below the root, however it was given."""
    if not isinstance(file, (str, os.PathLike)) or not os.fspath(file):
        raise RequestError(f"a file is named as `ebla verify` does, fragments/<table>/<id>.parquet, not {shown(file)}")
    given = Path(file)
    for candidate in (given, given.absolute(), given.resolve()):
        for base in (root, root.resolve()):
            if candidate.is_relative_to(base):
                return candidate.relative_to(base).as_posix()
    return given.as_posix()


class _Salvage:
    """One file, and the tables that refer to it."""

    def __init__(self, files: Files, server: MetadataServer, file: str) -> None:
        self._files = files
        self._server = server
        self._file = file
        self._tables: dict[str, TableMetadata] = {}
        self._unread: list[str] = []
        for entry in server.list_tables():
            try:
                metadata = server.refresh(entry.table_id)
            except (Corruption, MissingFile, SchemaError):
                self._unread.append(entry.name)
                continue
            if file in metadata.files():
                self._tables[entry.name] = metadata
        if not self._tables:
            told = f"; METADATA of {', '.join(self._unread)} cannot be read, repair it first" if self._unread else ""
            raise RequestError(f"no table refers to {file}: name a file as `ebla verify --full` does{told}")
        metadata = next(iter(self._tables.values()))
        _, state, refs = next(references_to(metadata, file))
        self._ref: FragmentRef = refs[0]
        self._schema = metadata.schema
        self._is_cells = metadata.schema.group_by_id[state.group].is_cells

    def look(self) -> SalvageReport:
        """Say what would be lost."""
        return self._report(self._condition())

    def carry_out(self) -> SalvageReport:
        """Do it."""
        condition = self._condition()
        report = self._report(condition)
        kept = self._kept(condition)
        done = 0
        try:
            for metadata in self._tables.values():
                self._server.commit(metadata.table_id, replacements(metadata, self._file, kept))
                done += 1
        except EblaError as error:
            # METADATA may refer to it, or come to do so: then it stays.
            if kept is not None and not done and not isinstance(error, OutcomeUnknown):
                with contextlib.suppress(OSError):
                    self._files.delete(kept.file)
            raise
        aside = self._set_aside()
        for loss in report.losses:
            _log.warning("gave up %s: %s", self._file, told(loss))
        _log.warning(
            "gave up %s (%s): %d of %d records were kept%s, tables %s",
            self._file,
            report.problem,
            report.records_kept,
            report.records,
            "" if kept is None else f" in {kept.file}",
            ", ".join(report.tables),
        )
        new_file = None if kept is None else kept.file
        return replace(report, new_file=new_file, aside=aside, is_applied=True)

    def _condition(self) -> Condition:
        condition = look_into(self._files, self._ref, self._schema, is_cells=self._is_cells)
        if condition.problem:
            return condition
        assert condition.fragment is not None, "what is whole can be read"
        for problem in headings(condition.fragment, self._ref):
            raise RequestError(
                f"{self._file} can be read in full, and METADATA describes it wrongly ({problem}): see `ebla repair`"
            )
        raise RequestError(f"{self._file} is whole: nothing is lost, and nothing was changed")

    def _report(self, condition: Condition) -> SalvageReport:
        losses = [
            loss
            for name, metadata in self._tables.items()
            for loss in losses_of(name, metadata, self._file, condition, self._files)
        ]
        return SalvageReport(
            file=self._file,
            problem=condition.problem,
            tables=tuple(self._tables),
            records=self._ref.rows,
            records_kept=condition.records_kept,
            losses=tuple(losses),
            unread=tuple(self._unread),
        )

    def _kept(self, condition: Condition) -> FragmentInfo | None:
        """Write what can be read to a new file, and read that again: it takes the place of what was not."""
        if condition.fragment is None:
            return None
        target = f"{parent_of(self._file)}/{new_id()}.parquet"
        with self._disk():
            kept = copy_blocks(self._files, condition.fragment, condition.kept, target, self._ref.txn)
        problems = list(_problems(self._files, kept, self._ref, KeyCodec(self._schema.key)))
        if problems:
            with contextlib.suppress(OSError):
                self._files.delete(target)
            raise StoreError(f"{target}, a copy of what can be read, is not as it should be: {problems[0]}; report it")
        return kept

    def _set_aside(self) -> str | None:
        """Move the damaged file to where nobody looks for garbage; None if it is not there, or may still be needed."""
        if self._unread or not self._files.exists(self._file):
            return None
        target = ASIDE + self._file.removeprefix(FRAGMENTS)
        with self._disk():
            self._files.make_directory(parent_of(target))
            self._files.replace(self._file, target)
            self._files.sync_directory(parent_of(target))
            self._files.sync_directory(parent_of(self._file))
        return target

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self._file} cannot be copied or moved: {error}: mend the cause, then retry") from error


def _problems(files: Files, kept: FragmentInfo, ref: FragmentRef, codec: KeyCodec) -> Iterator[str]:
    """Yield what is wrong with a file that was just written."""
    try:
        yield from inspect(Fragment(files, kept.file, BlockCache(0), ref.txn, kept.tail), instead_of(ref, kept), codec)
    except EblaError as error:
        yield str(error)


def told(loss: Loss) -> str:
    """Return one line about a loss."""
    line = (
        f"{loss.table}, tablet {loss.tablet}, group {loss.group}: about {loss.records:,} record(s) of keys from "
        f"{loss.first!r} to {loss.last!r}, txns {loss.txn_min} to {loss.txn_max}"
    )
    if loss.older_files:
        line += (
            f"; older versions become visible again: about {loss.older_records:,} record(s) of these keys in "
            f"{loss.older_files:,} file(s)"
        )
    if loss.has_erasures:
        line += "; what they had erased, if older records of it are there, comes back"
    return line
