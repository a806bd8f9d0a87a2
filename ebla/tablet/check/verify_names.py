"""Verifying and repairing the index of names in the coordination service: reads, and carries out what was decided.

look      names and tables, until two looks in a row find the same: what somebody is changing is no damage
mend      one multi, which names the version of every node that it touches: all of it or nothing
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ebla.coordination.service import CompareAndSet, CoordinationService, Create, Delete, Operation
from ebla.errors import Corruption, Unavailable
from ebla.metadata.values.check import Finding
from ebla.metadata.values.check_names import NamesExamination, examine_names
from ebla.metadata.values.table_config import (
    NAMES,
    TABLES,
    TableConfig,
    config_path,
    decode_config,
    encode_config,
    name_path,
    table_id_of,
)
from ebla.retry import RACES

__all__ = ["NamesVerifier", "SeenNames"]


@dataclass(frozen=True, slots=True)
class SeenNames:
    """The index and the tables as they were seen, with the versions of their nodes; `damaged` nodes cannot be read."""

    names: dict[str, tuple[str, int]]
    configs: dict[str, tuple[TableConfig, int]]
    damaged: tuple[Finding, ...]

    def examine(self) -> NamesExamination:
        """Compare the two."""
        found = examine_names(
            {name: table_id for name, (table_id, _) in self.names.items()},
            {table_id: config for table_id, (config, _) in self.configs.items()},
        )
        if not self.damaged:
            return found
        # A node that cannot be read may be the one that a name means: tell all, and change nothing.
        told = (Finding(one.kind, one.table, one.text) for one in found.findings)
        return NamesExamination((*self.damaged, *told))


class NamesVerifier:
    """Looks at the index of names of a store."""

    def __init__(self, coordination: CoordinationService) -> None:
        self._coordination = coordination

    def look(self) -> tuple[SeenNames, NamesExamination]:
        """Return what is there, and what is wrong with it."""
        seen = self._see()
        for _ in RACES:
            found = seen.examine()
            if not found.findings:
                return seen, found
            again = self._see()
            if again == seen:
                return seen, found
            seen = again
        raise Unavailable("tables came and went faster than they could be read: try again")

    def _see(self) -> SeenNames:
        names: dict[str, tuple[str, int]] = {}
        configs: dict[str, tuple[TableConfig, int]] = {}
        damaged: list[Finding] = []
        for path in (*self._coordination.list(NAMES), *self._coordination.list(TABLES)):
            parent, _, last = path.partition("/")
            try:
                node = self._coordination.read(path)
                if node is None:
                    continue  # gone since the list was read
                if parent == NAMES:
                    names[last] = table_id_of(node), node.version
                else:
                    configs[last] = decode_config(path, node), node.version
            except Corruption as error:
                text = f"{error}: restore the coordination service from a backup"
                damaged.append(Finding("config", last, text))
        return SeenNames(names, configs, tuple(damaged))

    def mend(self) -> bool:
        """Give every table its name, and forget names that mean nothing; tell whether anything was changed."""
        seen, found = self.look()
        operations: list[Operation] = [Delete(name_path(name), seen.names[name][1]) for name in found.forget]
        for table_id, name in found.give:
            config, version = seen.configs[table_id]
            if name != config.name:
                renamed = encode_config(msgspec.structs.replace(config, name=name))
                operations.append(CompareAndSet(config_path(table_id), renamed, version))
            if name in found.forget:
                operations.remove(Delete(name_path(name), seen.names[name][1]))
                operations.append(CompareAndSet(name_path(name), table_id.encode(), seen.names[name][1]))
            else:
                operations.append(Create(name_path(name), table_id.encode()))
        if operations:
            self._coordination.multi(operations)
        return bool(operations)
