"""Writing a table: puts and erasures, and changes that depend on what was read.

put, erase        admitted under the schema in force; made again if that changes before the commit
modify            read at a txn, changed, and committed if nothing has touched the row since; else once more
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from ebla.clock import microseconds_of
from ebla.errors import Conflict, EblaError, RequestError, SchemaChanged, UnknownColumn
from ebla.model.batch import PutBatch
from ebla.model.schema import WILDCARD, Target
from ebla.retry import CHANGES, CROWDS
from ebla.rows.replacing import last_of_each_key
from ebla.rows.row_parts import Limits
from ebla.rows.rows import columns_of, to_cells_batch, to_put_batch
from ebla.service.requests import Erase, EraseRange, Modify, Put, PutCells, RequestId, Wait
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.serve.row_reading import RowReading, at_newest, one_array, sorted_distinct
from ebla.tablet.tables.schema_parts import SchemaParts
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.mutation import Mutation, erase_range
from ebla.tablet.write.row_admission import RowMutation
from ebla.tablet.write_path import schema_changed

__all__ = ["Writing"]

# Puts of so many rows, and bytes in all, are done together with others. What is larger costs little for a call.
TOGETHER_ROWS_MAX = 4_096
TOGETHER_BYTES_MAX = 8 << 20

_Answer = TypeVar("_Answer")


class Writing:
    """Commits changes of one table. Safe to use from several threads."""

    def __init__(self, store: TabletStore, state: TableState, reading: RowReading) -> None:
        # Set once.
        self._store = store
        self._state = state
        self._reading = reading
        settings = store.settings
        self._limits = {"value_bytes_max": settings.value_bytes_max, "batch_bytes_max": settings.batch_bytes_max}

    def put(self, request: Put) -> int:
        """Put rows, whatever they come as."""
        rows = request.rows
        if not isinstance(rows, (dict, list)):
            rows = _several_times(rows)
        try:
            return self._put(rows, request)
        except SchemaChanged:
            if request.schema_version is not None:
                raise
            return self._anew(lambda: self._put(rows, request))

    def _put(self, rows: object, request: Put) -> int:
        since, wait, request_id = request.unchanged_since, request.wait, request.request_id
        # One commit of several puts has one txn, and answers no request by its id.
        is_plain = not (request.replace or request.if_absent or request_id) and since is None and wait != "none"
        if is_plain and isinstance(rows, pa.RecordBatch) and 0 < rows.num_rows <= TOGETHER_ROWS_MAX:
            txn = self._state.turns.take(rows, self._commit, self._commit_together)
            self._store.wait(txn, wait)
            return txn
        mutation = self._admit(rows, request.replace)
        if request.schema_version not in (None, mutation.schema_version):
            raise schema_changed(self._state.name)
        if request_id is not None:
            rest, known = self._store.writes.rest_of(self._state, mutation, request_id)
            if rest is None:
                self._store.wait(known, wait)
                return known
            mutation = rest  # who repeats it must not be told of a conflict with what it did itself
        if not request.if_absent:
            return self._apply(mutation, since, wait, request_id)
        return self._retried(lambda: self._put_absent(mutation, since, wait, request_id))

    def _commit(self, rows: pa.RecordBatch) -> int:
        return self._store.commit(self._state, self._admit(rows))

    def _commit_together(self, several: Sequence[pa.RecordBatch]) -> int | None:
        """Commit puts as one; None if one of them is wrong, or two of them, or of their rows, do not go together."""
        parts = self._state.view.parts
        if sum(rows.nbytes for rows in several) > TOGETHER_BYTES_MAX:
            return None
        try:
            puts = [to_put_batch(rows, parts.schema, **self._limits) for rows in several]
            halves = [put.columns for put in puts if put.columns is not None and put.cells is None]
            if len(halves) < len(puts):
                return None
            whole = pa.concat_batches(halves)
            mutation = parts.admission.put(PutBatch(whole))
        except (EblaError, pa.ArrowException):
            return None
        # A row that two of them have is put twice, at two txns, for its history has both.
        return None if len(mutation.rows) < whole.num_rows else self._store.commit(self._state, mutation)

    def _admit(self, rows: object, replace: bool = False) -> Mutation | RowMutation:
        parts = self._state.view.parts
        if type(rows) is dict and not replace:
            mutation = parts.row_admission.put(rows)
            if mutation is not None:
                return mutation
        if replace:
            arrow = None if isinstance(rows, dict) else columns_of(rows, parts.schema, Limits(**self._limits))
            rows = last_of_each_key(rows if arrow is None else arrow, parts.schema, parts.codec)
        return parts.admission.put(to_put_batch(rows, parts.schema, **self._limits), replace=replace)

    def _anew(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Make a request again that met a change of the schema, until it meets none."""
        for _ in CROWDS:
            with contextlib.suppress(SchemaChanged):
                return attempt()
        return attempt()

    def _put_absent(
        self, mutation: Mutation | RowMutation, since: int | None, wait: Wait, request_id: RequestId | None
    ) -> int | None:
        read_at, found = at_newest(self._read_txn, lambda txn: self._reading.many(mutation.rows, [], txn))
        if found.num_rows:
            shown = _shown([found.column(name)[0] for name in self._state.view.schema.key_names])
            raise Conflict(f"row {shown} of {self._state.name!r} exists already, and if_absent was asked for")
        if since is not None:
            self._store.check_unchanged(self._state, mutation.rows, since)
        return self._try_apply(mutation, read_at, wait, request_id)

    def put_cells(self, request: PutCells) -> int:
        """Put cells in long form."""
        cells, wait = _several_times(request.cells), request.wait

        def put() -> int:
            parts = self._state.view.parts
            batch = to_cells_batch(cells, parts.schema, **self._limits)
            return self._apply(parts.admission.put(batch), None, wait, request.request_id)

        return self._anew(put)

    def erase(self, request: Erase) -> int:
        """Erase encoded rows, or some columns of them."""
        if request.request_id is not None:
            erased = Mutation(sorted_distinct(request.rows))
            rest, known = self._store.writes.rest_of(self._state, erased, request.request_id)
            if rest is None:
                self._store.wait(known, request.wait)
                return known
            request = msgspec.structs.replace(request, rows=rest.rows)
        if not len(request.rows):
            self._store.state.writable_log()
            return self._store.sequencer.committed
        return self._anew(lambda: self._erase(request))

    def erase_range(self, request: EraseRange) -> int:
        """Erase all rows in a range."""
        return self._apply(erase_range(request.key_range), None, request.wait, request.request_id)

    def _erase(self, request: Erase) -> int:
        parts = self._state.view.parts
        rows, columns, since, wait = request.rows, request.columns, request.unchanged_since, request.wait
        if columns is None:
            return self._apply(parts.admission.erase(rows), since, wait, request.request_id)
        targets = [parts.schema.resolve(name) for name in columns]
        if WILDCARD in columns and parts.schema.wildcard_group is not None:
            raise UnknownColumn("'*' stands for many families: name those to erase, or the cell ':*' if that is meant")
        if any(target.column is not None for target in targets):
            return self._retried(lambda: self._erase_columns(parts, request, targets))
        return self._apply(parts.admission.erase(rows, targets), since, wait, request.request_id)

    def _erase_columns(self, parts: SchemaParts, request: Erase, targets: Sequence[Target]) -> int | None:
        """Set typed columns to null, but only of rows that their group shows: erasing must not make rows."""
        rows, since = request.rows, request.unchanged_since
        read_at, erased = at_newest(self._read_txn, lambda txn: self._shown_of(parts, rows, targets, txn))
        if since is not None:
            # After the read: what came before it is seen here, and what comes after it makes the commit fail.
            self._store.check_unchanged(self._state, sorted_distinct(rows), since)
        erased.append(parts.admission.erase(rows, [t for t in targets if t.column is None]))
        groups = {group: records for part in erased for group, records in part.groups.items()}
        touched = [part.rows for part in erased if part.groups] or [rows.slice(0, 0)]
        mutation = Mutation(sorted_distinct(pa.concat_arrays(touched)), groups, schema_version=parts.version)
        return self._try_apply(mutation, read_at, request.wait, request.request_id)

    def _shown_of(self, parts: SchemaParts, rows: pa.Array, targets: Sequence[Target], txn: int) -> list[Mutation]:
        """Return erasures of typed columns, group by group, of the rows that the group shows at a txn."""
        erased = []
        for group in {target.group.id: target.group for target in targets if target.column is not None}.values():
            own = [target for target in targets if target.group.id == group.id]
            names = [target.column.name for target in own if target.column is not None]
            shown = self._reading.many(sorted_distinct(rows), names, txn, parts.version)
            if shown.num_rows:
                present = parts.codec.encode_arrays([one_array(shown.column(name)) for name in parts.schema.key_names])
                erased.append(parts.admission.erase(present, own))
        return erased

    def modify(self, request: Modify, change: Callable[[Target, Any], Any]) -> Any:
        """Change one value or cell, and return what it is then. `change` is given what was there."""
        row, column = request.row, request.column
        known = None
        if request.request_id is not None:
            known = self._store.writes.answered_row(self._state, row, request.request_id)
        if known is not None:
            self._store.wait(known, request.wait)
            found = self._reading.one(row, [column], known)
            return None if found is None else found.get(column)
        target = self._state.view.schema.resolve(column)
        if target.column is None and target.qualifier is None:
            raise RequestError(f"{column!r} is a whole family: name one cell, such as {column.rstrip(':')}:name")
        after: list[Any] = []
        if target.column is None:
            self._modify_cell(request, target, change, after)
            return after[0]

        self._retried(lambda: self._modify_column(request, target, change, after))
        return after[0]

    def _modify_column(
        self, request: Modify, target: Target, change: Callable[[Target, Any], Any], after: list[Any]
    ) -> int | None:
        row, column = request.row, request.column
        parts = self._state.view.parts

        def read(txn: int) -> Mapping[str, Any] | None:
            return self._reading.cached(row, txn) or self._reading.one(row, [column], txn)

        read_at, found = at_newest(self._read_txn, read)
        after[:] = [change(target, None if found is None else found.get(column))]
        named = dict(zip(parts.schema.key_names, parts.codec.decode(row), strict=True))
        mutation = self._admit({column: after[0], **named})
        if mutation.schema_version != parts.version:
            return None  # what was read may have other columns by now
        try:
            return self._try_apply(mutation, read_at, request.wait, request.request_id)
        except SchemaChanged:
            return None

    def _modify_cell(
        self, request: Modify, target: Target, change: Callable[[Target, Any], Any], after: list[Any]
    ) -> None:
        """Change a cell so that the outcome is seen, also where its newest version has a timestamp of the future."""
        row, column = request.row, request.column

        def read(txn: int) -> tuple[SchemaParts, pa.RecordBatch | None]:
            self._store.admit_row(self._state, row)
            view = self._state.view
            point = ReadPoint(txn, view.parts.projection([column], versions=2))
            return view.parts, view.parts.reader.rows.read_one(view, view.metadata.tablet_for(row), row, point)

        def attempt() -> int | None:
            read_at, (parts, found) = at_newest(self._read_txn, read)
            versions = None if found is None else found.column(column)[0]
            newest = versions[0] if versions is not None and versions.is_valid else None
            after[:] = [change(target, None if newest is None else newest["value"].as_py())]
            cell = dict(zip(parts.schema.key_names, parts.codec.decode(row), strict=True))
            cell |= {"family": target.family, "qualifier": target.qualifier, "value": after[0]}
            if newest is not None and newest["timestamp"].value > microseconds_of(read_at):
                cell["timestamp"] = newest["timestamp"].value
            batch = to_cells_batch([cell], parts.schema, **self._limits)
            try:
                return self._try_apply(parts.admission.put(batch), read_at, request.wait, request.request_id)
            except SchemaChanged:
                return None

        self._retried(attempt)

    def _apply(
        self, mutation: Mutation | RowMutation, since: int | None, wait: Wait, request_id: RequestId | None
    ) -> int:
        txn = self._store.apply(self._state, mutation, unchanged_since=since, wait=wait, request=request_id)
        if isinstance(mutation, RowMutation) and wait != "none":
            self._reading.keep_changed(mutation, txn)
        return txn

    def _try_apply(
        self, mutation: Mutation | RowMutation, read_at: int, wait: Wait, request_id: RequestId | None
    ) -> int | None:
        """Apply if nothing changed since the read; None if something did."""
        try:
            return self._apply(mutation, read_at, wait, request_id)
        except Conflict:
            return None

    def _read_txn(self) -> int:
        """Return the txn of this very moment, for changes that depend on what was read."""
        return self._store.read_txn(uncommitted=True, at_once=self._state.view.parts.expires)

    def _retried(self, attempt: Callable[[], int | None]) -> int:
        for _ in CHANGES:
            txn = attempt()
            if txn is not None:
                return txn
        raise Conflict(
            f"rows of {self._state.name!r} keep changing under this one: try again when fewer others write them"
        )


def _several_times(rows: object) -> object:
    """Return rows that can be read more than once, should the schema change while they are written."""
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    return list(rows) if isinstance(rows, Iterator) else rows


def _shown(key: Sequence[pa.Scalar]) -> str:
    try:
        values = tuple(part.as_py() for part in key)
    except OverflowError:  # a date after the year 9999, which Arrow has and Python has not
        return "with that key"
    return repr(values[0] if len(values) == 1 else values)
