"""The directory of tables in the coordination service: which names there are, and which table each of them means.

A table appears and disappears in one step, its configuration and its name together:

    create    tables/<id> {running, txnid}  +  names/<name> -> id
    drop      tables/<id> {deleted}         -  names/<name>
    replace   tables/<id> {deleted}         +  tables/<new id> {running, txnid}    names/<name> -> new id

A table id is used once. So when the outcome of a creation is unknown and the name is found taken, the id tells whose
it is; if it is not ours, the id is used up at once, and the creation can no longer succeed by arriving late.
"""

from __future__ import annotations

import contextlib

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import (
    CompareAndSet,
    CoordinationConflict,
    CoordinationService,
    Create,
    Delete,
    InvalidNode,
    Node,
    NodeExists,
)
from ebla.errors import (
    Corruption,
    EblaError,
    OutcomeUnknown,
    SchemaError,
    TableExists,
    Unavailable,
    UnknownTable,
    shown,
)
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.values.table_config import (
    NAMES,
    TABLES,
    TableConfig,
    TableEntry,
    config_path,
    decode_config,
    encode_config,
    name_path,
    table_id_of,
)
from ebla.model.declaration import check_table_name
from ebla.retry import PATIENCE, Retries

__all__ = ["TableDirectory"]


class TableDirectory:
    """The tables by name and by id. Keeps nothing in memory. Safe to use from several threads."""

    def __init__(self, coordination: CoordinationService, clock: Clock, *, retries: Retries = PATIENCE) -> None:
        self._coordination = coordination
        self._clock = clock
        self._retries = retries

    def find(self, name: str) -> str:
        """Return the id of the table called `name`; `UnknownTable` if there is none."""
        try:
            node = self._coordination.read(name_path(check_table_name(name)))
        except (SchemaError, InvalidNode):
            node = None  # no table can be called that
        if node is None:
            raise UnknownTable(f"there is no table {shown(name)}")
        return table_id_of(node)

    def list_tables(self) -> list[TableEntry]:
        """Return the tables that are there, sorted by name.

        None is left out that is there all along, whatever it is called meanwhile: it is looked again if names come and
        go, or if one table is met twice, unless that is how it is, for the names are damaged.
        """
        before: list[TableEntry] | None = None
        for _ in self._retries.attempts(self._clock):
            listed = self._coordination.list(NAMES)
            nodes = [(path, self._coordination.read(path)) for path in listed]
            entries = [
                TableEntry(path.removeprefix(f"{NAMES}/"), table_id_of(node))
                for path, node in nodes
                if node is not None
            ]
            is_still = len(entries) == len(listed) and self._coordination.list(NAMES) == listed
            if is_still and (len({entry.table_id for entry in entries}) == len(entries) or entries == before):
                return entries
            before = entries
        raise Unavailable("tables keep being made, dropped and renamed: try again")

    def configs(self) -> dict[str, TableConfig]:
        """Return the configuration of every table by id, the dropped ones included."""
        configs = {}
        for path in self._coordination.list(TABLES):
            node = self._coordination.read(path)
            if node is not None:
                configs[path.removeprefix(f"{TABLES}/")] = decode_config(path, node)
        return configs

    def config(self, table_id: str) -> TableConfig | None:
        """Return the configuration of a table, dropped or not; None if there never was one, or it was cleaned up."""
        found = self._read(table_id)
        return None if found is None else found[0]

    def read(self, table_id: str) -> tuple[TableConfig, int]:
        """Return the configuration of a table that is there, with or without a name, and the version of its node."""
        found = self._read(table_id)
        if found is None:
            raise UnknownTable(f"there is no table of id {table_id}")
        config, node = found
        if not config.is_there:
            raise UnknownTable(f"the table {config.name!r} was dropped")
        return config, node.version

    def _read(self, table_id: str) -> tuple[TableConfig, Node] | None:
        path = config_path(table_id)
        try:
            node = self._coordination.read(path)
        except InvalidNode:
            return None  # no table can have that id: a name is damaged
        return None if node is None else (decode_config(path, node), node)

    def check_free(self, name: str) -> None:
        """Raise `SchemaError` if no table may be called `name`, `TableExists` if one is."""
        try:
            taken = self._coordination.read(name_path(check_table_name(name))) is not None
        except InvalidNode as error:
            raise SchemaError(f"a table cannot be called {name!r}: choose another name") from error
        if taken:
            raise TableExists(f"there is a table {name!r} already: choose another name, or drop it first")

    def check_unused(self, table_id: str) -> None:
        """Raise `TableExists` if a table of that id is gone for good, even if nothing else is left of it."""
        if table_id in DroppedTables(self._coordination).ids():
            raise TableExists(f"the table of id {table_id} was dropped: an id is used once, make another table")

    def create(self, table_id: str, config: TableConfig) -> int | None:
        """Let the table appear; return the version of its node, or None if it was found created by this very call.

        `TableExists` if the name or the id is taken. After any error but `OutcomeUnknown` the table is not there.
        """
        operations = [
            Create(config_path(table_id), encode_config(config)),
            Create(name_path(config.name), table_id.encode()),
        ]
        unknown: OutcomeUnknown | None = None
        for _ in self._retries.attempts(self._clock):
            try:
                return self._coordination.multi(operations)[0]
            except OutcomeUnknown as error:
                unknown = error
            except NodeExists as error:
                if unknown is not None and self._was_created(table_id, config):
                    return None
                reason = f"there is a table {config.name!r} already ({error}): choose another name"
                raise TableExists(reason) from None
            except EblaError as error:
                if unknown is None:
                    raise
                if not isinstance(error, Unavailable):
                    break
        raise OutcomeUnknown(f"it is not known whether the table {config.name!r} was created: look again") from unknown

    def _was_created(self, table_id: str, config: TableConfig) -> bool:
        """After an unknown outcome and a conflict: tell whether the table is there, and settle it if it is not."""
        tombstone = encode_config(msgspec.structs.replace(config, state="deleted", metadata_txnid=""))
        try:
            self._coordination.create(config_path(table_id), tombstone)
        except NodeExists:
            return True  # the id is ours alone, so it was this creation
        except EblaError as error:
            reason = f"it is not known whether the table {config.name!r} was created: look again"
            raise OutcomeUnknown(reason) from error
        return False

    def replace(self, former_id: str, table_id: str, config: TableConfig) -> int | None:
        """Let a table appear in the place of another of its name, which is dropped in the same step.

        Returns what `create` does. `UnknownTable` if the other does not have the name (any more). After any error but
        `OutcomeUnknown` nothing has changed.
        """
        unknown: OutcomeUnknown | None = None
        for _ in self._retries.attempts(self._clock):
            try:
                former = self._read(former_id)
                named = self._coordination.read(name_path(config.name))
                # Read after the other two: they cannot change by our own request without this one.
                if unknown is not None and self._read(table_id) is not None:
                    return None  # the id is ours alone
                if former is None or former[0].is_deleted or named is None or named.value != former_id.encode():
                    raise UnknownTable(f"the table {config.name!r} was dropped or replaced meanwhile: look again")
                dropped = encode_config(msgspec.structs.replace(former[0], state="deleted"))
                return self._coordination.multi(
                    [
                        Create(config_path(table_id), encode_config(config)),
                        CompareAndSet(config_path(former_id), dropped, former[1].version),
                        CompareAndSet(name_path(config.name), table_id.encode(), named.version),
                    ]
                )[0]
            except CoordinationConflict:
                continue
            except OutcomeUnknown as error:
                unknown = error
            except EblaError as error:
                if unknown is None or isinstance(error, UnknownTable):
                    raise
                if not isinstance(error, Unavailable):
                    break
        if unknown is not None:
            raise OutcomeUnknown(f"it is not known whether {config.name!r} was replaced: look again") from unknown
        raise Unavailable(f"others kept changing table {config.name!r}: nothing was changed, try again")

    def drop(self, name: str) -> str:
        """Let the table called `name` disappear, and return its id. Its configuration stays."""
        table_id = self.find(name)
        unknown: OutcomeUnknown | None = None
        for _ in self._retries.attempts(self._clock):
            try:
                found = self._read(table_id)
                named = self._coordination.read(name_path(name))
                if found is None or found[0].is_deleted:
                    if unknown is not None:
                        return table_id
                    raise UnknownTable(f"there is no table {name!r}: somebody else dropped it")
                if named is None or named.value != table_id.encode():
                    continue  # the two reads fell around a change: look again
                config, node = found
                if config.name != name:
                    raise Corruption(name_path(name), f"it means the table {config.name!r}: `repair` forgets the name")
                dropped = encode_config(msgspec.structs.replace(config, state="deleted"))
                self._coordination.multi(
                    [
                        CompareAndSet(config_path(table_id), dropped, node.version),
                        Delete(name_path(name), named.version),
                    ]
                )
            except CoordinationConflict:
                continue
            except OutcomeUnknown as error:
                unknown = error
            except EblaError as error:
                if unknown is None:
                    raise
                if not isinstance(error, Unavailable):
                    break
            else:
                return table_id
        if unknown is not None:
            raise OutcomeUnknown(f"it is not known whether the table {name!r} was dropped: look again") from unknown
        raise Unavailable(f"others kept changing table {name!r}: nothing was changed, try again")

    def rename(self, table_id: str, name: str, named_txn: int = 0) -> TableConfig:
        """Give a table another name, which it has since `named_txn`; `TableExists` if it is taken."""
        return self._naming().rename(table_id, name, named_txn)

    def unlink(self, name: str, microseconds: int, kept_until_microseconds: int) -> str:
        """Take the name away from the table that has it; return its id. Everything else of it stays until then."""
        table_id = self.find(name)
        config, _ = self.read(table_id)
        if config.name != name:
            raise Corruption(name_path(name), f"it means the table {config.name!r}: `repair` forgets the name")
        self._naming().delete(table_id, microseconds, kept_until_microseconds)
        return table_id

    def undelete(self, table_id: str, name: str, named_txn: int = 0) -> None:
        """Bring a table back that was unlinked, under a name that it has since `named_txn`."""
        self._naming().undelete(table_id, name, named_txn)

    def purge(self, table_id: str) -> None:
        """Let go of a table that was unlinked, for good."""
        self._naming().purge(table_id)

    def retained(self) -> dict[str, TableConfig]:
        """Return the tables that were unlinked and are still there, by id; nodes that cannot be read are left out."""
        retained = {}
        for path in self._coordination.list(TABLES):
            with contextlib.suppress(Corruption):  # whoever verifies the store is told
                config = self.config(path.removeprefix(f"{TABLES}/"))
                if config is not None and config.is_retained:
                    retained[path.removeprefix(f"{TABLES}/")] = config
        return retained

    def _naming(self) -> TableNaming:
        return TableNaming(self._coordination, self._clock, retries=self._retries)

    def settle(self, table_id: str, name: str) -> bool:
        """After an unknown outcome: tell whether the table is there, and let nothing under way change that any more.

        Its node gets a new version, or, if it has none, is made with the table as dropped. So whatever the unknown
        request expects to find is gone.
        """
        tombstone = TableConfig(name, "deleted", "", ())
        for _ in self._retries.attempts(self._clock):
            try:
                found = self._read(table_id)
                if found is None:
                    self._coordination.create(config_path(table_id), encode_config(tombstone))
                    return False
                config, node = found
                if config.is_deleted:
                    return False
                self._coordination.compare_and_set(config_path(table_id), node.value, node.version)
            except (CoordinationConflict, OutcomeUnknown):
                continue
            return True
        raise Unavailable(f"it cannot be told yet whether the table {name!r} is there: try again")
