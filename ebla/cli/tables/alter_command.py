"""The command that changes the schema of a table: what it takes, as text, and `Database.alter_table` does the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import StoreOption, TableArgument, examples, open_store
from ebla.cli.shared.lines import write_line
from ebla.errors import SchemaError

ALTER_EXAMPLES = examples(
    "ebla alter people --add-column email:string --add-family events/likes --rename name=full_name",
    'ebla alter people --group "cold:columns=;compression=zstd" --move age=cold --set "events:max_versions=5"',
    "ebla alter people --type age:int64 --drop-column email",
)


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


@guarded
def alter(
    ctx: typer.Context,
    table: TableArgument,
    add_column: Annotated[
        list[str] | None, _option("--add-column", "[GROUP/]NAME:TYPE", "Add a column to a group of columns.")
    ] = None,
    drop_column: Annotated[list[str] | None, _option("--drop-column", "NAME", "Drop a column with its values.")] = None,
    add_family: Annotated[
        list[str] | None, _option("--add-family", "[GROUP/]NAME", "Add a family to a group of families.")
    ] = None,
    drop_family: Annotated[list[str] | None, _option("--drop-family", "NAME", "Drop a family with its cells.")] = None,
    rename: Annotated[
        list[str] | None, _option("--rename", "OLD=NEW", "Rename a column, a family or a column of the key.")
    ] = None,
    move: Annotated[
        list[str] | None, _option("--move", "NAME=GROUP", "Move a column or a family to another group.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        _option("--type", "NAME:TYPE", "Give a column a type that holds all of its values, as int64 does for int32."),
    ] = None,
    group: Annotated[
        list[str] | None,
        _option("--group", "NAME:OPTION=VALUE;...", "Add a locality group, in the form that `ebla create` takes."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        _option(
            "--set",
            "GROUP:OPTION=VALUE;...",
            "Change a group: compression, block_bytes, max_versions (or all), max_age (or none), purge_join, "
            "in_memory, lookup_at_once.",
        ),
    ] = None,
    drop_group: Annotated[
        list[str] | None, _option("--drop-group", "NAME", "Drop a group with all that is in it.")
    ] = None,
    replicas: Annotated[
        int | None, _option("--replicas", "N", "Of a cluster: so many servers keep each tablet.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Change the schema of a table: all of it, or nothing.

    No row is copied; what moves is rewritten when it is compacted. What is dropped is gone, also if its name is used
    again. GROUP can be left out where there is one group of that kind.
    """
    from ebla.cli.tables.schema_text import group_from_text, group_options_from_text, named_type

    request: dict[str, Any] = {
        "add_columns": _columns(add_column or []),
        "drop_columns": drop_column or [],
        "add_families": _families(add_family or []),
        "drop_families": drop_family or [],
        "rename": _pairs(rename or [], "--rename", "OLD=NEW"),
        "move": _pairs(move or [], "--move", "NAME=GROUP"),
        "change_types": dict(named_type(text, "--type") for text in kind or []),
        "groups": [group_from_text(text) for text in group or []],
        "change_groups": dict(group_options_from_text(text, "--set") for text in settings or []),
        "drop_groups": drop_group or [],
        "replicas": replicas,
    }
    with open_store(ctx, store, write=True) as db:
        altered = db.alter_table(table, **request)
        write_line(f"altered {altered.name}, now at schema version {altered.schema.version}")


def _columns(texts: Iterable[str]) -> dict[str, Any]:
    from ebla.cli.tables.schema_text import named_type

    given: dict[str, Any] = {}
    for text in texts:
        name, kind = named_type(text, "--add-column")
        group, slash, column = name.partition("/")
        if slash:
            given.setdefault(group, {})[column] = kind
        else:
            given[name] = kind
    return given


def _families(texts: Sequence[str]) -> dict[str, list[str]] | list[str]:
    named = [text.partition("/") for text in texts]
    if not any(slash for _, slash, _ in named):
        return list(texts)
    given: dict[str, list[str]] = {}
    for group, slash, family in named:
        if not slash:
            raise SchemaError(f"--add-family {group!r}: say the group of every family, or of none")
        given.setdefault(group, []).append(family)
    return given


def _pairs(texts: Iterable[str], option: str, form: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        old, equals, new = (part.strip() for part in text.partition("="))
        if not equals or not old or not new:
            raise SchemaError(f"{option} {text!r}: write {form}")
        pairs[old] = new
    return pairs
