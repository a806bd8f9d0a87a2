"""Rename, delete, undelete, expire, purge: a table's configuration and its name change together, in one step.

    rename      tables/<id> {name: new}             - names/<old>   + names/<new>
    delete      tables/<id> {deleted, when}         - names/<name>
    undelete    tables/<id> {running}               + names/<name>
    expire      tables/<id> {deleted, expired}                        from now on nobody can bring it back
    purge       tables/<id> {deleted, no METADATA}                    the id is used up: nobody gets it again

Each of them names the version of the table's node that it was decided on. So after an unknown outcome the node tells
whether it happened, and raising the version once more makes sure that a request that is still on its way cannot land
later: only then is anything said to have failed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import (
    CompareAndSet,
    CoordinationConflict,
    CoordinationService,
    Create,
    Delete,
    NodeExists,
    Operation,
)
from ebla.errors import Conflict, EblaError, OutcomeUnknown, TableExists, Unavailable, UnknownTable
from ebla.metadata.values.table_config import TableConfig, config_path, decode_config, encode_config, name_path
from ebla.model.declaration import check_table_name
from ebla.retry import PATIENCE, Retries

__all__ = ["TableNaming"]


class TableNaming:
    """Changes the configuration of tables. Keeps nothing in memory. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService, clock: Clock, *, retries: Retries = PATIENCE) -> None:
        self._coordination = coordination
        self._clock = clock
        self._retries = retries

    def rename(self, table_id: str, name: str, named_txn: int = 0) -> TableConfig:
        """Give a table another name, which it has since `named_txn`; `TableExists` if it is taken."""
        check_table_name(name)

        def renamed(config: TableConfig) -> TableConfig:
            if config.is_deleted:
                raise UnknownTable(f"the table {config.name!r} was dropped")
            return msgspec.structs.replace(config, name=name, named_txn=named_txn)

        return self._switch(table_id, renamed)

    def delete(self, table_id: str, microseconds: int, kept_until_microseconds: int = 0) -> TableConfig:
        """Let a table disappear at that time; its name is free at once. `undelete` brings it back until it is purged.

        When that may be is put on record, so that those decide who delete it, and not whoever comes by later.
        """

        def deleted(config: TableConfig) -> TableConfig:
            if config.is_deleted:
                raise UnknownTable(f"the table {config.name!r} was dropped already")
            return msgspec.structs.replace(
                config,
                state="deleted",
                deleted_microseconds=microseconds,
                kept_until_microseconds=kept_until_microseconds,
            )

        return self._switch(table_id, deleted)

    def undelete(self, table_id: str, name: str, named_txn: int = 0) -> TableConfig:
        """Bring a deleted table back under a name, which it has since `named_txn`.

        `UnknownTable` if it was purged, `TableExists` if the name is taken.
        """
        check_table_name(name)

        def undeleted(config: TableConfig) -> TableConfig:
            if not config.is_deleted:
                raise Conflict(f"the table {config.name!r} is not deleted")
            if not config.metadata_txnid:
                raise UnknownTable(f"the table {config.name!r} was purged: its data is gone")
            if config.is_expired:
                raise UnknownTable(f"the retention of the table {config.name!r} is over: its data is being removed")
            return msgspec.structs.replace(
                config,
                name=name,
                state="running",
                deleted_microseconds=0,
                kept_until_microseconds=0,
                named_txn=named_txn,
            )

        return self._switch(table_id, undeleted)

    def expire(self, table_id: str) -> TableConfig:
        """Put on record that a deleted table cannot be brought back any more. Only then may servers remove its rows."""

        def expired(config: TableConfig) -> TableConfig:
            if not config.is_deleted:
                raise Conflict(f"the table {config.name!r} is not deleted (any more)")
            return msgspec.structs.replace(config, is_expired=True)

        return self._switch(table_id, expired)

    def purge(self, table_id: str) -> TableConfig:
        """Let go of a deleted table for good. Only its id stays."""

        def purged(config: TableConfig) -> TableConfig:
            if not config.is_deleted:
                raise Conflict(f"the table {config.name!r} is not deleted (any more)")
            return msgspec.structs.replace(config, metadata_txnid="", metadata_servers=())

        return self._switch(table_id, purged)

    def raise_file_floor(self, table_id: str, microseconds: int) -> TableConfig:
        """Let no file whose name is older become a part of a table any more; what it has stays."""

        def raised(config: TableConfig) -> TableConfig:
            if not config.is_there:
                raise UnknownTable(f"the table {config.name!r} is gone")
            floor = max(config.file_floor_microseconds, microseconds)
            return msgspec.structs.replace(config, file_floor_microseconds=floor)

        return self._switch(table_id, raised)

    def _switch(self, table_id: str, change: Callable[[TableConfig], TableConfig]) -> TableConfig:
        path = config_path(table_id)
        unknown: OutcomeUnknown | None = None
        wanted: TableConfig | None = None
        settled = False  # nothing that was sent before can land any more
        for _ in self._retries.attempts(self._clock):
            try:
                node = self._coordination.read(path)
                if node is None:
                    raise UnknownTable(f"there is no table of id {table_id}")
                config = decode_config(path, node)
                if unknown is not None and wanted is not None and _is_done(config, wanted):
                    return config
                try:
                    wanted = change(config)
                    self._coordination.multi(self._operations(table_id, config, wanted, node.version))
                except EblaError as error:
                    if unknown is None or isinstance(error, (OutcomeUnknown, Unavailable, CoordinationConflict)):
                        raise
                    # Before it is said to have failed, what may still be under way must become impossible.
                    self._coordination.compare_and_set(path, node.value, node.version)
                    raise
            except OutcomeUnknown as error:
                unknown, settled = error, False
            except NodeExists:
                if unknown is not None and not settled:
                    settled = self._is_settled(path)
                    continue  # the name that is taken may be the one that this very call took
                assert wanted is not None
                raise TableExists(
                    f"there is a table {wanted.name!r} already: choose another name, or drop it first"
                ) from None
            except CoordinationConflict:
                continue
            except Unavailable:
                if unknown is None:
                    raise
            else:
                return wanted
        if unknown is not None:
            raise OutcomeUnknown(f"it is not known what became of the table {table_id}: look again") from unknown
        raise Unavailable(f"others kept changing table {table_id}: nothing was changed, try again")

    def _is_settled(self, path: str) -> bool:
        """Raise the version of a node once more; tell whether that was done for certain."""
        try:
            node = self._coordination.read(path)
            if node is None:
                return False
            self._coordination.compare_and_set(path, node.value, node.version)
        except (CoordinationConflict, OutcomeUnknown, Unavailable):
            return False
        return True

    def _operations(self, table_id: str, before: TableConfig, after: TableConfig, version: int) -> list[Operation]:
        operations: list[Operation] = [CompareAndSet(config_path(table_id), encode_config(after), version)]
        had = None if before.is_deleted else before.name
        has = None if after.is_deleted else after.name
        if had == has:
            return operations
        if has is not None:
            operations.append(Create(name_path(has), table_id.encode()))
        if had is not None:
            named = self._coordination.read(name_path(had))
            if named is None or named.value != table_id.encode():
                raise CoordinationConflict(name_path(had), "it was read around a change")
            operations.append(Delete(name_path(had), named.version))
        return operations


def _is_done(config: TableConfig, wanted: TableConfig) -> bool:
    # METADATA transactions change the txnid meanwhile, unless it is the purge that empties it.
    # A floor that others have raised since is as good.
    is_floor_there = config.file_floor_microseconds >= wanted.file_floor_microseconds
    return is_floor_there and _what_switches(config) == _what_switches(wanted)


def _what_switches(config: TableConfig) -> tuple[object, ...]:
    return (config.name, config.state, config.deleted_microseconds, config.is_expired, not config.metadata_txnid)
