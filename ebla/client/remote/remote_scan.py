"""A scan of a table that others serve: segment by segment, server by server, in the order of the keys.

    shares     |--- server a ---|--- server b ---|- a -|        the range, cut where the server changes
    segments   |1|--2--|--3--|4 |...                            each says its last row, and whether it is the last

The next segment is fetched while the one before is used; if all rows are wanted, or in any order, all servers are read
at the same time (parallel_reading.py). A segment that does not come is asked for again: from the same
server, or from whoever has the tablet by then, always at the scan's txn and after the last row that was given. So a
failure anywhere neither loses a row nor gives one twice.

Filters in the language of `where` are evaluated by the servers. An expression of pyarrow is evaluated here, on every
segment: to read one that strangers sent can end a process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.client.remote.parallel_reading import read_together
from ebla.client.remote.pooled import Pooled
from ebla.client.remote.retrying import persist
from ebla.client.remote.routes import Share
from ebla.errors import EblaError, RequestError, SchemaChanged
from ebla.model.filters import unusable, with_columns_of
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.rpc.methods import Asks
from ebla.rpc.wire.arrow_bytes import rows_from_bytes
from ebla.rpc.wire.messages import BeginScan, CountRows, EndScan, ScanBegun, ScanForm, ScanOn, Segment
from ebla.service.requests import Moment, ScanRows

if TYPE_CHECKING:
    from ebla.client.remote.remote_table import RemoteTable

__all__ = ["RemoteStream"]

_Answer = TypeVar("_Answer")

SEGMENT_BYTES_FIRST = 1 << 20
SEGMENT_BYTES = 8 << 20
# No table has more rows.
_ROWS_MAX = (1 << 63) - 1


class RemoteStream:
    """The rows of a scan. Use it from one thread at a time."""

    def __init__(
        self, table: RemoteTable, request: ScanRows, projection: Projection, begun: ScanBegun, cursor: str | None
    ) -> None:
        # Set once.
        self._table = table
        self._request = request
        self.projection = projection
        self.batch_rows = table.service.settings.scan_batch_rows
        self._filter = request.where if isinstance(request.where, pc.Expression) else None
        self._asked = projection if self._filter is None else with_columns_of(self._filter, projection)
        # Of what was read last.
        self.txn = begun.txn
        # What came with the beginning is used once.
        self._first = (begun.segment, cursor)

    @classmethod
    def begun(cls, table: RemoteTable, request: ScanRows) -> RemoteStream:
        """Begin a scan: the moment is fixed, and unless it is only to count, the first rows are fetched."""
        route = table.current()
        if request.where is not None and not isinstance(request.where, (str, pc.Expression)):
            from ebla.model.where import to_expression

            to_expression(request.where, route.location.schema)  # says what a filter is
        if isinstance(request.columns, str):
            raise RequestError(f"columns is a list of names, such as [{request.columns!r}]")
        if request.columns is not None:
            request = msgspec.structs.replace(request, columns=tuple(request.columns))
        rows = _rest(request.key_range, request.after, request.reverse)
        shares = route.shares(rows, reverse=request.reverse) or [Share(route.servers[0], KeyRange(b"", b""))]
        is_filtered_here = isinstance(request.where, pc.Expression)
        servers = tuple(dict.fromkeys(share.server for share in shares))
        is_whole = len(servers) == 1 and not is_filtered_here and request.columns != ()
        cursor = uuid.uuid4().hex if is_whole else None

        def begin(part: KeyRange) -> BeginScan:
            form = _form(request, part, request.limit, request.at, None if not is_filtered_here else request.columns)
            return BeginScan(table.id, form, cursor if part == rows else None)

        # At the newest moment of all of them: what one has acknowledged before now is seen. Each is asked for its own
        # rows, and refuses others.
        calls = [partial(_of_each, table, share.rows, begin) for share in shares]
        found: list[ScanBegun] = [one for answers in table.service.together(calls) for one in answers]
        begun = max(found, key=lambda one: one.txn)
        if len(found) > 1:
            begun = msgspec.structs.replace(begun, segment=None)
        projection = cls._projection(table, request, begun.schema_version)
        return cls(table, request, projection, begun, cursor)

    @staticmethod
    def _projection(table: RemoteTable, request: ScanRows, version: int) -> Projection:
        """Return how the answer looks, under the schema that the server used."""
        schema = table.route.location.schema
        if schema.version != version:
            schema = table.locate().location.schema
        if schema.version != version:
            raise SchemaChanged(f"the schema of {table.name!r} changes while the scan begins: begin it again")
        return Projection.of(schema, request.columns, request.versions)

    def count(self) -> int:
        """Return the number of rows, reading no more than it takes to tell."""
        request = self._request
        if self._filter is not None or request.limit is not None or request.latest:
            return sum(table.num_rows for table in self.tables(whole=True))
        table = self._table
        rows = _rest(request.key_range, request.after, request.reverse)
        version = self.projection.schema.version

        def count(part: KeyRange) -> CountRows:
            return CountRows(table.id, _form(request, part, None, Moment(self.txn)), version)

        calls = [partial(_of_each, table, share.rows, count) for share in table.current().shares(rows)]
        return sum(map(sum, table.service.together(calls))) if calls else 0

    def few_rows(self) -> None:
        """Return None: rows come over the wire as Arrow, however few they are."""

    def tables(self, *, whole: bool) -> Iterator[pa.Table]:
        """Yield the rows as Arrow tables, none of them empty."""
        self._table.service.check_open()
        left = None if self._request.limit is None else min(self._request.limit, _ROWS_MAX)
        if left == 0:
            return
        for segment in self._portions(left if self._filter is None else None, whole=whole):
            self.txn = segment.txn
            rows = self._shown(segment)
            if rows is None:
                continue
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
            yield rows
            if left == 0:
                return

    def _shown(self, segment: Segment) -> pa.Table | None:
        if segment.data is None:
            return None
        rows = rows_from_bytes(segment.data)
        if self._filter is not None:
            try:
                rows = rows.filter(self._filter)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise unusable(error, self._filter, rows.schema) from None
            rows = rows.select(self.projection.arrow_schema.names)
        return rows if rows.num_rows else None

    # --- segments ---

    def _portions(self, limit: int | None, *, whole: bool) -> Iterator[Segment]:
        """Yield the segments: of all servers at the same time, if their order does not matter or all are wanted."""
        request = self._request
        shares = self._table.current().shares(_rest(request.key_range, request.after, request.reverse))
        is_for_all = not request.ordered or (whole and limit is None and request.limit is None)
        if len(shares) < 2 or not is_for_all or request.latest or request.reverse:
            return self._segments(limit)
        parts = [(share.server, self._of(share.rows)._segments(None)) for share in shares]
        return read_together(parts, in_order=request.ordered)

    def _of(self, rows: KeyRange) -> RemoteStream:
        """Return what reads a part of the range, at the same moment."""
        request = msgspec.structs.replace(self._request, key_range=rows, after=None, limit=None)
        begun = ScanBegun(self.txn, self.projection.schema.version, None)
        return RemoteStream(self._table, request, self.projection, begun, None)

    def _segments(self, limit: int | None) -> Iterator[Segment]:
        """Yield the segments of the range in order, each fetched while the one before is used."""
        service = self._table.service
        (segment, cursor), self._first = self._first, (None, None)
        request = self._request
        at = self.txn
        rest: KeyRange | None = _rest(request.key_range, request.after, request.reverse)
        number = 0
        cursor = cursor or uuid.uuid4().hex
        wanted = SEGMENT_BYTES_FIRST
        waiting: Pooled[tuple[KeyRange, Segment]] | None = None
        try:
            while rest is not None and not rest.is_empty:
                if segment is not None:  # it came with the beginning, from a server that had all of the range then
                    part = rest
                elif waiting is not None:
                    part, segment = waiting.answer()
                else:
                    part, segment = self._fetch(rest, cursor, number, wanted, limit, at)
                waiting = None
                number += 1
                taken = segment
                segment = None
                if limit is not None and taken.data is not None:
                    limit -= _rows_in(taken)
                share_rest = _beyond(part, taken.last, request.reverse) if not taken.is_last else None
                if share_rest is not None:
                    rest = _joined(share_rest, rest, request.reverse)
                    wanted = min(wanted * 2, SEGMENT_BYTES)
                else:
                    rest = _behind(part, rest, request.reverse)
                    number, cursor = 0, uuid.uuid4().hex
                if rest is not None and not rest.is_empty and (limit is None or limit > 0):
                    fetch = partial(self._fetch, rest, cursor, number, wanted, limit, at)
                    waiting = Pooled(service.pool, fetch)
                yield taken
                if limit is not None and limit <= 0:
                    return
        finally:
            if waiting is not None:
                waiting.drop()
            if number:
                self._end(cursor, rest)

    def _share(self, rest: KeyRange) -> Share:
        """Return the first part of a range that one server has, by the newest route."""
        return self._table.current().shares(rest, reverse=self._request.reverse)[0]

    def _fetch(
        self, rest: KeyRange, cursor: str, number: int, wanted: int, limit: int | None, at: int
    ) -> tuple[KeyRange, Segment]:
        """Return the next rows, and which part of the range they are of: what its first server has."""
        table, request = self._table, self._request
        moment = request.at if request.latest else Moment(at, uncommitted=request.at.uncommitted)
        columns = None if self._filter is None else _columns_of(self._asked, request)

        def scan_on(part: KeyRange) -> ScanOn:
            form = _form(request, part, limit, moment, columns)
            return ScanOn(table.id, form, self.projection.schema.version, cursor, number, wanted)

        return _ask_first(table, rest, scan_on, reverse=request.reverse)

    def _end(self, cursor: str, rest: KeyRange | None) -> None:
        """Tell whoever serves that nobody goes on. If that fails, the cursor ends by its age."""
        if rest is None or rest.is_empty or self._table.service._is_closed:
            return
        server = self._share(rest).server
        try:
            self._table.service.pool.submit(_try_to, server, EndScan(cursor))
        except RuntimeError:
            return


def _ask_first(
    table: RemoteTable, rest: KeyRange, message_of: Callable[[KeyRange], Asks[_Answer]], *, reverse: bool = False
) -> tuple[KeyRange, _Answer]:
    """Ask the first server of a range for its part of it; return that part, and the answer.

    Tablets may move at any moment: before every attempt it is looked how far the part reaches by then.
    """

    def attempt(left_seconds: float) -> tuple[KeyRange, _Answer]:
        table.service.check_open()
        share = table.current().shares(rest, reverse=reverse)[0]
        return share.rows, share.server.call(message_of(share.rows), timeout_seconds=left_seconds)

    return persist(attempt, table._look_again, table.service.timeout_seconds)


def _of_each(table: RemoteTable, rows: KeyRange, message_of: Callable[[KeyRange], Asks[_Answer]]) -> list[_Answer]:
    """Ask one server of a range after the other for its part; as a rule it is one."""
    answers: list[_Answer] = []
    rest: KeyRange | None = rows
    if rows.is_empty:
        return [table._ask_about(rows.first, message_of(rows))]
    while rest is not None and not rest.is_empty:
        part, answer = _ask_first(table, rest, message_of)
        answers.append(answer)
        rest = _behind(part, rest, False)
    return answers


def _try_to(server: Any, message: EndScan) -> None:
    try:
        server.call(message, timeout_seconds=1.0)
    except EblaError:
        return


def _form(request: ScanRows, rows: KeyRange, limit: int | None, at: Moment, columns: Any = None) -> ScanForm:
    is_filtered_here = isinstance(request.where, pc.Expression)
    return ScanForm(
        rows.first,
        rows.last,
        columns if is_filtered_here else request.columns,  # type: ignore[arg-type]
        request.versions,
        None if is_filtered_here else request.where,
        None if limit is None or is_filtered_here else min(limit, _ROWS_MAX),
        request.reverse,
        at,
        request.latest,
        None,
    )


def _columns_of(projection: Projection, request: ScanRows) -> tuple[str, ...] | None:
    """Return the names to ask for, so that the filter has its columns; all, where the rows of all groups are meant."""
    return tuple(projection.names) if request.columns else None


def _rest(key_range: KeyRange, after: bytes | None, reverse: bool) -> KeyRange:
    """Return what is left of a range after a row that was given already."""
    if after is None:
        return key_range
    rest = KeyRange(b"", after) if reverse else KeyRange(successor(after))
    return key_range.intersect(rest) or KeyRange(after, after)


def _beyond(share: KeyRange, last: bytes | None, reverse: bool) -> KeyRange | None:
    rest = _rest(share, last, reverse)
    return None if rest.is_empty else rest


def _joined(share_rest: KeyRange, rest: KeyRange, reverse: bool) -> KeyRange:
    """Return what is left of the whole range, when a part of its first share is."""
    return KeyRange(rest.first, share_rest.last) if reverse else KeyRange(share_rest.first, rest.last)


def _behind(share: KeyRange, rest: KeyRange, reverse: bool) -> KeyRange | None:
    """Return what is left of the whole range behind its first share."""
    if reverse:
        return None if share.first <= rest.first else KeyRange(rest.first, share.first)
    return None if share.last is None or share.last == rest.last else KeyRange(share.last, rest.last)


def _rows_in(segment: Segment) -> int:
    return 0 if segment.data is None else int(rows_from_bytes(segment.data).num_rows)
