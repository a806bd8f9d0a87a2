"""Changes on their way out: rows of whatever form as `WriteForm`s, one for each server that has some of them.

Dicts travel as dicts, which spares a small put the cost of Arrow at both ends; everything in columns travels as an
Arrow stream. Whoever serves checks all of it against the schema in force: here nothing is refused that it would take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ebla.client.remote.routes import Route
from ebla.errors import RequestError
from ebla.rows.row_parts import Limits
from ebla.rows.rows import columns_of, to_cells_batch, to_put_batch
from ebla.rpc.channel import Channel
from ebla.rpc.wire.arrow_bytes import keys_to_bytes, rows_to_bytes
from ebla.rpc.wire.messages import WriteForm
from ebla.rpc.wire.values import packed_row
from ebla.service.requests import Erase, EraseRange, Put, PutCells, Write
from ebla.settings import Settings

__all__ = ["forms_of", "several_times"]


def several_times(write: Write) -> Write:
    """Return a change whose rows can be read more than once: it may have to be sent again."""
    if isinstance(write, Put) and isinstance(write.rows, (Iterator, pa.RecordBatchReader)):
        return msgspec.structs.replace(write, rows=_all_of(write.rows))
    if isinstance(write, PutCells) and isinstance(write.cells, (Iterator, pa.RecordBatchReader)):
        return msgspec.structs.replace(write, cells=_all_of(write.cells))
    return write


def _all_of(rows: Any) -> object:
    return rows.read_all() if isinstance(rows, pa.RecordBatchReader) else list(rows)


def forms_of(write: Write, route: Route, settings: Settings) -> list[tuple[Channel, WriteForm]]:
    """Return what is sent to which server."""
    match write:
        case Put():
            base = WriteForm(
                "put",
                replace=write.replace,
                if_absent=write.if_absent,
                unchanged_since=write.unchanged_since,
                wait=write.wait,
                schema_version=write.schema_version,
            )
            forms = _of_rows(write.rows, base, route, settings)
            is_conditional = write.if_absent or write.unchanged_since is not None
        case PutCells():
            forms = _of_rows(write.cells, WriteForm("cells", wait=write.wait), route, settings)
            is_conditional = False
        case Erase():
            forms = _of_keys(write, route)
            is_conditional = write.unchanged_since is not None
        case EraseRange():
            shares = route.shares(write.key_range)
            server = route.servers[0]
            form = WriteForm("erase_range", wait=write.wait)
            ends = [(share.server, share.rows) for share in shares] or [(server, write.key_range)]
            return [(server, msgspec.structs.replace(form, first=rows.first, last=rows.last)) for server, rows in ends]
    if is_conditional and len(forms) > 1:
        raise RequestError(
            f"the rows are on {len(forms)} servers, and a condition holds for those of one: put them server by server"
        )
    return forms


def _of_rows(rows: Any, base: WriteForm, route: Route, settings: Settings) -> list[tuple[Channel, WriteForm]]:
    only = route.only_server
    if isinstance(rows, dict):
        return [(only or _server_of(rows, route), msgspec.structs.replace(base, rows=[packed_row(rows)]))]
    if only is not None and isinstance(rows, (bytes, bytearray, memoryview)):
        return [(only, msgspec.structs.replace(base, data=memoryview(rows).cast("B")))]
    if isinstance(rows, (list, tuple)) and all(isinstance(row, Mapping) for row in rows):
        if only is not None:
            return [(only, _with_dicts(base, rows))]
        servers = [_server_of(row, route) for row in rows]
        return [
            (server, _with_dicts(base, [row for row, own in zip(rows, servers, strict=True) if own is server]))
            for server in dict.fromkeys(servers)
        ]
    columns = _columns(rows, base, route, settings)
    if only is not None:
        return [(only, msgspec.structs.replace(base, data=rows_to_bytes(columns)))]
    keys = route.codec.encode_many(columns.select(route.codec.names))
    return [
        (server, msgspec.structs.replace(base, data=rows_to_bytes(columns.take(pa.array(places)))))
        for server, places in route.groups(keys)
    ] or [(route.servers[0], msgspec.structs.replace(base, data=rows_to_bytes(columns)))]


def _with_dicts(base: WriteForm, rows: Sequence[Mapping[str, Any]]) -> WriteForm:
    return msgspec.structs.replace(base, rows=[packed_row(row) for row in rows])


def _columns(rows: Any, base: WriteForm, route: Route, settings: Settings) -> pa.RecordBatch:
    """Return rows that are no dicts as one batch; what is none of both is refused as whoever serves would."""
    schema, limits = route.location.schema, Limits(settings.value_bytes_max, settings.batch_bytes_max)
    if isinstance(rows, pa.RecordBatch):
        return rows
    if base.kind == "put":
        found = columns_of(rows, schema, limits)
        if found is not None:
            return found
        to_put_batch(rows, schema)
    elif isinstance(rows, pa.Table):
        return rows.combine_chunks().to_batches()[0] if rows.num_rows else _no_rows(rows.schema)
    elif hasattr(rows, "__arrow_c_stream__"):
        return _columns(pa.table(rows), base, route, settings)
    else:
        to_cells_batch(rows, schema)
    raise RequestError(f"rows of type {type(rows).__name__} cannot be sent: put an Arrow table, a frame or dicts")


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _server_of(row: Mapping[str, Any], route: Route) -> Channel:
    names = route.codec.names
    if any(name not in row for name in names):
        return route.servers[0]  # which says what is missing
    return route.server_of(route.codec.encode(tuple(row[name] for name in names) if len(names) > 1 else row[names[0]]))


def _of_keys(write: Erase, route: Route) -> list[tuple[Channel, WriteForm]]:
    base = WriteForm("erase", columns=write.columns, unchanged_since=write.unchanged_since, wait=write.wait)
    only = route.only_server
    groups = list(route.groups(write.rows)) if only is None else []
    if only is not None or not groups:
        server = only or route.servers[0]
        return [(server, msgspec.structs.replace(base, data=keys_to_bytes(write.rows)))]
    return [
        (server, msgspec.structs.replace(base, data=keys_to_bytes(write.rows.take(pa.array(places)))))
        for server, places in groups
    ]
