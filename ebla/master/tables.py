"""Create, alter, rename, delete, undelete, bring, load: the operations on a table as a whole.

    create     check - reserve the name - preparing, in memory - WRITE tablets, then table - visible
    rename     hold the table - reserve the name - WRITE - both names change over at once
    delete     hold the table - WRITE - the name is free; its servers are told; `undelete` until the retention is over
    alter      hold the table - WRITE the next schema version - its servers are told until all of them report it
    bring      reserve the name - WRITE a table that has a past: a clone, or one from a backup - visible
    load       WRITE that tablets are not offline any more - they are offered

Each is a generator that yields its writes (`writes.py`). Between check and write stands a reservation or a hold, so
that two operations never decide on the same thing; after the write, memory follows what is durable. A write that
certainly failed leaves everything as it was. One whose outcome stays unknown is none of theirs: the master stops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa

from ebla.errors import Conflict, EblaError, InvalidKey, RequestError, Unavailable, UnknownTable
from ebla.master.catalog import Catalog
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo
from ebla.master.writes import (
    ChangeTable,
    ChangeTables,
    CreateTable,
    DeleteTable,
    ExpireTable,
    Operation,
    ReadTables,
    RenameTable,
    StoredTable,
    UndeleteTable,
)
from ebla.metadata.values.assigning import PREPARING
from ebla.metadata.values.changes import AlterSchema, FlushedTablet, RequirementFailed
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.serving import UNLOADED, LoadTablets
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata, initial_metadata
from ebla.model.declaration import check_table_name
from ebla.model.keys import KeyCodec
from ebla.model.schema import Column, TableSchema
from ebla.model.schema_change import Alteration, altered
from ebla.retry import RACES

__all__ = [
    "alter_table",
    "bring_table",
    "check_splits",
    "create_table",
    "delete_table",
    "expire_table",
    "is_retained",
    "load_tablets",
    "rename_table",
    "undelete_table",
]


def create_table(
    catalog: Catalog,
    name: str,
    schema: TableSchema,
    splits: Sequence[bytes],
    *,
    new_id: Callable[[], str],
    settings: MasterSettings,
    is_fixed: bool = False,
    replicas: int = 1,
    created_txn: int = 0,
) -> Operation[TableInfo]:
    """Create a table cut at the encoded rows `splits`. It exists when this ends; its tablets follow.

    Before `created_txn` it is unknown. Whoever leads a tablet of it lets that txn pass first.
    """
    check_table_name(name)
    schema.check()
    check_splits(schema, splits, settings)
    table_id = new_id()
    tablet_ids = [new_id() for _ in range(len(splits) + 1)]
    metadata = initial_metadata(
        table_id, schema, tablet_ids, splits, state=PREPARING, is_fixed=is_fixed, replicas=replicas
    )
    return (yield from add_table(catalog, name, msgspec.structs.replace(metadata, created_txn=created_txn)))


def add_table(catalog: Catalog, name: str, metadata: TableMetadata) -> Operation[TableInfo]:
    """Let a table with this metadata appear under a name that is free."""
    table_id = metadata.table_id
    catalog.reserve(name, table_id)
    try:
        dirty = StoredTable(table_id, TableConfig(name, "running", "", ()), metadata)
        info = catalog.add_preparing(table_id, dirty)
        try:
            stored: StoredTable = yield CreateTable(table_id, name, metadata)
        except BaseException:
            catalog.drop_preparing(table_id)
            raise
        catalog.install(stored)
        info.end()
        return info
    finally:
        catalog.release(name)


def bring_table(
    catalog: Catalog, name: str, metadata: TableMetadata, *, replacing: str | None = None
) -> Operation[TableInfo]:
    """Let a table appear that has a past, as a clone or one from a backup has, perhaps in the place of another.

    Its tablets are served, by nobody yet: they are offered like those of a server that is gone. So whoever takes one
    passes all the txns that it has.
    """
    check_table_name(name)
    if replacing is None:
        return (yield from add_table(catalog, name, metadata))
    former = catalog.table(name)
    if former.id != replacing:
        raise Conflict(f"{name!r} is another table than when the job began: look at it, and run it again")
    former.begin("its replacement")
    try:
        stored: StoredTable = yield CreateTable(metadata.table_id, name, metadata, replacing)
        info = catalog.install(stored)
        (dropped,) = yield ReadTables((former.id,))
        if isinstance(dropped, StoredTable):
            catalog.install(dropped)
        assert info is not None, "it was made just now"
        return info
    except EblaError:
        catalog.stale[former.id] = None
        raise
    finally:
        former.end()


def load_tablets(catalog: Catalog, name: str, tablets: Collection[str]) -> Operation[TableInfo]:
    """Have those of some tablets served again that are offline: they are offered then."""
    info = catalog.table(name)
    for _ in RACES:
        offline = [one for one in info.metadata.tablets if one.id in tablets and one.state == UNLOADED]
        if not offline:
            return info
        at = tuple(TabletAt(one.id, one.epoch) for one in offline)
        (answer,) = yield ChangeTables((ChangeTable(info.id, (LoadTablets(at, keeps_log=True),)),))
        if isinstance(answer, TableMetadata):
            catalog.install_metadata(answer)
            return info
        (found,) = yield ReadTables((info.id,))
        if not isinstance(found, StoredTable) or found.metadata is None:
            break
        catalog.install_metadata(found.metadata)
    raise Unavailable(f"others changed table {name!r} faster each time: nothing was changed, try again")


def rename_table(catalog: Catalog, name: str, new_name: str) -> Operation[TableInfo]:
    """Give a table another name."""
    check_table_name(new_name)
    info = catalog.table(name)
    if name == new_name:
        return info
    return (yield from _switch(catalog, info, "a rename", RenameTable(info.id, new_name), new_name))


def delete_table(catalog: Catalog, name: str, *, microseconds: int) -> Operation[TableInfo]:
    """Delete a table: its name is free at once, its tablets go when the retention is over."""
    info = catalog.table(name)
    return (yield from _switch(catalog, info, "its deletion", DeleteTable(info.id, microseconds), None))


def undelete_table(
    catalog: Catalog, name: str, *, new_name: str | None = None, microseconds: int, settings: MasterSettings
) -> Operation[TableInfo]:
    """Bring back the table that was deleted last under a name, with that name or another."""
    wanted = check_table_name(name if new_name is None else new_name)
    found = [info for info in catalog.deleted.values() if info.name == name]
    if not found:
        raise UnknownTable(f"there is no deleted table {name!r}: it never was, or it was purged")
    info = max(found, key=lambda one: one.stored.config.deleted_microseconds if one.stored else 0)
    if not is_retained(info, microseconds, settings):
        raise UnknownTable(f"the retention of the table {name!r} is over: its data is being removed")
    return (yield from _switch(catalog, info, "its return", UndeleteTable(info.id, wanted), wanted))


def alter_table(catalog: Catalog, name: str, alteration: Alteration, *, dropped_at: int) -> Operation[TableInfo]:
    """Give a table the next version of its schema. It is altered when this ends; its servers follow, and report it.

    What tablet servers change meanwhile, as by a split, makes the change start again on what they left.
    """
    info = catalog.table(name)
    info.begin("an alteration")
    try:
        for _ in RACES:
            metadata = info.metadata
            schema = altered(metadata.schema, alteration, dropped_at)
            tablets = tuple(FlushedTablet(tablet.id, tablet.epoch, 0) for tablet in metadata.tablets)
            # No leader is asked to flush first: each does under the version that its rows were written with (late.py).
            change = ChangeTable(info.id, (AlterSchema(metadata.schema.version, schema, tablets, is_late=True),))
            (answer,) = yield ChangeTables((change,))
            if isinstance(answer, TableMetadata):
                catalog.install_metadata(answer)
                return info
            if not isinstance(answer, RequirementFailed):
                catalog.stale[info.id] = None
                raise answer
            (found,) = yield ReadTables((info.id,))
            if not isinstance(found, StoredTable) or found.metadata is None:
                break
            catalog.install_metadata(found.metadata)
    finally:
        info.end()
    raise Unavailable(f"others changed table {name!r} faster each time: nothing was changed, try again")


def expire_table(catalog: Catalog, table_id: str) -> Operation[TableInfo]:
    """Let nobody bring a deleted table back any more: it is purged as soon as its servers have let go of it."""
    info = catalog.deleted.get(table_id)
    if info is None:
        raise UnknownTable(f"there is no deleted table of id {table_id}: it was brought back, or purged")
    return (yield from _switch(catalog, info, "its end", ExpireTable(table_id), None))


def is_retained(info: TableInfo, microseconds: int, settings: MasterSettings) -> bool:
    """Whether a deleted table can still be brought back at that time."""
    assert info.stored is not None
    config = info.stored.config
    deleted = config.deleted_microseconds
    return not config.is_expired and microseconds < deleted + settings.retention_seconds * 1_000_000


def _switch(
    catalog: Catalog,
    info: TableInfo,
    doing: str,
    write: RenameTable | DeleteTable | UndeleteTable | ExpireTable,
    name: str | None,
) -> Operation[TableInfo]:
    info.begin(doing)
    try:
        if name is not None:
            catalog.reserve(name, info.id)
        try:
            stored: StoredTable = yield write
            catalog.install(stored)
        except EblaError:
            catalog.stale[info.id] = None  # refused, perhaps, because others have changed it
            raise
        finally:
            if name is not None:
                catalog.release(name)
    finally:
        info.end()
    return info


# --- requests ------------------------------------------------------------------------------------


def check_splits(schema: TableSchema, splits: Sequence[bytes], settings: MasterSettings) -> None:
    """Raise `RequestError` unless a table can be cut at these rows: keys or prefixes of keys, ascending, not many."""
    if len(splits) >= settings.tablets_per_table_max:
        raise RequestError(
            f"{len(splits)} splits make more than {settings.tablets_per_table_max} tablets: use fewer, "
            "the table is split as it grows"
        )
    if not all(type(split) is bytes for split in splits):
        raise RequestError("splits are encoded rows, as bytes")
    if splits and not splits[0]:
        raise RequestError("the empty row comes before all others: a split there leaves a tablet of nothing")
    for split, following in pairwise(splits):
        if split >= following:
            raise RequestError(f"splits ascend, each once: {following!r} follows {split!r}")
    codec = KeyCodec(schema.key)
    if codec.is_simple and schema.key[0].type == pa.binary():
        return
    prefixes = [_prefix_codec(schema, columns) for columns in range(1, len(schema.key))]
    for split in splits:
        if not _is_bound(codec, prefixes, split):
            raise InvalidKey(f"{split!r} is not the row of a key of this table, nor of a prefix of one")


def _prefix_codec(schema: TableSchema, columns: int) -> KeyCodec:
    # The row of a prefix is that of a key whose rest is one empty string of bytes.
    rest = Column(0, "rest", pa.binary())
    return KeyCodec((*schema.key[:columns], rest))


def _is_bound(codec: KeyCodec, prefixes: Sequence[KeyCodec], row: bytes) -> bool:
    try:
        codec.decode(row)
    except (InvalidKey, ValueError):
        return any(_is_prefix(prefix, row) for prefix in prefixes)
    return True


def _is_prefix(codec: KeyCodec, row: bytes) -> bool:
    try:
        return bool(codec.decode(row)[-1] == b"")
    except (InvalidKey, ValueError):
        return False
