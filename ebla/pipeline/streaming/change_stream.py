"""A table as a stream of its changes: batches from one offset to the next, whoever asks for them.

    begin       a pin: history is held from here on                         since: everything, now, a txn, a time
    fix_end     what is available now: nothing that is committed later is given out
    next        how far the next batch goes: to the newest commit, or as many rows as the limit allows
    portions    ranges of rows with something to look at                    `changes` compares them in tasks
    done        the pin moves forward to what is still needed

`stream_reader` hands it to Structured Streaming; `printing` runs it in this process.

**Rounds.** A limit cuts a batch at a key. The rows behind the cut follow in the next batches, up to the same txn,
before anything newer is looked at. So at the end of a round all rows are at one txn, the state of the table at that
moment, and every row has its turn however fast others change.

**History.** A batch is read at the txn where it begins and at the one where it ends, also if it is read again after a
crash. A pin in the coordination service holds the older one. Its name is in the offsets, so that a stream that goes on
from its checkpoint goes on with its pin; it expires `hold_seconds` after the stream was last seen.

**A quiet table** in a busy store goes on by an empty batch now and then: its pin holds the history of all tables.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ebla.client.database import Database
from ebla.clock import microseconds_of
from ebla.direct.following import follower_of
from ebla.direct.opens import store_of
from ebla.direct.views import TableState
from ebla.errors import RequestError, SchemaChanged, UnknownTable
from ebla.model.ranges import KeyRange
from ebla.pipeline.change_feed.change_plan import check_since, has_touched, steps, touched_rows
from ebla.pipeline.change_feed.changes import Portion, change_schema, plan_changes, txn_since
from ebla.pipeline.datasource.datasource_options import key_from_text
from ebla.pipeline.scanning.sections import range_asked, target_of
from ebla.pipeline.streaming.stream_holding import StreamHolding
from ebla.pipeline.streaming.stream_offsets import Offset, Position
from ebla.pipeline.streaming.stream_options import StreamReadOptions

__all__ = ["ChangeStream", "columns_of", "row_bytes"]

# Where nothing changes, a batch without rows comes so often.
QUIET_SECONDS = 60.0
ROWS_LOOKED_AT_MIN = 4_096


def columns_of(options: StreamReadOptions, table: TableState) -> pa.Schema:
    """Return the columns of the change rows, in the types in which they are stored."""
    return change_schema(table.projection(options.columns), options.before)


class ChangeStream:
    """The changes of one table. It has the store open as it needs it; not safe to use from several threads."""

    def __init__(self, options: StreamReadOptions, is_known: Callable[[pa.Schema], bool] | None = None) -> None:
        """`is_known` tells columns that the stream was begun with from others; without it, its first look says them."""
        # Set once.
        self._options = options
        address = options.address
        self._follower = follower_of(address.root, address.table, address.cluster)
        self._holding = StreamHolding(address.root, options.hold_seconds, address.cluster)
        # What goes on.
        self._is_known = is_known
        self._last: int | None = None  # nothing later is given out

    # --- where it begins, and where it ends ---

    def begin(self) -> Offset:
        """Return where a new stream begins, with its history held."""
        database, table = self._table(at_once=True)
        newest = store_of(database).sequencer.committed
        since = self._options.since
        first = 0 if since == "snapshot" else newest if since == "now" else txn_since(since, newest)
        if first > newest:
            raise RequestError(
                f"since ({first}) is later than the newest commit ({newest}): say now, or an earlier one"
            )
        # First it is held, then it is looked whether it is still there.
        pin = self._holding.begin(self._options.address.table, first or newest)
        database, table = self._table(at_once=True)
        check_since(table.view, table.projection(self._options.columns), self._asked(table), first or newest)
        return Offset(table.id, pin, Position(txns=(first,)))

    def fix_end(self) -> None:
        """Give out nothing that is committed after this moment."""
        database, _ = self._table(at_once=True)
        self._last = store_of(database).sequencer.committed

    # --- how far the next batch goes ---

    def next(self, began: Offset, *, rows_max: int | None = None, bytes_max: int | None = None) -> Offset:
        """Return the end of the next batch; `began` itself if there is nothing to give out."""
        if began.began is not None:  # else it is not written down yet, and may never be
            self._holding.renew(began.pin, began.at.needed)
        database, table = self._table(began)
        at = began.at
        until = at.newest
        if at.is_even:
            until = max(until, store_of(database).sequencer.committed)
            if self._last is not None:
                until = max(at.newest, min(until, self._last))
            if until == at.newest or not self._is_worth_a_batch(table, at, until):
                return began
        if bytes_max is not None:
            rows_max = max(1, bytes_max // row_bytes(table))
        return began.next(self._advanced(table, at, until, rows_max))

    def _is_worth_a_batch(self, table: TableState, at: Position, until: int) -> bool:
        quiet_seconds = (microseconds_of(until) - microseconds_of(at.newest)) / 1e6
        projection = table.projection(self._options.columns)
        return quiet_seconds > QUIET_SECONDS or has_touched(
            table.view, projection, self._asked(table), at.newest, until
        )

    def _advanced(self, table: TableState, at: Position, until: int, rows_max: int | None) -> Position:
        """Return the position with all rows at `until`, or only as many as the limit allows, from the first on."""
        asked = self._asked(table)
        for rows, since in at.ranges():
            if since >= until:
                continue
            wanted = rows.intersect(asked)
            if wanted is not None and rows_max is not None:
                found, cut = self._cut(table, wanted, since, until, rows_max)
                if cut is not None:
                    return at.moved(KeyRange(rows.first, cut), until)
                rows_max -= found
            at = at.moved(rows, until)
        return at

    def _cut(
        self, table: TableState, rows: KeyRange, since: int, until: int, rows_max: int
    ) -> tuple[int, bytes | None]:
        """Return how many rows of a range were touched; if they are too many, also the first of those."""
        parts = (table.view, table.reader, table.projection(self._options.columns))
        found = 0
        for step in steps(*parts, rows, since, until, max(rows_max, ROWS_LOOKED_AT_MIN)):
            touched = touched_rows(*parts, step.range, since, until)
            if found + len(touched) > rows_max:
                return found, touched[rows_max - found].as_py()
            found += len(touched)
        return found, None

    # --- a batch ---

    def portions(self, began: Offset, ended: Offset, cores: int) -> list[Portion]:
        """Return what tasks compare for the batch between two offsets."""
        # From now on the batch is written down, and may be asked for again after any time.
        self._holding.renew(ended.pin, (ended.began or ended.at).needed or ended.at.needed)
        database, table = self._table(ended)
        asked = self._asked(table)
        found: list[Portion] = []
        for part in ended.batch_since(began):
            rows = part.range.intersect(asked)
            if rows is None:
                continue
            target = target_of(database, table, self._options.address.table, self._options.columns, part.until)
            found += plan_changes(table, target, part.since, rows, before=self._options.before, cores=cores)
        return found

    def done(self, ended: Offset) -> None:
        """Let go of the history before an offset: no batch will ask for it again."""
        self._holding.move(ended.pin, ended.at.needed)

    def close(self) -> None:
        """Close the store. The pin stays: the stream may go on later."""
        self._follower.close()

    # --- the table ---

    def _table(self, offset: Offset | None = None, *, at_once: bool = False) -> tuple[Database, TableState]:
        """Return the store and the table as they are now; raise if the table is not what the stream began with."""
        name = self._options.address.table
        try:
            database = self._follower.newest(at_once=at_once)
            table = store_of(database).table(name)
        except UnknownTable:
            raise UnknownTable(f"the table {name!r} was dropped, and its stream ends with it") from None
        if offset is not None and table.id != offset.table_id:
            raise UnknownTable(
                f"the table {name!r} was dropped and made anew since the stream began: start another stream of it, "
                "with another checkpoint"
            )
        columns = columns_of(self._options, table)
        if self._is_known is None:
            self._is_known = columns.equals
        if not self._is_known(columns):
            raise SchemaChanged(
                f"the columns of {name!r} are not those that the stream was started with: start it again (a "
                "query of Spark's: load it again with readStream and start the query again); it goes on where it was, "
                "with the columns that there are now"
            )
        return database, table

    def _asked(self, table: TableState) -> KeyRange:
        schema = table.view.schema
        texts = (self._options.start, self._options.stop, self._options.prefix)
        return range_asked(table, *(key_from_text(text, schema) for text in texts))


def row_bytes(table: TableState) -> int:
    """Return about how many bytes a row has, by what is in files; a guess if nothing is."""
    view = table.view
    groups = [state for tablet in view.metadata.tablets for state in tablet.groups]
    rows: dict[int, int] = {}
    bytes_ = 0
    for state in groups:
        rows[state.group] = rows.get(state.group, 0) + sum(ref.rows for ref in state.fragments)
        bytes_ += sum(ref.bytes for ref in state.fragments)
    most = max(rows.values(), default=0)
    return max(1, bytes_ // most) if most else 100
