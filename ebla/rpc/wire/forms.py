"""Requests of `ebla.service` as messages, and back: what cannot travel as it is takes another form.

Rows become Arrow streams or plain dicts, ranges their two ends, a change of a schema its parts. Everything else in
`ebla.service.requests` and `job_orders` is msgpack as it stands.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from ebla.errors import ProtocolError, RequestError, SchemaError
from ebla.model.ranges import KeyRange
from ebla.model.schema_change import Alteration
from ebla.rpc.methods import decoded, decoder_of, encode_body
from ebla.rpc.wire.arrow_bytes import keys_from_bytes
from ebla.rpc.wire.messages import ScanForm, WriteForm
from ebla.rpc.wire.values import packed
from ebla.service import job_orders, job_reads, requests
from ebla.service.requests import (
    AlterTable,
    Erase,
    EraseRange,
    Put,
    PutCells,
    RequestId,
    ScanRows,
    StoreRequest,
    TableRequest,
    Write,
)

__all__ = ["decode_reply", "decode_request", "encode_reply", "encode_request", "scan_of", "write_of"]


def scan_of(form: ScanForm) -> ScanRows:
    """Return the request that a scan on the wire is."""
    return ScanRows(
        KeyRange(form.first, form.last),
        form.columns,
        form.versions,
        form.where,
        form.limit,
        form.reverse,
        form.at,
        form.latest,
        form.after,
    )


def write_of(form: WriteForm, request_id: RequestId) -> Write:
    """Return the request that a change on the wire is. Rows are not looked at: who writes them does."""
    match form.kind:
        case "put":
            return Put(
                _rows_of(form),
                form.replace,
                form.if_absent,
                form.unchanged_since,
                form.wait,
                form.schema_version,
                request_id,
            )
        case "cells":
            return PutCells(_rows_of(form), form.wait, request_id)
        case "erase":
            if form.data is None:
                raise ProtocolError("an erasure names rows: it has none")
            return Erase(keys_from_bytes(form.data), form.columns, form.unchanged_since, form.wait, request_id)
        case "erase_range":
            return EraseRange(KeyRange(form.first, form.last), form.wait, request_id)


def _rows_of(form: WriteForm) -> object:
    if (form.rows is None) == (form.data is None):
        raise ProtocolError("a put has either dicts or an Arrow stream")
    if form.rows is None:
        return form.data
    return form.rows[0] if len(form.rows) == 1 else form.rows


# --- a table, a store ----------------------------------------------------------------------------


class _AlterForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a schema, part by part: its types may be text or Arrow's."""

    name: str
    parts: dict[str, Any]


def encode_request(request: TableRequest[Any] | StoreRequest[Any]) -> msgspec.Raw:
    """Return a request to a table or a store as it is on the wire."""
    kind = type(request)
    if _kinds().get(kind.__name__) is not kind:
        raise RequestError(f"{kind.__name__} is no request that a server answers")
    if isinstance(request, AlterTable):
        given = request.alteration
        parts = {f.name: packed(_plain(getattr(given, f.name))) for f in fields(given) if getattr(given, f.name)}
        return encode_body(_AlterForm(request.name, parts))
    return encode_body(request)


def decode_request(name: str, body: msgspec.Raw) -> TableRequest[Any] | StoreRequest[Any]:
    """Return the request that these bytes are; `ProtocolError` if they are none."""
    kind = _kinds().get(name)
    if kind is None:
        raise ProtocolError(f"{name[:80]!r} is no request that is answered here")
    if kind is AlterTable:
        form = decoded(_decoder(_AlterForm), body, name)
        try:
            return AlterTable(form.name, Alteration(**form.parts))
        except TypeError as error:
            raise SchemaError(f"a change of a schema has other parts: {error}") from None
    found: TableRequest[Any] | StoreRequest[Any] = decoded(_decoder(kind), body, name)
    return found


def encode_reply(request: object, reply: object) -> msgspec.Raw:
    """Return the reply to a request as it is on the wire: of one that is answered with nothing, nothing."""
    if _reply_of(type(request)) is type(None):
        reply = None
    if isinstance(reply, (dict, list)):
        return encode_body(packed(reply) if not _is_of_structs(reply) else reply)
    return encode_body(reply)


def decode_reply(request: object, body: msgspec.Raw) -> Any:
    """Return the reply to a request; `ProtocolError` if these bytes are none."""
    return decoded(_decoder(_reply_of(type(request))), body, f"the reply to {type(request).__name__}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _is_of_structs(reply: dict[Any, Any] | list[Any]) -> bool:
    values = reply.values() if isinstance(reply, dict) else reply
    return bool(values) and all(hasattr(value, "__dataclass_fields__") for value in values)


@cache
def _kinds() -> dict[str, type]:
    """Return all requests to a table or a store, by name."""
    return {
        name: kind
        for module in (requests, job_orders, job_reads)
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and issubclass(kind, (TableRequest, StoreRequest))
    }


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return decoder_of(kind)


def _reply_of(kind: type) -> Any:
    for base in getattr(kind, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, (TableRequest, StoreRequest)):
            return get_args(base)[0]
    raise TypeError(f"{kind.__name__} does not say what it is answered with")
