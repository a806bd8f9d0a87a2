"""Replay: the log of a store that died with much of it unflushed, sorted into fragments by many tasks.

    1. fence     the store is owned, as by an opening writer: whoever had it before cannot write any more
    2. plan      METADATA read; segments listed, divided into portions of neighbours; intents: files are about to come
    3. sort      each task replays its portion into fragments: what is flushed already, or of tables that are gone, is
                 dropped; a torn end is passed over; one line per portion comes back
    4. check     portions follow one another without a gap and reach as far as is on record; damage is refused, with
                 file and offset
    5. commit    one METADATA transaction per table, refused if anybody has flushed any of it since step 2
    6. let go    what clients were told goes to a new segment; the old ones are removed, from the oldest on

Until step 6 the log is untouched, but that it is made durable. So a replay that is killed, or refused, can be run
again, or the store opened, which replays what is not flushed. No record goes through the driver.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ebla.client.embedded.opening import new_id
from ebla.client.embedded.owning import Owned
from ebla.direct.jobs_at import JOB_EXPIRES_SECONDS
from ebla.direct.log_sorting import ReplayTable, ReplayTask
from ebla.errors import Conflict, EblaError, LogFailed, OutcomeUnknown, StoreError, UnknownTable
from ebla.metadata.values.changes import Change, RequirementFailed, update
from ebla.metadata.values.restoring import pack_metadata
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.settings import MIB, Settings
from ebla.storage.log.log_entry import LogEntry, LogPart
from ebla.storage.log.log_format import SegmentInfo
from ebla.storage.log.log_reader import cut_after, list_segments, make_durable
from ebla.storage.log.log_writer import start_over
from ebla.tablet.garbage.job_intents import begin_job, end_jobs, list_intents
from ebla.tablet.garbage.lost_tables import lost, lost_tables
from ebla.tablet.recovery.found_tables import read_tables
from ebla.tablet.recovery.identity import read_identity
from ebla.tablet.recovery.log_sort import SortedPortion, changes_for, check_portions, divide_segments
from ebla.tablet.recovery.open_metadata import open_metadata
from ebla.tablet.recovery.server_record import ServerRecord
from ebla.tablet.write.replies import Replies

__all__ = ["LogReplay", "ReplaySummary", "Sorters"]

# A task holds about so much of a table before it writes it, as opening does: with more, most of what would be gained
# by fewer files goes into fresh pages of memory. It reads about so much log, at least and at most.
FLUSH_BYTES = Settings().flush_bytes
PORTION_BYTES_MIN = 16 * MIB
PORTION_BYTES_MAX = 256 * MIB
_JOB = "replay-"
# No other: people name jobs as they like, and these must not be taken for ours.
_OWN_JOB = re.compile(_JOB + r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Sorters(Protocol):
    """Those who sort the portions of a log: so many at once."""

    @property
    def parallelism(self) -> int:
        """How many portions are sorted at once."""

    def sort(self, task: ReplayTask) -> Sequence[SortedPortion]:
        """Sort all portions of a task, and return what came of each, once."""


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """What a replay did. `tables` are those that got something; `records` went into `files`.

    `torn_bytes` at the end of the log were half written when the store died, and nobody was told of them. `refused` are
    tables whose METADATA is damaged, and why: they got nothing, and the log is kept for them.
    """

    tables: tuple[str, ...] = ()
    segments: int = 0
    log_bytes: int = 0
    torn_bytes: int = 0
    entries: int = 0
    records: int = 0
    files: int = 0
    bytes: int = 0
    portions: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    txn: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as the replay found it, and the id under which its files are written."""

    name: str
    base: TableMetadata
    job: str


class LogReplay:
    """One run of a replay, by the owner of the store; `sort` is what many do at once."""

    def __init__(self, owned: Owned, root: str, on_commit: Callable[[], None] = lambda: None) -> None:
        """`on_commit` is called when all is sorted, and METADATA is about to be changed."""
        # Set once.
        self._owned = owned
        self._root = root
        self._on_commit = on_commit
        self._server = read_identity(owned.coordination).server
        self._directory = f"log/{self._server}"
        self._record = ServerRecord(owned.coordination, owned.files, self._server)
        self._metadata = open_metadata(owned.coordination, owned.files, owned.clock, new_id)
        # From then on METADATA may come to name files of the replay.
        self._is_committing = False
        # Tables that cannot be replayed, and why.
        self._refused: dict[str, str] = {}

    def run(self, start: Callable[[], Sorters], portions: int | None) -> ReplaySummary:
        """Replay all of the log; `start` is called when there is something to sort."""
        self._end([one.job for one in list_intents(self._owned.coordination) if _OWN_JOB.fullmatch(one.job)])
        files = self._owned.files
        paths = list_segments(files, self._directory, self._record.extent)
        if not paths:
            return ReplaySummary()
        # A killed process may have left whole entries that are not durable. They must not go with a power cut once
        # some tables have them and others do not.
        make_durable(files, self._directory, self._record.extent)
        tables = self._tables()
        sorters = start()
        sizes = [files.size(path) for path in paths]
        divided = divide_segments(sizes, portions or _portions(sum(sizes), sorters.parallelism))
        task = ReplayTask(
            self._root,
            self._server,
            tuple(ReplayTable(one.name, pack_metadata(one.base), one.job) for one in tables),
            tuple(tuple(paths[at] for at in own) for own in divided),
            FLUSH_BYTES,
        )
        for one in tables:
            begin_job(self._owned.coordination, self._owned.clock, one.job, one.base.table_id, JOB_EXPIRES_SECONDS)
        try:
            summary = self._carry_out(sorters, task, tables)
        except OutcomeUnknown:
            raise  # METADATA may name the files, or come to name them: the next run finds out
        except BaseException as error:
            # Whoever is interrupted in the middle of a commit does not know its outcome either.
            if not self._is_committing or isinstance(error, Exception):
                with contextlib.suppress(Exception):  # why it failed is what matters
                    self._end([one.job for one in tables])
            raise
        with contextlib.suppress(EblaError, OSError):  # it is done; what is left behind is garbage, no more
            self._end([one.job for one in tables])
        return summary

    def _tables(self) -> list[_Table]:
        """Return the tables that are whole; the others are refused, as opening does, and the log is kept for them."""
        found = []
        for table_id in lost_tables(self._owned.files, self._owned.coordination):
            self._refused[table_id] = str(lost([table_id]))
        for one in read_tables(self._metadata):
            try:
                if one.metadata is None or one.damage:
                    raise one.error or StoreError(one.damage)
                one.metadata.schema.check()
            except EblaError as error:
                self._refused[one.name] = str(error)
                continue
            found.append(_Table(one.name, one.metadata, f"{_JOB}{uuid.uuid4()}"))
        return found

    def _carry_out(self, sorters: Sorters, task: ReplayTask, tables: Sequence[_Table]) -> ReplaySummary:
        results = sorted(sorters.sort(task), key=lambda result: result.number)
        if [result.number for result in results] != list(range(len(task.portions))):
            raise StoreError("not every portion was reported once: nothing was replayed, run it again")
        segments = check_portions(results, self._record.extent)
        txn_max = max(result.txn_max for result in results)
        self._record.check(max([txn_max, *(one.base.newest_job_txn for one in tables)]))
        self._on_commit()
        why = dict(pair for result in results for pair in result.refused)
        self._refused |= {one.name: why[one.base.table_id] for one in tables if one.base.table_id in why}
        got = self._commit(results, [one for one in tables if one.name not in self._refused])
        if not self._refused and (got or len(segments) > 1):
            self._let_go(segments, results, max([txn_max, *(one.base.newest_txn for one in tables)]))
        refs = [new.fragment for r in results for one in r.tables for new in one.flush.fragments if one.table in got]
        return ReplaySummary(
            tables=tuple(sorted(got.values())),
            segments=len(segments),
            log_bytes=sum(segment.bytes for segment in segments),
            torn_bytes=sum(segment.torn_bytes for result in results for segment in result.segments),
            entries=sum(result.entries for result in results),
            records=sum(ref.rows for ref in refs),
            files=len(refs),
            bytes=sum(ref.bytes for ref in refs),
            portions=len(results),
            refused=self._refused,
            txn=txn_max,
        )

    # --- commit ---

    def _commit(self, results: Sequence[SortedPortion], tables: Sequence[_Table]) -> dict[str, str]:
        """Make METADATA name what was sorted; return the ids and names of the tables that got something."""
        wanted: list[tuple[_Table, list[Change]]] = []
        for one in tables:
            own = [found for result in results for found in result.tables if found.table == one.base.table_id]
            changes = changes_for(one.base, own)
            if changes:
                wanted.append((one, changes))
        # What one table would be refused for is found before another one has got something.
        for one, changes in wanted:
            with contextlib.suppress(UnknownTable), _refusing(one.name, "nothing was changed"):
                update(self._metadata.refresh(one.base.table_id), changes)
        got: dict[str, str] = {}
        for one, changes in wanted:
            self._owned.check()
            self._is_committing = True
            done = "what other tables got they keep, and the log has all" if got else "nothing was changed"
            with contextlib.suppress(UnknownTable), _refusing(one.name, done):  # dropped: opening passes it over too
                self._metadata.commit(one.base.table_id, changes)
                got[one.base.table_id] = one.name
        return got

    # --- let go ---

    def _let_go(self, segments: Sequence[SegmentInfo], results: Sequence[SortedPortion], newest: int) -> None:
        """Remove the log, all of which is in fragments, but what clients were told."""
        if not newest:
            return
        files = self._owned.files
        told: dict[tuple[str, str], Replies] = defaultdict(Replies)
        former = Replies()
        for result in results:
            for one in result.replies:
                told[one.table, one.tablet].restore(one.replies)
            former.restore(result.former_replies)
        parts = tuple(LogPart.of_replies(*key, newest, replies.all()) for key, replies in told.items())
        self._owned.check()
        try:
            cut_after(files, segments[-1])
            # Even if nobody was told anything: no number of a segment is ever used twice.
            entry = LogEntry(newest, parts, tuple(former.all()))
            sequence = 1 + max(segments[-1].sequence, self._record.extent.last)
            self._record.recovered(segments, sequence)
            segment_bytes = Settings().log_segment_bytes
            start_over(files, self._directory, self._server, sequence, segments, segment_bytes, entry, self._record)
            self._record.save()
        except (OSError, LogFailed) as error:
            raise StoreError(
                f"all is in fragments now, but the log cannot be let go of: {error}: free space or mend the cause; "
                "opening the store passes over it"
            ) from error

    def _end(self, jobs: Sequence[str]) -> None:
        end_jobs(self._owned.coordination, self._metadata, self._owned.files, jobs)


def _portions(log_bytes: int, parallelism: int) -> int:
    """Return into how many portions a log is divided: a multiple of the cores, so that none idles at the end."""
    wanted = -(-max(1, log_bytes) // PORTION_BYTES_MAX)
    worth_it = -(-max(1, log_bytes) // PORTION_BYTES_MIN)
    return min(-(-wanted // parallelism) * parallelism, worth_it)


@contextlib.contextmanager
def _refusing(name: str, done: str) -> Iterator[None]:
    try:
        yield
    except RequirementFailed as error:
        raise Conflict(
            f"the table {name!r} was changed by somebody else while its log was sorted ({error}); {done}: run it again"
        ) from error
