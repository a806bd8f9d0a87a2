"""The commands about whole tables: create, tables, describe, flush, stats, drop, undelete."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import ebla
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, StoreOption, TableArgument, examples, open_store, whole_tables
from ebla.cli.shared.lines import flatten, size_text, write_json, write_line

if TYPE_CHECKING:
    from ebla.model.schema import GroupSchema

CREATE_EXAMPLES = examples(
    "ebla create users --key user:string --key day:date32 --column name:string --column age:int32 \\\n"
    '    --group "events:families=click,view;max_versions=3" --split m',
    "ebla create logins --key user:string --column n:int32 --if-not-exists",
    "ebla create --store elsewhere",
    'echo \'{"key": {"id": "int64"}, "columns": {"title": "string"}}\' | ebla create notes --schema -',
)


@guarded
def create(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Name of the table; without one, only the store is made.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="NAME:TYPE", help="A key column, in order. Default: row:binary.", show_default=False
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME:TYPE", help="A column of the group 'default'.", show_default=False),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="NAME:OPTION=VALUE;...",
            help="A locality group. Options: columns=a:int32,b:string or families=x,y (or *); compression, "
            "block_bytes, max_versions (or all), max_age=30d, purge_join=and|or, in_memory, lookup_at_once.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", metavar="KEY", help="Cut the table into tablets here.", show_default=False),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="Take key, columns, groups and splits from a JSON file, in the form of `ebla describe --json`; - is "
            "standard input.",
            show_default=False,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A table of that name and schema that is there already will do.")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", help="Of a cluster: so many servers keep each tablet.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Create a table, and the store if there is none; without a table, an empty store, to load or restore into.

    Types are Arrow's: int32, float64, string, binary, bool, date32, timestamp[us, tz=UTC], decimal128(10, 2),
    list<string>, struct<x: int32>. A KEY is the value of the first key column, or a JSON array such as
    '["m", "2026-01-01"]'.
    """
    from ebla.cli.tables.schema_text import bound_from_text, bound_from_values, schema_from_json, schema_from_options

    if table is None:
        if key or column or group or split or schema:
            raise ebla.RequestError("give the name of the table, before or after its columns: `ebla create TABLE ...`")
        with open_store(ctx, store, write=True, create=True) as db:
            write_line(f"the store at {db.path} is there, with {len(db.tables())} table(s)")
        return
    splits: list[Any]
    if schema is not None:
        if key or column or group:
            raise ebla.RequestError("--schema stands alone: leave out --key, --column and --group, or put them into it")
        declared, splits = schema_from_json(_read(schema), schema)
    elif not (column or group):
        raise ebla.RequestError("a table needs columns: give --column NAME:TYPE, --group or --schema FILE")
    else:
        declared, splits = schema_from_options(key or [], column or [], group or []), []
    numbered = declared.number()
    bounds = [bound_from_values(value, numbered) for value in splits]
    bounds += [bound_from_text(text, numbered) for text in split or []]
    with open_store(ctx, store, write=True, create=True) as db:
        was_there = if_not_exists and table in db.tables()
        created = db.create_table(
            table, declared, splits=bounds or None, if_not_exists=if_not_exists, replicas=replicas
        )
        write_line(f"{created.name} is there already" if was_there else f"created {created.name}")


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ebla.RequestError(f"cannot read {path}: {error.strerror}; check the path given to --schema") from None


TABLES_EXAMPLES = examples("ebla tables", "ebla tables --json", "ebla tables --dropped")


@guarded
def tables(
    ctx: typer.Context,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Those that were dropped, and until when they can be brought back.")
    ] = False,
    json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """List the tables of the store."""
    with open_store(ctx, store) as db:
        if dropped:
            _list_dropped(db, json=json)
            return
        names = db.tables()
        if json:
            write_json(names)
            return
        rows = []
        damaged = db.stats()["damaged"]
        for name in names:
            if name in damaged:
                rows.append({"table": name, "key": "damaged: see `ebla verify`", "groups": ""})
                continue
            schema = db.table(name).schema
            rows.append(
                {"table": name, "key": ", ".join(schema.key_names), "groups": ", ".join(g.name for g in schema.groups)}
            )
    if rows:
        from ebla.cli.shared.drawing import print_rows

        print_rows(rows, f"{len(rows)} table(s)")
    else:
        write_line("no tables yet: make one with `ebla create`")


def _list_dropped(db: ebla.Database, *, json: bool) -> None:
    rows = [
        {"table": one.name, "id": one.id, "dropped": _moment(one.dropped), "until": _moment(one.until)}
        for one in db.dropped_tables()
    ]
    if json:
        write_json(rows)
    elif rows:
        from ebla.cli.shared.drawing import print_rows

        print_rows(rows, f"{len(rows)} dropped table(s); `ebla undelete TABLE` brings one back")
    else:
        write_line("no dropped tables that could be brought back")


DESCRIBE_EXAMPLES = examples(
    "ebla describe users",
    "ebla describe users --json > schema.json",
    "ebla create people --schema schema.json",
)


@guarded
def describe(ctx: typer.Context, table: TableArgument, json: JsonOption = False, store: StoreOption = None) -> None:
    """Show the key, the groups and the columns of a table.

    With --json in the form that `ebla create --schema` takes.
    """
    from ebla.cli.shared.drawing import print_rows
    from ebla.cli.tables.schema_text import schema_to_json
    from ebla.model.text_values import type_text

    with open_store(ctx, store) as db:
        found = db.table(table)
        if json:
            write_json(schema_to_json(found.name, found.schema))
            return
        schema = found.schema
        rows = [{"column": c.name, "type": type_text(c.type), "group": "(key)", "kept": ""} for c in schema.key]
        for group in schema.groups:
            kept = _kept(group)
            rows += [
                {"column": c.name, "type": type_text(c.type), "group": group.name, "kept": kept} for c in group.columns
            ]
            rows += [
                {"column": f"{f.name}:…", "type": "cells", "group": group.name, "kept": kept} for f in group.families
            ]
        print_rows(rows, f"{found.name}, schema version {schema.version}, {found.stats()['tablets']} tablet(s)")


def _kept(group: GroupSchema) -> str:
    from ebla.cli.tables.schema_text import age_text

    parts = []
    if group.max_versions is not None:
        parts.append(f"{group.max_versions} version(s)")
    if group.max_age_microseconds is not None:
        parts.append(age_text(group.max_age_microseconds))
    return f" {group.purge_join} ".join(parts) or "all versions"


FLUSH_EXAMPLES = examples("ebla flush users", "ebla flush")


@guarded
def flush(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Only this table.", show_default=False)] = None,
    store: StoreOption = None,
) -> None:
    """Write what is only in the log to Parquet files.

    Never needed for safety: what `put` acknowledged is on disk already. After it, other tools see all rows in the
    files, and the next start has nothing to replay.
    """
    with open_store(ctx, store, write=True) as db:
        names = [table] if table is not None else whole_tables(db)
        for name in names:
            db.table(name).flush()
            write_line(f"flushed {name}")


# What a table for people leaves out.
_NOTHING: tuple[Any, ...] = (None, 0, "0 bytes", [])

STATS_EXAMPLES = examples("ebla stats", "ebla stats users --json", "ebla stats --prometheus > ebla.prom")


@guarded
def stats(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Only this table.", show_default=False)] = None,
    json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the metrics of the store in the text format of Prometheus.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Show sizes and counts of the store, or of one table; those that are zero only with --json.

    Counters begin when a store is opened: a process that has it open gets its own from `db.stats()`. With
    --prometheus, those of the process that has it open are told, a few seconds old.
    """
    if prometheus and (json or table is not None):
        raise ebla.RequestError(
            "--prometheus tells of the whole store in a form of its own: leave out TABLE and --json"
        )
    with open_store(ctx, store) as db:
        if prometheus:
            write_line(db.metrics().rstrip("\n"))
            return
        facts = db.stats() if table is None else db.table(table).stats()
        title = str(db.path) if table is None else table
    plain = msgspec.to_builtins(facts, enc_hook=str, str_keys=True)
    if json:
        write_json(plain)
        return
    from ebla.cli.shared.drawing import print_facts, print_rows

    by_table = plain.pop("tables", {}) if table is None else {}
    print_facts(title, ((name, value) for name, value in flatten(plain) if value not in _NOTHING))
    if by_table:
        print_rows([_summary(name, own) for name, own in by_table.items()], "`ebla stats TABLE` tells more of each")


def _summary(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    if "groups" not in facts:  # of a cluster
        tablets = facts["tablets"]
        return {
            "table": name,
            "tablets": len(tablets),
            "served": sum(tablet["is_served"] for tablet in tablets),
            "leaders": len({tablet["leader"] for tablet in tablets} - {None}),
        }
    groups = facts["groups"].values()
    return {
        "table": name,
        "tablets": facts["tablets"],
        "fragments": facts["fragments"],
        "in fragments": size_text(facts["fragment_bytes"]),
        "in memory": size_text(sum(group["memory_bytes"] for group in groups)),
    }


# Who drops a table by hand may have meant another one.
DROP_RETENTION_SECONDS = 86_400.0

DROP_EXAMPLES = examples("ebla drop people --yes", "ebla undelete people", "ebla drop people --purge --yes")


@guarded
def drop(
    ctx: typer.Context,
    table: TableArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="For good, at once: it cannot be brought back.")] = False,
    store: StoreOption = None,
) -> None:
    """Drop a table with all its rows. The name is free at once; for a day, `ebla undelete` brings the table back."""
    kept = ebla.Settings(drop_retention_seconds=DROP_RETENTION_SECONDS)
    with open_store(ctx, store, write=True, settings=kept) as db:
        db.table(table)  # complain about an unknown table before asking
        if not yes:
            if not sys.stdin.isatty():
                undone = "cannot be undone" if purge else "frees its name, and a day later its rows are gone"
                raise ebla.RequestError(f"dropping {table} {undone}: repeat with --yes if you mean it")
            if not typer.confirm(f"Drop {table} with all its rows?", err=True):
                write_line("nothing dropped")
                return
        before = {dropped.id for dropped in db.dropped_tables()}
        db.drop_table(table, purge=purge)
        told = "".join(
            f"; until {_moment(dropped.until)}, `ebla undelete {table}` brings it back"
            for dropped in db.dropped_tables()
            if dropped.id not in before and dropped.name == table
        )
        write_line(f"dropped {table}{told}")


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


UNDELETE_EXAMPLES = examples(
    "ebla create spare --key k:string --column v:int64",
    "ebla drop spare --yes",
    "ebla tables --dropped",
    "ebla undelete spare --as kept",
)


@guarded
def undelete(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The name that it had.", show_default=False)],
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Which, if several had that name: see `ebla tables --dropped`."),
    ] = None,
    new_name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Call it so, if the old name is taken.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Bring a dropped table back, with all its rows, if it is not too long ago."""
    with open_store(ctx, store, write=True) as db:
        back = db.undelete_table(table, id=id, new_name=new_name)
        write_line(f"{back.name} is back")
