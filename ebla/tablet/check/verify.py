"""Verifying a store against its files, and repairing METADATA: reads, and carries out what `metadata.check` decides.

    verify    every name -> the table that it means, and back (verify_names.py)           -> findings
              every table -> its METADATA, well-formed or not -> every file that it names -> findings
              the log -> what is on record of it, METADATA at its epochs (verify_log.py)  -> findings
              every file that nobody names                                                -> findings (orphans)
    repair    the same, one change of the names, and one METADATA transaction for each table that can be mended

Reading needs no lock. A table that changes meanwhile is looked at again, so that what a writer does is not taken for
damage. Repairing is for the owner of the store; what it changes is compared and set, so that it may be open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import (
    Corruption,
    EblaError,
    FormatTooNew,
    MissingFile,
    SchemaError,
    StoreError,
    StoreNotFound,
    TooManyFiles,
    Unavailable,
    UnknownTable,
)
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.places import stores_at
from ebla.metadata.values.check import Examination, FileFacts, Finding, examine
from ebla.metadata.values.table_config import TableConfig, config_path, encode_config
from ebla.metadata.values.table_metadata import FragmentRef, InvalidMetadata, TableMetadata
from ebla.metadata.values.transaction_file import SnapshotRecord, encode
from ebla.retry import RACES
from ebla.service.reports import VerifyReport
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import FileInfo, Files
from ebla.storage.fragment.fragment_format import Tail
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.log.log_extent import LogExtent
from ebla.tablet.check.verify_log import Positions, examine_log, read_positions
from ebla.tablet.check.verify_names import NamesVerifier, SeenNames
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.garbage.lost_tables import look_at_strangers, lost, saved_metadata
from ebla.tablet.recovery.identity import read_identity
from ebla.tablet.recovery.log_loss import find_loss
from ebla.tablet.recovery.server_record import ServerRecord, read_extent

FRAGMENTS = "fragments"


class Verifier:
    """Looks at all tables of a store through its coordination service and its files."""

    def __init__(
        self,
        coordination: CoordinationService,
        files: Files,
        directory: TableDirectory,
        kept: tuple[Files, MetadataStore] | None = None,
    ) -> None:
        """`kept` is where METADATA lies in a cluster, whose servers have a log each: those are not looked at."""
        self._coordination = coordination
        self._files = files
        self._metadata_files = files if kept is None else kept[0]
        try:
            identity = read_identity(coordination)
        except StoreNotFound:  # it was never opened
            self._store, self._server = MetadataStore(files), ""
        else:
            self._store = stores_at(coordination, files, identity.cluster, identity.server)
            self._server = identity.server
        if kept is not None:
            self._store, self._server = kept[1], ""
        self._directory = directory
        self._names = NamesVerifier(coordination)
        self._facts: dict[str, FileFacts] = {}
        self._strays: list[str] = []

    def verify(self, *, accept_lost_log: bool = False) -> VerifyReport:
        """Look at everything, and change nothing. With `accept_lost_log`, tell what giving up a lost log would cost."""
        # Files first: one that is made later is not taken for one that nobody names.
        listed, saved = self._listed()
        positions, damaged = self._read_positions()
        if damaged and accept_lost_log:
            damaged = self._lost_log()[1] or damaged
        seen, names = self._names.look()
        tables = _running(seen)
        named = self._named(tables)
        self._strays = [path for path in listed if path not in named]
        findings = [*names.findings, *damaged]
        is_whole = not seen.damaged
        for table_id, config in tables:
            with contextlib.suppress(UnknownTable):  # dropped meanwhile
                examination, metadata, _ = self._examined(table_id, config)
                findings += examination.findings
                findings += self._copies(table_id, config)
                if metadata is not None:
                    findings += self._log_findings(config.name, metadata, positions)
                named.update(() if metadata is None else metadata.files())
                is_whole &= metadata is not None
        if not seen.damaged:
            unnamed = [path for path in listed if path not in named]
            gone = DroppedTables(self._coordination).ids()
            unknown = look_at_strangers(self._metadata_files, saved, seen.configs, gone, unnamed).lost
            findings += [Finding("lost table", table_id, str(lost([table_id]))) for table_id in unknown]
            is_whole &= not unknown
        if is_whole:  # else nobody knows whether a file belongs to what could not be read
            findings += self._orphans(named)
        return VerifyReport(len(tables), len(named), tuple(findings))

    def _read_positions(self) -> tuple[Positions, list[Finding]]:
        if not self._server:
            return {}, []
        return read_positions(self._files, f"log/{self._server}", self._extent)

    def _extent(self) -> LogExtent:
        return read_extent(self._coordination, self._files, self._server)

    def _lost_log(self) -> tuple[LogExtent, list[Finding]]:
        """Return what the log must hold without what it has lost, and what that is."""
        extent = self._extent()
        try:
            loss = find_loss(self._files, f"log/{self._server}", extent)
        except Corruption as error:
            return extent, [Finding("log", "", str(error))]
        return loss.extent, [Finding("log", "", told, repair="go on without it") for told in loss.told]

    def _named(self, tables: Iterable[tuple[str, TableConfig]]) -> set[str]:
        named: set[str] = set()
        for table_id, config in tables:
            with contextlib.suppress(Corruption, MissingFile, SchemaError):  # it will be told
                named.update(self._store.load_anyway(table_id, config.metadata_txnid)[0].files())
        return named

    def repair(self, new_id: Callable[[], str], *, accept_lost_log: bool = False) -> VerifyReport:
        """Mend what can be, each table in one transaction. The caller owns the store, which may be open.

        With `accept_lost_log`, which is for one that is not open, what the log has lost is given up.
        """
        report = self.verify(accept_lost_log=accept_lost_log)
        repaired = self._names.mend()
        if any(finding.kind == "log" and finding.repair for finding in report.findings):
            ServerRecord(self._coordination, self._files, self._server).accept(self._lost_log()[0])
            repaired = True
        for table_id, config in _running(self._names.look()[0]):
            examination, metadata, version = self._examined(table_id, config)
            if examination.mended is None or metadata is None:
                continue
            mended = examination.mended.with_txnid(new_id(), metadata.sequence + 1)
            with contextlib.suppress(InvalidMetadata):  # a wrong checksum of something that cannot be mended
                mended.check()
                self._replace(table_id, config, version, metadata, mended)
                repaired = True
        return VerifyReport(report.tables, report.files, report.findings, repaired)

    def _replace(
        self, table_id: str, config: TableConfig, version: int, former: TableMetadata, mended: TableMetadata
    ) -> None:
        content = encode(SnapshotRecord(former.txnid, mended.checksum, mended))
        self._store.write(table_id, mended.txnid, content)
        changed = msgspec.structs.replace(config, metadata_txnid=mended.txnid)
        try:
            self._coordination.compare_and_set(config_path(table_id), encode_config(changed), version)
        except CoordinationConflict as error:
            self._store.discard(table_id, mended.txnid)
            raise Unavailable(f"the table {config.name!r} was changed meanwhile: repair it again") from error

    def _examined(self, table_id: str, config: TableConfig) -> tuple[Examination, TableMetadata | None, int]:
        """Look at one table as it is; again if it changed meanwhile."""
        for _ in RACES:
            config, version = self._directory.read(table_id)
            name = config.name
            metadata = None
            try:
                metadata, problem = self._store.load_anyway(table_id, config.metadata_txnid)
            except (Corruption, MissingFile) as error:
                told = f"{error}: restore METADATA from a copy, or the table from a backup"
                examination = Examination((Finding("metadata", name, told),), None)
            except SchemaError as error:
                examination = Examination((Finding("schema", name, f"{error}: restore METADATA from a backup"),), None)
            else:
                facts = {reference.file: self._fact(reference) for reference in _references(metadata)}
                examination = examine(name, metadata, facts)
                if any(finding.kind == "hole" for finding in examination.findings):
                    examination = examine(name, metadata, facts, self._strays_of(table_id))
                if problem:
                    # It is saved anew, with the right one, if everything else is right or can be made so.
                    found = Finding("checksum", name, problem, repair="save it anew")
                    examination = Examination((found, *examination.findings), examination.mended or metadata)
            if not examination.findings or self._directory.read(table_id)[1] == version:
                return examination, metadata, version
            self._facts.clear()
        raise Unavailable(f"the table {config.name!r} changed faster than it could be read: try again")

    def _log_findings(self, name: str, metadata: TableMetadata, positions: Positions) -> list[Finding]:
        """Compare the log with a table; again if something is found, which the owner may have let go of meanwhile."""
        findings = list(examine_log(name, metadata, positions))
        if not findings:
            return findings
        again, _ = self._read_positions()
        config, _ = self._directory.read(metadata.table_id)
        newest, _ = self._store.load_anyway(metadata.table_id, config.metadata_txnid)
        return list(examine_log(name, newest, again))

    def _copies(self, table_id: str, config: TableConfig) -> Iterator[Finding]:
        """Tell which directories do not have what is current, where METADATA is kept in several."""
        stores = self._store.stores if isinstance(self._store, MetadataCopies) else {}
        for server in config.metadata_servers if stores else ():
            if server not in stores:
                text = f"the directory of metadata server {server} is not there: name it, or another, when it is opened"
                yield Finding("copy", config.name, text)
                continue
            try:
                stores[server].load(table_id, config.metadata_txnid)
            except (Corruption, MissingFile) as error:
                if self._directory.read(table_id)[0].metadata_txnid == config.metadata_txnid:
                    yield Finding("copy", config.name, f"{server}: {error}", repair="fetch it from another directory")

    def _fact(self, reference: FragmentRef) -> FileFacts:
        known = self._facts.get(reference.file)
        if known is None:
            known = self._facts[reference.file] = self._look(reference)
        return known

    def _look(self, reference: FragmentRef) -> FileFacts:
        tail = Tail(reference.tail_bytes, reference.tail_crc) if reference.tail_bytes else None
        return self._look_at(reference.file, reference.txn, tail)

    def _strays_of(self, table_id: str) -> list[FileFacts]:
        """Return what is known of the files of a table that nobody names."""
        paths = [path for path in self._strays if path.startswith(f"{FRAGMENTS}/{table_id}/")]
        return [facts for facts in map(self._look_at, paths) if not facts.problem]

    def _look_at(self, file: str, txn: int | None = None, tail: Tail | None = None) -> FileFacts:
        try:
            size = self._files.size(file)
            footer = Fragment(self._files, file, BlockCache(0), txn, tail).footer
        except (FileNotFoundError, MissingFile):
            return FileFacts(problem="missing")
        except (Corruption, FormatTooNew) as error:
            return FileFacts(problem=f"unreadable: {error}")
        except TooManyFiles:
            raise
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error}: mend the cause, then verify again") from error
        return FileFacts(size, "", footer.table, footer.rows, footer.first, footer.last, footer.txn_min, footer.txn_max)

    def _listed(self) -> tuple[list[str], dict[str, list[FileInfo]]]:
        """Return the fragments that are there, and the METADATA files by table id."""
        try:
            listed = [info.path for d in self._files.list_directories(FRAGMENTS) for info in self._files.list(d)]
            return listed, saved_metadata(self._metadata_files)
        except TooManyFiles:
            raise
        except OSError as error:
            raise StoreError(f"files cannot be listed: {error}: mend the cause, then verify again") from error

    def _orphans(self, named: set[str]) -> list[Finding]:
        try:
            expected = tuple(intent.prefix for intent in list_intents(self._coordination))
        except EblaError:
            expected = (FRAGMENTS,)  # it cannot be told what is about to be named: leave all of it alone
        return [
            Finding("orphan", "", f"{path} is named by no table", file=path, repair="`gc` removes it in its time")
            for path in sorted(self._strays)
            if path not in named and not path.startswith(expected)
        ]


def _running(seen: SeenNames) -> list[tuple[str, TableConfig]]:
    return [(table_id, config) for table_id, (config, _) in sorted(seen.configs.items()) if config.is_there]


def _references(metadata: TableMetadata) -> Iterable[FragmentRef]:
    return (fragment for tablet in metadata.tablets for state in tablet.groups for fragment in state.fragments)
