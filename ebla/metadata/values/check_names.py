"""Verifying the index of names against the tables, and mending it: what is wrong, and what each name should mean. Pure.

    names/<name> -> id        tables/<id> {name, state}

    found                                           mended by
    a name of no table, or of a dropped one         forgetting the name
    a name of a table that is called otherwise      forgetting the name
    a table that its name does not mean             giving it its name; if that means another, one that is free

A table says itself what it is called, and that is believed. Nothing is lost: no table is touched but for its name, and
each ends up with exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebla.metadata.values.check import Finding
from ebla.metadata.values.table_config import TableConfig

__all__ = ["NamesExamination", "examine_names"]

_ID_SHOWN = 8


@dataclass(frozen=True, slots=True)
class NamesExamination:
    """What was found, the names to be forgotten, and the names to be given, by table id."""

    findings: tuple[Finding, ...]
    forget: tuple[str, ...] = ()
    give: tuple[tuple[str, str], ...] = ()


def examine_names(names: Mapping[str, str], configs: Mapping[str, TableConfig]) -> NamesExamination:
    """Compare what every name means with what every table is called; tables that were dropped are in `configs` too."""
    findings: list[Finding] = []
    forget: list[str] = []
    for name, table_id in sorted(names.items()):
        config = configs.get(table_id)
        if config is not None and not config.is_deleted and config.name == name:
            continue
        if config is None or config.is_deleted:
            text = f"the name {name!r} means table {table_id}, which is not there"
        else:
            text = f"the name {name!r} means table {table_id}, which is called {config.name!r}"
        findings.append(Finding("name", name, text, repair="forget the name"))
        forget.append(name)
    taken = {name for name in names if name not in forget}
    give: list[tuple[str, str]] = []
    for table_id, config in sorted(configs.items()):
        if config.is_deleted or names.get(config.name) == table_id:
            continue
        name, other = config.name, names.get(config.name)
        meant = "nothing" if other is None else f"table {other}"
        text = f"the table {table_id} is called {name!r}, and that means {meant}"
        if name in taken:
            name = _free_name(name, table_id, taken)
        findings.append(Finding("no name", config.name, text, repair=f"call it {name!r}"))
        give.append((table_id, name))
        taken.add(name)
    return NamesExamination(tuple(findings), tuple(forget), tuple(give))


def _free_name(name: str, table_id: str, taken: set[str]) -> str:
    """Return a name that no table has, and that shows whose it is."""
    free = f"{name}-{table_id[:_ID_SHOWN]}"
    return free if free not in taken else f"{name}-{table_id}"
