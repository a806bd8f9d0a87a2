"""Tablets as they are at one moment, for jobs in other processes: METADATA, and what is in no file yet.

METADATA and memory of an answer are of one view: what is flushed before the next answer is in a file of that one. So
every tablet is captured whole, by one answer. What was written after the txn may come along; who reads at the txn does
not see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ebla.coordination.service import CoordinationConflict
from ebla.metadata.values.restoring import pack_metadata
from ebla.service.job_reads import CapturedMemory, CapturedTablets, HoldForJob, JobHold
from ebla.storage.merge.memory import Memory, combine
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.view import TableView
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.horizon import Horizon

__all__ = ["capture", "hold_for_job"]

# An answer has tablets with about so much in memory; what is more is asked for again.
ANSWER_BYTES = 64 << 20


def capture(
    store: TabletStore, table: TableState, txn: int, tablets: Sequence[str] | None, *, with_memory: bool
) -> CapturedTablets:
    """Return the tablets that are led here, of those named or of all, with everything up to a txn that is readable."""
    with store.open_tables.lock:
        view, led = table.view, table.led
        ids = None if led is None else led.ids
        indices = {tablet.id: table.tablet(tablet.id).index for tablet in view.metadata.tablets}
    wanted = [
        tablet.id
        for tablet in view.metadata.tablets
        if (ids is None or tablet.id in ids) and (tablets is None or tablet.id in tablets)
    ]
    memory: list[CapturedMemory] = []
    count = size = 0
    for tablet_id in wanted if with_memory else ():
        own = view.memory.get(tablet_id, {})
        size += sum(held.bytes for held in own.values())
        if count and size > ANSWER_BYTES:
            break
        memory += [_captured(view, tablet_id, group, held, txn) for group, held in own.items()]
        count += 1
    else:
        count = len(wanted)
    return CapturedTablets(
        txn,
        view.schema.version,
        pack_metadata(view.metadata),
        tuple(wanted[:count]),
        tuple(memory),
        tuple(wanted[count:]),
        tuple(indices[tablet_id] for tablet_id in wanted[:count]),
    )


def _captured(view: TableView, tablet: str, group: int, held: Memory, txn: int) -> CapturedMemory:
    erasures = tuple((one.first, one.last, one.txn) for one in held.erasures if one.txn <= txn)
    blocks = [block for block in held.blocks if block.txn_min <= txn]
    if not blocks:
        return CapturedMemory(tablet, group, None, None, False, erasures)
    is_cells = view.schema.group_by_id[group].is_cells
    block = blocks[0] if len(blocks) == 1 else combine(blocks, is_cells=is_cells)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.records.schema) as writer:
        writer.write_batch(block.records)
    return CapturedMemory(tablet, group, memoryview(sink.getvalue()), block.txn, block.unique, erasures)


def _begin(store: TabletStore, request: HoldForJob) -> int | None:
    try:
        pin = store.pins.begin(request.name, request.txn, request.seconds, request.reader, request.files)
    except CoordinationConflict:
        # A name is given out once: it is this request, whose answer was lost.
        found = store.pins.find(request.name)
        if found is None:
            raise
        pin = found
    return pin.expires_microseconds


def hold_for_job(store: TabletStore, horizon: Horizon, request: HoldForJob) -> JobHold:
    """Hold what a job reads, for whoever compacts or collects garbage, here or elsewhere."""
    pins = store.pins
    until: int | None = 0
    match request.kind:
        case "begin":
            until = _begin(store, request)
        case "renew":
            until = pins.renew(request.name, request.txn, request.seconds, request.reader).expires_microseconds
        case "extend":
            if pins.extend(request.name, request.seconds):
                found = pins.find(request.name)
                until = 0 if found is None else found.expires_microseconds
        case "release":
            pins.release(request.name)
    # Looked at after it is held: whoever compacts says how far it goes first, and looks who holds what second.
    return JobHold(until or 0, horizon.read())
