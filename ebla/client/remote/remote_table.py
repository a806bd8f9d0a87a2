"""One table that others serve, as a client sees it: requests by the route of their rows.

A request goes to the server that has its rows, by the route that is cached; one server is asked directly, several at
the same time. A server that does not have them answers `StaleRoute`: then the table is located again, and the request
sent again. Changes have request ids, so that one whose answer was lost happens once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from ebla.client.remote.capturing import captured_by
from ebla.client.remote.remote_scan import RemoteStream
from ebla.client.remote.retrying import persist
from ebla.client.remote.routes import Route
from ebla.client.remote.row_forms import forms_of, several_times
from ebla.client.remote.working import carried_out
from ebla.errors import EblaError, OutcomeUnknown, ReadOnly, RequestError, StaleRoute, Unavailable
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema
from ebla.rows.row import Row
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks
from ebla.rpc.wire.arrow_bytes import keys_to_bytes, rows_from_bytes
from ebla.rpc.wire.forms import write_of
from ebla.rpc.wire.messages import GetRow, ModifyRow, Outcome, ReadMany, ReadOne, RowAnswer, WriteForm, WriteRows
from ebla.rpc.wire.values import packed
from ebla.service.job_reads import CapturedTablets, CaptureTablets
from ebla.service.requests import (
    BringTogether,
    Compact,
    DescribeTable,
    DescribeTablets,
    Flush,
    Join,
    ListFiles,
    Modify,
    Moment,
    ReadRow,
    ReadRows,
    Reply,
    ScanRows,
    Split,
    TableRequest,
    Write,
)
from ebla.service.service import Progress, RowRead

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService

__all__ = ["RemoteTable"]

_Answer = TypeVar("_Answer")

KEYS_AT_ONCE = 20_000
# So often what concerns all tablets of a table is repeated because some of them changed hands.
ROUNDS_MAX = 8


class RemoteTable:
    """A table of a cluster, or of another process. Safe to use from several threads."""

    def __init__(self, service: RemoteService, route: Route) -> None:
        # Set once.
        self.service = service
        self._is_system = "#" in route.location.table
        # Replaced as a whole, by anybody.
        self.route = route
        self.is_outdated = False

    @property
    def id(self) -> str:
        """The id of the table, which it keeps under every name."""
        return self.route.location.table

    @property
    def name(self) -> str:
        """The name that the table has, as far as this client has heard."""
        return self.current().location.name

    @property
    def schema(self) -> TableSchema:
        """The schema in force, as far as this client has heard."""
        return self.current().location.schema

    @property
    def codec(self) -> KeyCodec:
        """How keys become rows. The types of keys never change, their names may."""
        return self.current().codec

    def current(self) -> Route:
        """Return the route that is known, a new one if there is reason to look again."""
        if self.is_outdated and not self._is_system:
            self.locate()
        return self.route

    def locate(self, timeout_seconds: float | None = None) -> Route:
        """Ask where the table is now."""
        if not self._is_system:
            self.is_outdated = False
            try:
                self.route = self.service.locate(self.id, timeout_seconds)
            except BaseException:
                self.is_outdated = True
                raise
        return self.route

    def _look_again(self, error: EblaError, left_seconds: float) -> None:
        if self._is_system and isinstance(error, StaleRoute):
            raise error
        self.locate(left_seconds)

    def _noticed(self, schema_version: int) -> None:
        """Take note of the schema under which a server has answered."""
        if schema_version != self.route.location.schema.version:
            self.is_outdated = True

    # --- reading ---

    def get(self, key: object) -> Row | None:
        """Return a row with all its columns at the newest commit, by its key as a user gives it."""
        return self.get_encoded(self.current().codec.encode(key))

    def get_encoded(self, row: bytes) -> Row | None:
        """Do what `get` does, by the row that the key is encoded as."""
        return self._row(self._ask_about(row, GetRow(self.id, row)))

    def read_row(self, request: ReadRow) -> RowRead:
        """Read one row at a moment."""
        wanted = ReadOne(self.id, request.row, _names(request.columns), request.at, request.versions)
        answer = self._ask_about(request.row, wanted)
        return RowRead(answer.txn, self._row(answer), answer.schema_version)

    def _row(self, answer: RowAnswer) -> Row | None:
        self._noticed(answer.schema_version)
        if answer.row is None:
            return None
        row = Row(answer.row)
        row.txn = answer.txn
        self.service.saw(answer.txn)
        return row

    def read_rows(self, request: ReadRows) -> pa.Table:
        """Read many rows at a moment, in the order asked."""
        rows = request.rows

        def read(route: Route, left_seconds: float) -> pa.Table:
            if route.only_server is not None or not len(rows):
                return self._read_of_one(route.servers[0], rows, request, left_seconds)
            groups = list(route.groups(rows))
            one_at = request
            if len(groups) > 1 and request.at.txn is None:
                one_at = msgspec.structs.replace(request, at=self._one_moment(request.at))
            calls = [
                partial(self._read_of_one, server, rows.take(pa.array(places)), one_at, left_seconds)
                for server, places in groups
            ]
            back = np.empty(len(rows), dtype=np.int64)
            back[np.concatenate([places for _, places in groups])] = np.arange(len(rows))
            return pa.concat_tables(self.service.together(calls)).combine_chunks().take(pa.array(back))

        return self.ask_by_route(read)

    def _read_of_one(self, server: Channel, rows: pa.Array, request: ReadRows, left_seconds: float) -> pa.Table:
        """Read rows that one server has."""
        columns, at = _names(request.columns), request.at
        parts: list[pa.Table] = []
        done = 0
        while not parts or done < len(rows):
            message = ReadMany(self.id, keys_to_bytes(rows.slice(done, KEYS_AT_ONCE)), columns, at)
            answer = server.call(message, timeout_seconds=left_seconds)
            parts.append(rows_from_bytes(answer.data))
            done += answer.count
            at = Moment(answer.txn) if answer.txn else at
            if not answer.count:
                break
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def scan(self, request: ScanRows) -> RemoteStream:
        """Begin to read a range; its moment is fixed now, unless it follows newer commits."""
        return RemoteStream.begun(self, request)

    def _one_moment(self, at: Moment) -> Moment:
        """Return the newest moment of all servers, so that all of them are read at the same."""
        return Moment(RemoteStream.begun(self, ScanRows(columns=(), at=at, limit=0)).txn)

    # --- writing ---

    def write(self, request: Write) -> int:
        """Commit a change, and return its txn; of rows on several servers, there is one commit on each."""
        self._check_writable()
        forms = forms_of(several_times(request), self.current(), self.service.settings)
        return self._send(forms, time.monotonic() + self.service.timeout_seconds)

    def _send(self, forms: Sequence[tuple[Channel, WriteForm]], ends_at_seconds: float) -> int:
        """Send the parts of a change to their servers, each with an id of its own, and return the greatest txn."""
        txns = self.service.together([partial(self._send_part, *form, ends_at_seconds) for form in forms])
        txn = max(int(txn) for txn in txns)
        self.service.saw(txn)
        return txn

    def _send_part(self, server: Channel, form: WriteForm, ends_at_seconds: float) -> int:
        """Send a part of a change; if its tablets have moved, to whoever has them then, in further parts.

        The id stays as long as the part may have been carried out: who has the rows then knows it by that. What
        certainly was not is divided into parts with ids of their own, which have the time that is left. Those are not
        sent from within an attempt: if one of them failed, another attempt would give new ids to all of them.
        """
        with self.service.lanes.request_id() as request_id:
            parts = [(server, form)]
            is_in_doubt = False

            def attempt(left_seconds: float) -> int | None:
                self.service.check_open()
                if len(parts) > 1 and not is_in_doubt:
                    return None
                seen = self.service.seen
                sent = [
                    partial(server.call, WriteRows(self.id, form, request_id, seen), timeout_seconds=left_seconds)
                    for server, form in parts
                ]
                return max(int(txn) for txn in self.service.together(sent))

            def look_again(error: EblaError, left_seconds: float) -> None:
                nonlocal is_in_doubt
                is_in_doubt = is_in_doubt or isinstance(error, OutcomeUnknown)
                self.service.check_open()
                self._look_again(error, left_seconds)
                parts[:] = forms_of(write_of(form, request_id), self.route, self.service.settings)

            txn = persist(attempt, look_again, ends_at_seconds - time.monotonic())
        return self._send(parts, ends_at_seconds) if txn is None else txn

    def modify(self, request: Modify) -> Any:
        """Change one value by what it is, and return what it is then."""
        self._check_writable()
        with self.service.lanes.request_id() as request_id:
            message = ModifyRow(
                self.id,
                request.row,
                request.column,
                request.operation,
                packed(request.operand),
                request.wait,
                request_id,
                self.service.seen,
            )
            return self._ask_about(request.row, message)

    def _check_writable(self) -> None:
        self.service.check_open()
        if not self.service.is_writable:
            raise ReadOnly("the store is served read-only: connect to one that takes writes")

    # --- the table as a whole ---

    def carry_out(self, request: TableRequest[Reply], progress: Progress | None = None) -> Reply:
        """Do something with the table as a whole."""
        # Who has the tablets is found out anew for every attempt: they may have moved since.
        reply: Any = persist(
            lambda left_seconds: self._reply_to(request, progress),
            lambda error, left_seconds: self.service.check_open(),
            self.service.timeout_seconds,
            may_repeat=False,
        )
        if isinstance(request, (Split, Join)):
            self.is_outdated = True
        self.service.listening.deliver()
        return reply  # type: ignore[no-any-return]

    def _reply_to(self, request: TableRequest[Any], progress: Progress | None) -> Any:
        if isinstance(request, (Flush, Compact)):
            return self._everywhere(request, progress)
        servers = self.current().distinct_servers
        if isinstance(request, DescribeTablets) and self.service.is_cluster and not self._is_system:
            return self._tablets()
        if len(servers) == 1:
            return self._carried_out(servers[0], request, progress)
        route = self.route
        match request:
            case Split(row, tablet):
                if tablet is None and row is None:
                    tablet = max(self._tablets(), key=lambda described: described["bytes"])["id"]
                    request = Split(None, tablet)
                server = route.server_of(row) if row is not None else route.server_of_tablet(tablet or "")
            case Join(tablets, first, last):
                wanted = tablets or (route.tablet_of(first or b""), route.tablet_of(last or b""))
                server = route.server_of_tablet(wanted[0])
                if any(route.server_of_tablet(one) is not server for one in wanted):
                    self._carried_out(self.service.master(), BringTogether(wanted), None)
                    server = self.locate().server_of_tablet(wanted[0])
            case ListFiles():
                found = self.service.together([partial(self._carried_out, one, request, None) for one in servers])
                return sorted({file for files in found for file in files})
            case CaptureTablets():
                raise RequestError("several servers have this table: `captured` asks all of them")
            case DescribeTable():
                return _described(
                    self.service.together([partial(self._carried_out, one, request, None) for one in servers])
                )
            case _:
                server = servers[0]
        return self._carried_out(server, request, progress)

    def _everywhere(self, request: Flush | Compact, progress: Progress | None) -> None:
        """Have every server do something with the tablets that it leads; again if some changed hands meanwhile."""
        for _ in range(ROUNDS_MAX):
            route = self.current()
            calls = [partial(self._carried_out, server, request, progress) for server in route.distinct_servers]
            self.service.together(calls)
            if self.locate().places == route.places:
                return
        raise Unavailable(f"tablets of {self.name!r} keep changing hands: retry when they have come to rest")

    def _tablets(self) -> list[dict[str, Any]]:
        """Describe every tablet of one route as its own server does; `Unavailable` if one is changing hands."""
        route = self.current()
        servers = route.distinct_servers
        calls = [partial(self._carried_out, server, DescribeTablets(), None) for server in servers]
        answers = self.service.together(calls)
        by_server = {
            server: {described["id"]: described for described in answer}
            for server, answer in zip(servers, answers, strict=True)
        }
        pairs = list(zip(route.location.tablets, route.servers, strict=True))
        missing = [tablet.id for tablet, server in pairs if tablet.id not in by_server[server]]
        if missing:
            # It has moved, or been cut, since the table was located.
            self.is_outdated = True
            raise Unavailable(f"tablet {missing[0]} of {route.location.name!r} is changing hands: retry")
        return [by_server[server][tablet.id] for tablet, server in pairs]

    def _carried_out(self, server: Channel, request: TableRequest[Any], progress: Progress | None) -> Any:
        # What is the master's to do stays there. A tablet that is changing hands is with it only until it is served.
        is_of_master = isinstance(request, BringTogether)

        def look_again(error: EblaError, left_seconds: float) -> None:
            self._look_again(error, left_seconds)
            if not is_of_master and server not in self.route.servers:
                raise StaleRoute(f"{self.name!r} has moved: its servers are asked anew")

        def ask(request: Asks[Outcome], *, may_repeat: bool) -> Outcome:
            return self.service.ask_server(lambda: server, request, look_again, may_repeat=may_repeat)

        return carried_out(self.service.lanes, ask, self.id, request, progress)

    def captured(self, txn: int | None, *, with_memory: bool = True) -> list[CapturedTablets]:
        """Return what all tablets consist of at a txn, or each at its server's newest; in one schema, each once."""
        return self.ask_by_route(
            lambda route, left_seconds: captured_by(
                self.service, route, txn, with_memory=with_memory, timeout_seconds=left_seconds
            )
        )

    # --- asking ---

    def ask_by_route(self, attempt: Callable[[Route, float], _Answer]) -> _Answer:
        """Ask several servers, or for a range: by the route that is known, and by another one if that was stale."""

        def tried(left_seconds: float) -> _Answer:
            self.service.check_open()
            return attempt(self.current(), left_seconds)

        return persist(tried, self._look_again, self.service.timeout_seconds)

    def _ask_about(self, row: bytes, message: Asks[_Answer]) -> _Answer:
        """Ask the server of a row, and whoever has it then if it has moved."""
        return self.service.ask_server(lambda: self.current().server_of(row), message, self._look_again)


def _described(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what servers tell of a table as one: files are those of METADATA, memory is each one's own."""
    first = answers[0]
    for name, group in first["groups"].items():
        others = [answer["groups"].get(name, {}) for answer in answers[1:]]
        for key in ("memory_bytes", "memory_records", "memory_blocks"):
            group[key] += sum(other.get(key, 0) for other in others)
    return first


def _names(columns: Any) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise RequestError(f"columns is a list of names, such as [{columns!r}]")
    return tuple(columns)
