"""A table as a user holds it: put, get, scan, erase, and changes that depend on what was read."""

from __future__ import annotations

import contextlib
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.arguments import checked_callback, checked_choice, checked_flag, checked_names, plain_text
from ebla.client.moments import AsOf, moment_of
from ebla.client.scan import Position, Scan
from ebla.client.staying import StaysHere
from ebla.errors import CannotJoin, Conflict, ReadOnly, RequestError, SchemaChanged, shown
from ebla.model.ranges import ALL, KeyRange
from ebla.model.schema import TableSchema
from ebla.model.where import Where
from ebla.retry import CHANGES
from ebla.rows.row import Row
from ebla.service.requests import (
    THIS_VERY_MOMENT,
    Compact,
    DescribeTable,
    DescribeTablets,
    Erase,
    EraseRange,
    Flush,
    Join,
    ListFiles,
    Modify,
    Moment,
    Put,
    PutCells,
    ReadRow,
    ReadRows,
    ScanRows,
    Split,
    Wait,
)
from ebla.service.service import TableService

# The number itself, and nothing that equals it: whatever else is given goes the longer way, and is checked there.
_ONE = 1


class Table(StaysHere):
    """One table of a database. Safe to use from several threads."""

    def __init__(self, service: TableService, as_of: int | None = None) -> None:
        # Set once.
        self._service = service
        self._as_of = as_of

    def __repr__(self) -> str:
        return f"<ebla.Table {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._service.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force."""
        return self._service.schema

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
        if if_unchanged_since is not None:
            _check_txn("if_unchanged_since", if_unchanged_since)
        replace, if_absent = checked_flag("replace", replace), checked_flag("if_absent", if_absent)
        return self._service.write(Put(rows, replace, if_absent, if_unchanged_since, wait))

    def put_cells(self, cells: object, *, wait: Wait = "durable") -> int:
        """Write cells in long form: key columns, family, qualifier, value, and if wanted timestamp (microseconds)."""
        self._check_writable(wait)
        return self._service.write(PutCells(cells, wait))

    def erase(
        self,
        key: object,
        columns: Sequence[str] | None = None,
        *,
        if_unchanged_since: int | None = None,
        wait: Wait = "durable",
    ) -> int:
        """Erase a row, or only some of its columns, cells (``family:qualifier``) or families. Returns the txn.

        `if_unchanged_since` raises `Conflict`, and erases nothing, if the row was changed after that txn.
        """
        return self.erase_many([key], columns, if_unchanged_since=if_unchanged_since, wait=wait)

    def erase_many(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        if_unchanged_since: int | None = None,
        wait: Wait = "durable",
    ) -> int:
        """Erase many rows, or some columns of them, in one commit. Returns the txn.

        `if_unchanged_since` raises `Conflict`, and erases nothing, if one of the rows was changed after that txn.
        """
        self._check_writable(wait)
        if if_unchanged_since is not None:
            _check_txn("if_unchanged_since", if_unchanged_since)
        rows = self._service.codec.encode_many(keys)
        names = None if columns is None else checked_names("columns", columns)
        return self._service.write(Erase(rows, names, if_unchanged_since, wait))

    def erase_range(
        self, start: object = None, stop: object = None, *, prefix: object = None, wait: Wait = "durable"
    ) -> int:
        """Erase all rows from `start` up to and not including `stop`, or all that `prefix` begins, in one step.

        The three mean what they mean to `scan`. Returns the txn.
        """
        self._check_writable(wait)
        return self._service.write(EraseRange(self._range(start, stop, prefix), wait))

    # --- changes that depend on what was read ---

    def increment(self, key: object, column: str, by: float = 1, *, wait: Wait = "durable") -> Any:
        """Add `by` to a number and return the sum as it is stored. Nothing there counts as 0.

        In a cells group the number is a signed 64-bit integer, big-endian.
        """
        addend = _checked_addend(by)
        self._check_writable(wait)
        return self._service.modify(
            Modify(self._service.codec.encode(key), plain_text(column), "increment", addend, wait)
        )

    def append(self, key: object, column: str, suffix: Any, *, wait: Wait = "durable") -> Any:
        """Append to a string, binary value or list and return the whole as it is stored. Nothing counts as empty."""
        self._check_writable(wait)
        return self._service.modify(Modify(self._service.codec.encode(key), plain_text(column), "append", suffix, wait))

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
        if not callable(change):
            raise RequestError(f"change is a function that gets the row and returns what to put, not {shown(change)}")
        if columns is not None:
            columns = checked_names("columns", columns)  # of an iterator too: the row may be read more than once
        row = self._service.codec.encode(key)
        for _ in CHANGES:
            read = self._service.read_row(ReadRow(row, columns, THIS_VERY_MOMENT))
            changes = change(read.row)
            if changes is None:
                return read.txn
            changed = self._with_key(row, changes)
            with contextlib.suppress(Conflict, SchemaChanged):  # somebody was faster
                put = Put(changed, unchanged_since=read.txn, wait=wait, schema_version=read.schema_version)
                return self._service.write(put)
        raise Conflict(f"rows of {self.name!r} keep changing under this one: try again when fewer others write them")

    def _with_key(self, row: bytes, changes: object) -> dict[str, Any]:
        """Return what is to be put: what `change` returned, of the row that it was given."""
        if not isinstance(changes, dict):
            raise RequestError(f"change returns the columns to put as a dict, or None, not {shown(changes)}")
        codec = self._service.codec
        named = dict(zip(self.key_names, codec.decode(row), strict=True))
        # As rows, not as values: of floats, NaN is not equal to itself and yet the same key.
        returned = tuple(changes.get(name, value) for name, value in named.items())
        if any(name in changes for name in named) and codec.encode(returned) != row:
            raise RequestError("change returned another key: it can only change the row that it was given")
        return {**changes, **named}

    def _check_writable(self, wait: str) -> None:
        if self._as_of is not None:
            raise ReadOnly("a snapshot cannot be written: use the table of the database")
        checked_choice("wait", wait, ("durable", "logged", "none"))

    # --- reading ---

    def get(
        self,
        key: object,
        columns: Sequence[str] | None = None,
        *,
        versions: int = 1,
        as_of: AsOf | None = None,
        read_uncommitted: bool = False,
    ) -> Row | None:
        """Return one row, or None if there is none.

        With `columns`, a row is there if one of the groups that these columns are in has it. With `versions` greater
        than 1, every value is a list of its newest versions. `as_of` is a txn, a time (UTC if it has no zone), a
        snapshot, or the name of one.
        """
        if columns is None and versions is _ONE and as_of is self._as_of is None and read_uncommitted is False:
            return self._service.get(key)
        read_uncommitted = checked_flag("read_uncommitted", read_uncommitted)
        row = self._service.codec.encode(key)
        _check_whole("versions", versions, at_least=1)
        return self._service.read_row(ReadRow(row, columns, self._moment(as_of, read_uncommitted), versions)).row

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, as_of: AsOf | None = None) -> pa.Table:
        """Return rows in the order asked, one for each key, with a column ``_found``; a missing row is all null.

        `keys` is a list of keys, or Arrow, pandas or polars with the columns of the key. With `columns`, a row is found
        if one of the groups that these columns are in has it.
        """
        rows = self._service.codec.encode_many(keys)
        return self._service.read_rows(ReadRows(rows, columns, self._moment(as_of)))

    def scan(
        self,
        start: object = None,
        stop: object = None,
        *,
        prefix: object = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        versions: int = 1,
        as_of: AsOf | None = None,
        limit: int | None = None,
        reverse: bool = False,
        read_uncommitted: bool = False,
        latest: bool = False,
        resume: Position | None = None,
        ordered: bool = True,
    ) -> Scan:
        """Return the rows from `start` up to and not including `stop`, in key order; both may be prefixes of a key.

        `where` is a filter such as ``"age > 30 and name like 'A%'"`` (see docs/api.md), or a pyarrow expression over
        columns. With `versions` greater than 1, every value is a list of its newest versions. `as_of` is a txn, a
        time (UTC if it has no zone), a snapshot or the name of one. With `columns`, the rows are those that the groups
        of these columns, and of those that `where` names, have. `prefix` is the beginning of a key that is one string
        or binary, or the first columns of a composite key. `latest` follows newer commits as it goes, instead of
        reading one snapshot; `read_uncommitted` also shows what is not in the log yet. `resume` goes on after the
        `position` of an earlier scan with the same arguments, at the txn of that scan. Without `ordered`, the servers
        of a cluster are read at the same time, and their rows come as they come; such a scan has no position.
        """
        reverse, latest = checked_flag("reverse", reverse), checked_flag("latest", latest)
        ordered = checked_flag("ordered", ordered)
        if not ordered and (reverse or latest or resume is not None):
            raise RequestError("rows that come in any order have no reverse, no latest and no resume: leave those out")
        read_uncommitted = checked_flag("read_uncommitted", read_uncommitted)
        _check_whole("limit", limit, at_least=0)
        _check_whole("versions", versions, at_least=1)
        if resume is not None and not isinstance(resume, Position):
            raise RequestError(f"resume is the position of a scan, not {shown(resume)}")
        if latest and (as_of is not None or self._as_of is not None):
            raise RequestError("latest follows newer commits, and as_of and snapshots show none: give one of them")
        after = None if resume is None else resume.key
        request = ScanRows(
            self._range(start, stop, prefix),
            columns,
            versions,
            where,
            limit,
            reverse,
            self._moment(resume.txn if resume is not None else as_of, read_uncommitted),
            latest,
            None if after is None else self._service.codec.row_of(after),
            ordered,
        )
        return Scan(self._service.scan(request), self._service.codec, after, is_ordered=ordered)

    def count(
        self,
        start: object = None,
        stop: object = None,
        *,
        prefix: object = None,
        where: Where | None = None,
        as_of: AsOf | None = None,
    ) -> int:
        """Return the number of rows; the arguments mean what they mean to `scan`.

        No value is read but those that `where` names. Where files do not lie on each other, and without `where`, only
        their sizes are looked at.
        """
        return self.scan(start, stop, prefix=prefix, columns=(), where=where, as_of=as_of).count()

    def _range(self, start: object, stop: object, prefix: object) -> KeyRange:
        codec = self._service.codec
        if prefix is not None:
            if start is not None or stop is not None:
                raise RequestError("give either prefix, or start and stop")
            return codec.prefix_range(prefix)
        first = b"" if start is None else codec.bound(start)
        last = None if stop is None else codec.bound(stop)
        return KeyRange(first, last) if first or last is not None else ALL

    def _moment(self, as_of: AsOf | None, uncommitted: bool = False) -> Moment:
        if as_of is None:
            return Moment(self._as_of, uncommitted=uncommitted)
        return moment_of(as_of, uncommitted)

    # --- care ---

    def flush(self) -> None:
        """Write everything that is committed to fragments."""
        self._check_writable("durable")
        self._service.carry_out(Flush())

    def compact(self, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Merge all fragments of the table, leaving out what no snapshot within its history can see.

        This happens by itself where it pays; by hand it is for after large changes, and for tests. `progress` is
        called with how many tablets are done, and how many there are.
        """
        self._check_writable("durable")
        self._service.carry_out(Compact(), checked_callback("progress", progress))

    def split(self, at: object = None, *, tablet: str | None = None) -> tuple[str, str]:
        """Split a tablet in two and return the ids of the two, the one with the smaller keys first.

        `at` is the key, or a prefix of keys, with which the second begins; without it, one is chosen that divides the
        rows evenly. `tablet` says which, by its id; by default it is the one that has `at`, or the largest. Rows are
        not copied, and reads and writes go on. Raises `CannotSplit` if that is no place to split.
        """
        self._check_writable("durable")
        row = None if at is None else self._service.codec.bound(at)
        return self._service.carry_out(Split(row, tablet))

    def join(self, first: object = None, last: object = None, *, tablets: tuple[str, str] | None = None) -> str:
        """Make one tablet of two neighbours and return its id.

        They are the tablet that has the key `first` and the one that has the key `last`, or those of two ids. Rows are
        not copied, and reads and writes go on. Raises `CannotJoin` if they are not neighbours.
        """
        self._check_writable("durable")
        if tablets is not None:
            if first is not None or last is not None or not isinstance(tablets, Sequence) or len(tablets) != 2:
                raise CannotJoin("give either two keys, or the ids of two tablets")
            return self._service.carry_out(Join((tablets[0], tablets[1])))
        codec = self._service.codec
        ends = [None if key is None else codec.bound(key) for key in (first, last)]
        return self._service.carry_out(Join(None, *ends))

    def tablets(self) -> list[dict[str, Any]]:
        """Describe the tablets of the table: id, key range, fragments and sizes.

        `rows` counts a row once, however many groups and tablets its files have; it is a number of records, so that
        until they are merged an update counts like a new row: `is_exact` tells whether it can be another. `bytes` is
        the tablet's share of its files.
        """
        return self._service.carry_out(DescribeTablets())

    def stats(self) -> dict[str, Any]:
        """Return sizes and counts: per group what is in memory and in fragments, and the row cache."""
        return self._service.carry_out(DescribeTable())

    def files(self) -> list[str]:
        """Return the fragment files of the table, relative to the store: ordinary Parquet, for any reader.

        What is only in the log is not in them (see `flush`). Others lie beside them for a while: files that were merged
        into these, and what only reads of the past need, which a merge keeps apart.
        """
        return self._service.carry_out(ListFiles())


def _check_txn(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise RequestError(f"{name} is a txn, as `row.txn` has it and writes return it, not {shown(value)}")


def _check_whole(name: str, value: object, *, at_least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise RequestError(f"{name} is a whole number of at least {at_least}, not {shown(value)}")


def _checked_addend(by: Any) -> int | float | decimal.Decimal:
    """Return what to add as a number of Python's; `RequestError` if it is none."""
    plain = by.item() if isinstance(by, np.number) else by
    if isinstance(plain, bool) or not isinstance(plain, (int, float, decimal.Decimal)):
        raise RequestError(f"by is a number, not {shown(by)}")
    return plain
