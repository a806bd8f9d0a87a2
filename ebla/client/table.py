"""A table as a user holds it: put, get, scan, erase, and changes that depend on what was read."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.batch import PutBatch
from ebla.client.moments import AsOf, txn_of
from ebla.client.replacing import last_of_each_key
from ebla.client.rows import to_cells_batch, to_put_batch
from ebla.client.scan import Position, Scan, beyond_python
from ebla.client.sums import appended, count_of, incremented
from ebla.clock import microseconds_of
from ebla.errors import CannotJoin, Closed, Conflict, EblaError, ReadOnly, RequestError, SchemaChanged, UnknownTable
from ebla.ranges import ALL, KeyRange, successor
from ebla.schema import TableSchema, Target
from ebla.storage.order import is_strictly_sorted, sort_rows
from ebla.tablet.admission import Mutation, erase_range
from ebla.tablet.compaction import runs_of
from ebla.tablet.projection import Projection, spread
from ebla.tablet.reader import ReadPoint
from ebla.tablet.row_admission import RowMutation
from ebla.tablet.scanner import Scanner, ScanRequest
from ebla.tablet.schema_parts import SchemaParts
from ebla.tablet.store import TabletStore
from ebla.tablet.table_state import TableState
from ebla.tablet.view import TableView
from ebla.tablet.write_path import Wait, schema_changed

CHANGE_ATTEMPTS_MAX = 1_000
SCHEMA_ATTEMPTS_MAX = 100
FOUND = "_found"
# From so many keys on, it is worth a look whether they stand one after the other in a file.
NEIGHBOURS_MIN = 32
# Puts of so many rows, and bytes in all, are done together with others. What is larger costs little for a call.
TOGETHER_ROWS_MAX = 4_096
TOGETHER_BYTES_MAX = 8 << 20

_Answer = TypeVar("_Answer")
_ALL_FOUND = pa.repeat(True, 4096)


class Row(dict[str, Any]):
    """A row as a dict of its columns. `txn` is the snapshot it was read at, which `if_unchanged_since` wants."""

    __slots__ = ("txn",)
    txn: int


class Table:
    """One table of a database. Safe to use from several threads."""

    def __init__(self, store: TabletStore, state: TableState, as_of: int | None = None) -> None:
        self._store = store
        self._state = state
        self._as_of = as_of
        self._sequencer = store.sequencer
        settings = store.settings
        self._limits = {"value_bytes_max": settings.value_bytes_max, "batch_bytes_max": settings.batch_bytes_max}

    def __repr__(self) -> str:
        return f"<ebla.Table {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._state.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self._state.view.schema

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns, in order."""
        return self.schema.key_names

    # --- writing ---

    def put(
        self,
        rows: object,
        *,
        replace: bool = False,
        if_absent: bool = False,
        if_unchanged_since: int | None = None,
        wait: Wait = "durable",
    ) -> int:
        """Write rows and return the txn of the commit.

        `rows` is a dict, a list of dicts, an Arrow table or record batch, a pandas or polars frame, or the bytes of an
        Arrow IPC stream. A column that is missing stays as it was; a null sets null. With `replace`, what is missing
        is erased. `if_absent` and `if_unchanged_since` raise `Conflict`, and write nothing, if a row exists or was
        changed after that txn. `wait` says what to wait for: ``durable`` (no crash can undo it), ``logged`` (it is in
        the log) or ``none``. Arrow batches of different rows that several threads put at the same time may become one
        commit, with one txn.
        """
        self._check_writable(wait)
        if not isinstance(rows, (dict, list)):
            rows = _several_times(rows)
        try:
            return self._put(rows, replace, if_absent, if_unchanged_since, wait)
        except SchemaChanged:
            return self._anew(lambda: self._put(rows, replace, if_absent, if_unchanged_since, wait))

    def _put(self, rows: object, replace: bool, if_absent: bool, since: int | None, wait: Wait) -> int:
        is_plain = not (replace or if_absent) and since is None and wait != "none"
        if is_plain and isinstance(rows, pa.RecordBatch) and 0 < rows.num_rows <= TOGETHER_ROWS_MAX:
            txn = self._state.turns.take(rows, self._commit, self._commit_together)
            self._store.wait(txn, wait)
            return txn
        mutation = self._admit(rows, replace)
        if not if_absent:
            return self._apply(mutation, since, wait)
        return self._retried(lambda: self._put_absent(mutation, since, wait))

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
            rows = last_of_each_key(rows, parts.schema, parts.codec, self._store.settings.batch_bytes_max)
        return parts.admission.put(to_put_batch(rows, parts.schema, **self._limits), replace=replace)

    def _anew(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Make a request again that met a change of the schema, until it meets none."""
        for _ in range(SCHEMA_ATTEMPTS_MAX - 1):
            with contextlib.suppress(SchemaChanged):
                return attempt()
        return attempt()

    def _put_absent(self, mutation: Mutation | RowMutation, since: int | None, wait: Wait) -> int | None:
        read_at = self._read_txn()
        found = self._read_rows(mutation.rows, [], read_at)
        if found.num_rows:
            shown = _shown([found.column(name)[0] for name in self.key_names])
            raise Conflict(f"row {shown} of {self.name!r} exists already, and if_absent was asked for")
        if since is not None:
            self._store.check_unchanged(self._state, mutation.rows, since)
        return self._try_apply(mutation, read_at, wait)

    def put_cells(self, cells: object, *, wait: Wait = "durable") -> int:
        """Write cells in long form: key columns, family, qualifier, value, and if wanted timestamp (microseconds)."""
        self._check_writable(wait)
        cells = _several_times(cells)

        def put() -> int:
            parts = self._state.view.parts
            batch = to_cells_batch(cells, parts.schema, **self._limits)
            return self._apply(parts.admission.put(batch), None, wait)

        return self._anew(put)

    def erase(self, key: object, columns: Sequence[str] | None = None, *, wait: Wait = "durable") -> int:
        """Erase a row, or only some of its columns, cells (``family:qualifier``) or families. Returns the txn."""
        return self.erase_many([key], columns, wait=wait)

    def erase_many(self, keys: Any, columns: Sequence[str] | None = None, *, wait: Wait = "durable") -> int:
        """Erase many rows, or some columns of them, in one commit. Returns the txn."""
        self._check_writable(wait)
        rows = self._state.codec.encode_many(keys)
        if not len(rows):
            return self._sequencer.committed
        if isinstance(columns, str):
            raise RequestError(f"columns is a list of names, such as [{columns!r}]")
        return self._anew(lambda: self._erase(rows, columns, wait))

    def _erase(self, rows: pa.Array, columns: Sequence[str] | None, wait: Wait) -> int:
        parts = self._state.view.parts
        if columns is None:
            return self._apply(parts.admission.erase(rows), None, wait)
        targets = [parts.schema.resolve(name) for name in columns]
        if any(target.column is not None for target in targets):
            return self._retried(lambda: self._erase_columns(parts, rows, targets, wait))
        return self._apply(parts.admission.erase(rows, targets), None, wait)

    def _erase_columns(self, parts: SchemaParts, rows: pa.Array, targets: Sequence[Target], wait: Wait) -> int | None:
        """Set typed columns to null, but only of rows that their group shows: erasing must not make rows."""
        read_at = self._read_txn()
        erased = [parts.admission.erase(rows, [t for t in targets if t.column is None])]
        for group in {target.group.id: target.group for target in targets if target.column is not None}.values():
            own = [target for target in targets if target.group.id == group.id]
            names = [target.column.name for target in own if target.column is not None]
            shown = self._read_rows(_sorted_distinct(rows), names, read_at, parts.version)
            if shown.num_rows:
                present = parts.codec.encode_arrays([_one(shown.column(name)) for name in parts.schema.key_names])
                erased.append(parts.admission.erase(present, own))
        groups = {group: records for part in erased for group, records in part.groups.items()}
        touched = [part.rows for part in erased if part.groups] or [rows.slice(0, 0)]
        mutation = Mutation(_sorted_distinct(pa.concat_arrays(touched)), groups, schema_version=parts.version)
        return self._try_apply(mutation, read_at, wait)

    def erase_range(self, start: object = None, stop: object = None, *, wait: Wait = "durable") -> int:
        """Erase all rows from `start` up to and not including `stop`, in one step. Returns the txn."""
        self._check_writable(wait)
        return self._apply(erase_range(self._range(start, stop, None)), None, wait)

    # --- changes that depend on what was read ---

    def increment(self, key: object, column: str, by: float = 1, *, wait: Wait = "durable") -> Any:
        """Add `by` to a number and return the sum. Nothing there counts as 0.

        In a cells group the number is a signed 64-bit integer, big-endian.
        """
        if isinstance(by, bool) or not isinstance(by, (int, float, Decimal)):
            raise RequestError(f"by is a number, not {by!r}")
        return count_of(self._modify(key, column, partial(incremented, column, by), wait))

    def append(self, key: object, column: str, suffix: Any, *, wait: Wait = "durable") -> Any:
        """Append to a string, binary value or list and return the whole. Nothing there counts as empty."""
        return self._modify(key, column, partial(appended, column, suffix), wait)

    def _modify(self, key: object, column: str, change: Callable[[Target, Any], Any], wait: Wait) -> Any:
        target = self.schema.resolve(column)
        if target.column is None and target.qualifier is None:
            raise RequestError(f"{column!r} is a whole family: name one cell, such as {column.rstrip(':')}:name")
        after: list[Any] = []
        if target.column is None:
            self._modify_cell(key, column, target, change, after, wait)
            return after[0]

        def step(row: Row | None) -> dict[str, Any]:
            after[:] = [change(target, None if row is None else row.get(column))]
            return {column: after[0]}

        self.transact(key, step, columns=[column], wait=wait)
        return after[0]

    def _modify_cell(
        self,
        key: object,
        column: str,
        target: Target,
        change: Callable[[Target, Any], Any],
        after: list[Any],
        wait: Wait,
    ) -> None:
        """Change a cell so that the outcome is seen, also where its newest version has a timestamp of the future."""
        self._check_writable(wait)
        row = self._state.codec.encode(key)

        def attempt() -> int | None:
            read_at = self._read_txn()
            self._store.admit_row(self._state, row)
            view = self._state.view
            parts = view.parts
            point = ReadPoint(read_at, parts.projection([column], versions=2))
            found = parts.reader.read_row(view, view.metadata.tablet_for(row), row, point)
            versions = None if found is None else found.column(column)[0]
            newest = versions[0] if versions is not None and versions.is_valid else None
            after[:] = [change(target, None if newest is None else newest["value"].as_py())]
            cell = dict(zip(parts.schema.key_names, parts.codec.decode(row), strict=True))
            cell |= {"family": target.family, "qualifier": target.qualifier, "value": after[0]}
            if newest is not None and newest["timestamp"].value > microseconds_of(read_at):
                cell["timestamp"] = newest["timestamp"].value
            batch = to_cells_batch([cell], parts.schema, **self._limits)
            try:
                return self._try_apply(parts.admission.put(batch), read_at, wait)
            except SchemaChanged:
                return None

        self._retried(attempt)

    def transact(
        self,
        key: object,
        change: Callable[[Row | None], dict[str, Any] | None],
        *,
        columns: Sequence[str] | None = None,
        wait: Wait = "durable",
    ) -> int:
        """Read a row, call `change` with it (None if there is none), and put what it returns, all in one step.

        If the row changed in between, `change` is called again with the newer row. If it returns None, nothing is
        written. Returns the txn of the commit, or of the read.
        """
        self._check_writable(wait)
        row = self._state.codec.encode(key)

        def attempt() -> int | None:
            read_at = self._read_txn()
            version = self._state.view.parts.version
            changes = change(self._read_one(row, columns, read_at))
            if changes is None:
                return read_at
            if not isinstance(changes, dict):
                raise RequestError(f"change returns the columns to put as a dict, or None, not {changes!r}")
            parts = self._state.view.parts
            named = dict(zip(parts.schema.key_names, parts.codec.decode(row), strict=True))
            if any(name in changes and changes[name] != value for name, value in named.items()):
                raise RequestError("change returned another key: it can only change the row that it was given")
            mutation = self._admit({**changes, **named})
            if mutation.schema_version != version:
                return None  # what was read may have other columns by now
            try:
                return self._try_apply(mutation, read_at, wait)
            except SchemaChanged:
                return None

        return self._retried(attempt)

    def _apply(self, mutation: Mutation | RowMutation, since: int | None, wait: Wait) -> int:
        return self._store.apply(self._state, mutation, unchanged_since=since, wait=wait)

    def _try_apply(self, mutation: Mutation | RowMutation, read_at: int, wait: Wait) -> int | None:
        """Apply if nothing changed since the read; None if something did."""
        try:
            return self._apply(mutation, read_at, wait)
        except Conflict:
            return None

    def _read_txn(self) -> int:
        """Return the txn of this very moment, for changes that depend on what was read."""
        return self._store.read_txn(uncommitted=True, at_once=self._state.view.parts.expires)

    def _retried(self, attempt: Callable[[], int | None]) -> int:
        for _ in range(CHANGE_ATTEMPTS_MAX):
            txn = attempt()
            if txn is not None:
                return txn
        raise Conflict(f"rows of {self.name!r} keep changing under this one: try again when fewer others write them")

    def _check_writable(self, wait: str) -> None:
        if self._as_of is not None:
            raise ReadOnly("a snapshot cannot be written: use the table of the database")
        if wait not in ("durable", "logged", "none"):
            raise RequestError(f"wait is 'durable', 'logged' or 'none', not {wait!r}")

    # --- reading ---

    def get(
        self,
        key: object,
        columns: Sequence[str] | None = None,
        *,
        as_of: AsOf | None = None,
        read_uncommitted: bool = False,
    ) -> Row | None:
        """Return one row, or None if there is none.

        With `columns`, a row is there if one of the groups that these columns are in has it. `as_of` is a txn, a time
        (UTC if it has no zone), a snapshot, or the name of one.
        """
        parts = self._state.view.parts
        encoded = parts.codec.encode(key)
        if columns is None and as_of is None and self._as_of is None and not (read_uncommitted or parts.expires):
            txn = self._sequencer.committed
            cached = parts.row_cache.rows.get(encoded)
            if cached is not None:
                row = Row(copy.deepcopy(cached) if parts.has_nested else cached)
                row.txn = txn
                return row
            return self._read_and_cache(encoded, txn)
        return self._read_one(encoded, columns, self._txn(as_of, read_uncommitted))

    def _read_and_cache(self, encoded: bytes, txn: int) -> Row | None:
        self._check_served()
        view = self._state.view
        parts = view.parts
        row = self._read_from(view, encoded, parts.everything, txn)
        if row is not None and parts.row_cache.wants(encoded):
            slot = self._store.recent.slot_of(encoded, self._state.salt)
            kept = copy.deepcopy(dict(row)) if parts.has_nested else dict(row)
            size = sum(len(v) if isinstance(v, (bytes, str)) else 32 for v in row.values())
            parts.row_cache.put(encoded, kept, size, slot, txn)
        return row

    def _read_one(self, encoded: bytes, columns: Sequence[str] | None, txn: int) -> Row | None:
        view = self._state.view
        return self._read_from(view, encoded, view.parts.projection(columns), txn)

    def _read_from(self, view: TableView, encoded: bytes, projection: Projection, txn: int) -> Row | None:
        if not self._state.door.is_open:
            self._store.admit_row(self._state, encoded)
        parts = view.parts
        point = ReadPoint(txn, projection)
        try:
            if projection.plain:
                values = parts.reader.get(view, encoded, point)
                if values is None:
                    return None
                row = Row(zip(parts.schema.key_names, parts.codec.decode(encoded), strict=True))
                row.update(values)
            else:
                found = parts.reader.read_row(view, view.metadata.tablet_for(encoded), encoded, point)
                if found is None:
                    return None
                row = Row(spread(found.to_pylist()[0], projection))
        except OverflowError as reason:
            raise beyond_python(reason) from None
        row.txn = txn
        return row

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, as_of: AsOf | None = None) -> pa.Table:
        """Return rows in the order asked, one for each key, with a column ``_found``; a missing row is all null.

        `keys` is a list of keys, or Arrow, pandas or polars with the columns of the key. With `columns`, a row is found
        if one of the groups that these columns are in has it.
        """
        codec = self._state.codec
        asked = codec.encode_many(keys)
        txn = self._txn(as_of, False)
        if len(asked) >= NEIGHBOURS_MIN and self._state.door.is_open:
            view = self._state.view  # after the txn, so that it has everything up to it
            point = ReadPoint(txn, view.parts.projection(columns))
            neighbours = view.parts.reader.read_neighbours(view, asked, point)
            if neighbours is not None:
                return pa.Table.from_batches([neighbours]).append_column(FOUND, _all_found(len(asked)))
        rows, back = asked, None
        if not is_strictly_sorted(asked):
            order, repeats = sort_rows(asked)
            rows = asked.take(pa.array(order[~repeats]))
            back = np.empty(len(order), dtype=np.int64)
            back[order] = np.cumsum(~repeats) - 1
        found = self._read_rows(rows, columns, txn)
        if found.num_rows == len(rows):
            if back is not None:
                found = found.combine_chunks().take(pa.array(back))
            return found.append_column(FOUND, _all_found(len(asked)))
        # The columns of the key come first, whatever they are called by now.
        there = codec.encode_arrays([_one(found.column(at)) for at in range(len(self.key_names))])
        places = pc.index_in(asked, value_set=there)
        answer = found.take(places)
        for at, column in enumerate(codec.decode_arrays(asked)):
            answer = answer.set_column(at, answer.schema.field(at), column)
        return answer.append_column(FOUND, pc.is_valid(places))

    def _read_rows(
        self, rows: pa.Array, columns: Sequence[str] | None, txn: int, schema_version: int | None = None
    ) -> pa.Table:
        """Read many rows; with a version, only under that version of the schema."""
        view = self._state.view
        if schema_version not in (None, view.parts.version):
            raise schema_changed(self.name)
        projection = view.parts.projection(columns)
        if not self._state.door.is_open and len(rows):
            self._store.admit(self._state, KeyRange(rows[0].as_py(), successor(rows[-1].as_py())))
        batches = view.parts.reader.read_rows(view, rows, ReadPoint(txn, projection))
        return pa.Table.from_batches(batches, projection.arrow_schema)

    def scan(
        self,
        start: object = None,
        stop: object = None,
        *,
        prefix: object = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        versions: int = 1,
        as_of: AsOf | None = None,
        limit: int | None = None,
        reverse: bool = False,
        read_uncommitted: bool = False,
        latest: bool = False,
        resume: Position | None = None,
    ) -> Scan:
        """Return the rows from `start` up to and not including `stop`, in key order; both may be prefixes of a key.

        `where` is a pyarrow expression over columns. With `versions` greater than 1, every value is a list of its
        newest versions. `as_of` is a txn, a time (UTC if it has no zone), a snapshot or the name of one. With
        `columns`, the rows are those that the groups of these columns have. `prefix` is the beginning of a key that is
        one string or binary, or the first columns of a composite key. `latest` follows newer commits as it goes,
        instead of reading one snapshot; `read_uncommitted` also shows what is not in the log yet. `resume` goes on
        after the `position` of an earlier scan with the same arguments, at the txn of that scan.
        """
        _check_whole("limit", limit, at_least=0)
        _check_whole("versions", versions, at_least=1)
        if where is not None and not isinstance(where, pc.Expression):
            raise RequestError(f"where is a pyarrow expression, such as pc.field('age') > 5, not {where!r}")
        if resume is not None and not isinstance(resume, Position):
            raise RequestError(f"resume is the position of a scan, not {resume!r}")
        projection = self._state.projection(columns, versions)
        txn = self._txn(resume.txn if resume is not None else as_of, read_uncommitted)
        after = None if resume is None else resume.key
        request = ScanRequest(
            projection,
            self._rest(self._range(start, stop, prefix), after, reverse),
            where,
            limit,
            reverse,
            None if latest else txn,
            read_uncommitted,
            txn,
        )
        scanner = Scanner(self._store, self._state, request)
        return Scan(
            lambda whole: scanner.tables(whole=whole), projection, txn, self._store.settings.scan_batch_rows, after
        )

    def _rest(self, key_range: KeyRange, after: tuple[Any, ...] | None, reverse: bool) -> KeyRange:
        """Return what is left of a range after a key that was given already."""
        if after is None:
            return key_range
        row = self._state.codec.encode(after)
        rest = KeyRange(b"", row) if reverse else KeyRange(successor(row))
        return key_range.intersect(rest) or KeyRange(row, row)

    def _range(self, start: object, stop: object, prefix: object) -> KeyRange:
        codec = self._state.codec
        if prefix is not None:
            if start is not None or stop is not None:
                raise RequestError("give either prefix, or start and stop")
            return codec.prefix_range(prefix)
        first = b"" if start is None else codec.bound(start)
        last = None if stop is None else codec.bound(stop)
        return KeyRange(first, last) if first or last is not None else ALL

    def _txn(self, as_of: AsOf | None, uncommitted: bool) -> int:
        self._check_served()
        if isinstance(as_of, str):
            as_of = self._store.pins.txn_of(as_of)
        at = txn_of(as_of) if as_of is not None else self._as_of
        return self._store.read_txn(at, uncommitted=uncommitted, at_once=self._state.view.parts.expires)

    def _check_served(self) -> None:
        if self._store.is_closed:
            raise Closed("the database was closed: open it again")
        if self._state.is_dropped:
            raise UnknownTable(f"the table {self.name!r} was dropped")

    # --- care ---

    def flush(self) -> None:
        """Write everything that is committed to fragments."""
        self._check_writable("durable")
        self._store.flush(self._state)

    def compact(self) -> None:
        """Merge all fragments of the table, leaving out what no snapshot within its history can see.

        This happens by itself where it pays; by hand it is for after large changes, and for tests.
        """
        self._check_writable("durable")
        self._store.compact(self._state)

    def split(self, at: object = None, *, tablet: str | None = None) -> tuple[str, str]:
        """Split a tablet in two and return the ids of the two, the one with the smaller keys first.

        `at` is the key, or a prefix of keys, with which the second begins; without it, one is chosen that divides the
        rows evenly. `tablet` says which, by its id; by default it is the one that has `at`, or the largest. Rows are
        not copied, and reads and writes go on. Raises `CannotSplit` if that is no place to split.
        """
        self._check_writable("durable")
        row = None if at is None else self._state.codec.bound(at)
        return self._store.split(self._state, row, tablet)

    def join(self, first: object = None, last: object = None, *, tablets: tuple[str, str] | None = None) -> str:
        """Make one tablet of two neighbours and return its id.

        They are the tablet that has the key `first` and the one that has the key `last`, or those of two ids. Rows are
        not copied, and reads and writes go on. Raises `CannotJoin` if they are not neighbours.
        """
        self._check_writable("durable")
        metadata = self._state.view.metadata
        if tablets is not None:
            if first is not None or last is not None or len(tablets) != 2:
                raise CannotJoin("give either two keys, or the ids of two tablets")
            named = [metadata.by_id(tablet) for tablet in tablets]
        else:
            codec = self._state.codec
            named = [
                metadata.tablets[0] if first is None else metadata.tablet_for(codec.bound(first)),
                metadata.tablets[-1] if last is None else metadata.tablet_for(codec.bound(last)),
            ]
        left, right = named
        if left is None or right is None:
            raise CannotJoin(f"{self.name!r} has no such tablet: see tablets()")
        if left.last is None or left.last != right.first:
            raise CannotJoin(
                f"the tablets {left.id} and {right.id} of {self.name!r} are not neighbours in this order: see tablets()"
            )
        return self._store.join(self._state, left, right)

    def tablets(self) -> list[dict[str, Any]]:
        """Describe the tablets of the table: id, key range, fragments and sizes.

        `rows` and `bytes` are of the files: every version of a row counts, and until a compaction the files that two
        tablets share after a split count in both.
        """
        decode = self._state.codec
        described = []
        for tablet in self._state.view.metadata.tablets:
            references = [ref for state in tablet.groups for ref in state.fragments]
            described.append(
                {
                    "id": tablet.id,
                    "first": None if tablet.first == b"" else _shown_bound(decode.decode_bound, tablet.first),
                    "last": None if tablet.last is None else _shown_bound(decode.decode_bound, tablet.last),
                    "state": tablet.state,
                    "life": self._state.door.state_of(tablet.id).name.lower(),
                    "fragments": len(references),
                    "rows": sum(ref.rows for ref in references),
                    "bytes": sum(ref.bytes for ref in references),
                }
            )
        return described

    def stats(self) -> dict[str, Any]:
        """Return sizes and counts: per group what is in memory and in fragments, and the row cache."""
        view = self._state.view
        groups = {}
        for group in view.schema.groups:
            memory = view.memory_of(group.id)
            files = {ref.file: ref for t in view.metadata.tablets for ref in t.group(group.id).fragments}
            groups[group.name] = {
                "layout": group.layout,
                "memory_bytes": memory.bytes,
                "memory_records": sum(len(block) for block in memory.blocks),
                "memory_blocks": len(memory.blocks),
                "fragments": len(files),
                "fragment_records": sum(ref.rows for ref in files.values()),
                "fragment_bytes": sum(ref.bytes for ref in files.values()),
                "fragments_deep": max(len(runs_of(t.group(group.id).fragments)) for t in view.metadata.tablets),
                "versions_replaced": sum(ref.surplus for ref in files.values()),
                "range_erasures": len(memory.erasures)
                + sum(len(tablet.group(group.id).erasures) for tablet in view.metadata.tablets),
            }
        return {
            "table": self.name,
            "id": self._state.id,
            "schema_version": view.schema.version,
            "stage": self._state.door.stage.name.lower(),
            "tablets": len(view.metadata.tablets),
            "groups": groups,
            "row_cache": self._state.row_cache.stats(),
        }

    def files(self) -> list[str]:
        """Return the fragment files of the table, relative to the store: ordinary Parquet, for any reader.

        What is only in the log is not in them (see `flush`). Others lie beside them for a while: files that were merged
        into these.
        """
        return sorted(set(self._state.view.metadata.files()))


def _several_times(rows: object) -> object:
    """Return rows that can be read more than once, should the schema change while they are written."""
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    return list(rows) if isinstance(rows, Iterator) else rows


def _all_found(count: int) -> pa.Array:
    return _ALL_FOUND.slice(0, count) if count <= len(_ALL_FOUND) else pa.repeat(True, count)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _sorted_distinct(rows: pa.Array) -> pa.Array:
    order, repeats = sort_rows(rows)
    return rows.take(pa.array(order[~repeats]))


def _shown_bound(decode: Callable[[bytes], tuple[Any, ...]], row: bytes) -> Any:
    """Return a tablet's bound as a key, or its first columns, if it is one, else as bytes."""
    try:
        key = decode(row)
    except RequestError:
        return row
    return key[0] if len(key) == 1 else key


def _shown(key: Sequence[pa.Scalar]) -> str:
    try:
        values = tuple(part.as_py() for part in key)
    except OverflowError:  # a date after the year 9999, which Arrow has and Python has not
        return "with that key"
    return repr(values[0] if len(values) == 1 else values)


def _check_whole(name: str, value: object, *, at_least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise RequestError(f"{name} is a whole number of at least {at_least}, not {value!r}")
