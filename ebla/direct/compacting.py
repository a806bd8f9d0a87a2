"""Compaction by the engine's own rules, for a job that merges fragments of a store which somebody else serves.

choose_merge    what to merge of a group of a tablet, on the terms that the owner told
cut             rows at which a large merge is divided among tasks
Merger          merges a share of the rows in a task, into files that nobody names yet
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.metadata.values.table_metadata import FragmentRef, GroupState
from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.model.schema import GroupSchema, TableSchema
from ebla.service.job_orders import GroupTerms, Merge, Strategy
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import ScopedOutput
from ebla.tablet.read.windows import cut
from ebla.tablet.upkeep.compaction import Reason, choose, choose_all, expiry_of
from ebla.tablet.upkeep.merging import merge, merge_of, merged_references, new_output

__all__ = ["Merger", "Reason", "choose_merge", "cut"]

OPEN_FILES_MAX = 256


def choose_merge(
    state: GroupState, group: GroupSchema, terms: GroupTerms, strategy: Strategy, *, only_due: bool
) -> tuple[Reason, Merge] | None:
    """Choose what to merge of a group of a tablet, and say why; None if there is nothing.

    With `only_due`, what the engine would merge by itself; otherwise everything there is, as when a person asks.
    """
    if only_due:
        choice = choose(
            state,
            terms.horizon,
            strategy,
            purges=group.max_versions is not None,
            is_cells=group.is_cells,
            columns=group.column_by_id.keys(),
            expired_before=expiry_of(group, terms.horizon),
        )
    else:
        choice = choose_all(state, terms.horizon)
    if choice is None:
        return None
    return choice.reason, merge_of(state, choice, group, terms.horizon, terms.unflushed)


class Merger:
    """Merges for one attempt of one task. What it wrote is nothing until a commit names it."""

    def __init__(
        self, files: Files, table_id: str, schema: TableSchema, new_path: Callable[[], str], file_bytes_max: int
    ) -> None:
        # Set once.
        self._files = files
        self._table_id = table_id
        self._schema = schema
        self._new_path = new_path
        self._file_bytes_max = file_bytes_max
        self._codec = KeyCodec(schema.key)
        self._reader = Reader(OpenFragments(files, BlockCache(0), OPEN_FILES_MAX), self._codec, schema)
        self._outputs: list[ScopedOutput] = []

    def merge(self, work: Merge, group_id: int, share: KeyRange) -> tuple[tuple[FragmentRef, ...], int]:
        """Merge what the fragments have in a share of the rows; return what was written, and how much was read.

        If that fails, nothing of this share is left behind.
        """
        group = self._schema.group_by_id[group_id]
        output = new_output(
            work,
            self._files,
            self._new_path,
            self._table_id,
            self._schema,
            group,
            self._codec,
            self._file_bytes_max,
        )
        self._outputs.append(output)
        try:
            records_read = merge(work, group, share, self._reader, output)
        except BaseException:
            output.abandon()
            raise
        return merged_references(work, group, self._schema, output.finish()), records_read

    def abandon(self) -> None:
        """Remove all that was written, as far as that is possible."""
        for output in self._outputs:
            output.abandon()
