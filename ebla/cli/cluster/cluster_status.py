"""How a cluster on one host is: its processes, tables and tablets, what is wrong and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

import ebla
from ebla.cli.shared.command_failures import ExitCode
from ebla.cli.shared.lines import write_json, write_line

__all__ = ["CLUSTER_FILE", "tell_cluster", "tell_connected"]

CLUSTER_FILE = "cluster.json"


def tell_cluster(directory: Path, *, json: bool) -> None:
    """Tell how the cluster of a directory is; leaves with exit code 6 if something is wrong."""
    from ebla.errors import EblaError
    from ebla.local_cluster.administrator import kept_token
    from ebla.local_cluster.cluster_file import as_it_runs, is_running, read_cluster
    from ebla.local_cluster.local_cluster import describe

    cluster = read_cluster(directory)
    running = {process: is_running(process) for process in map(as_it_runs, cluster.processes)}
    problems = [
        f"the {process.role} in {process.data} does not run: see {process.data}.log; `ebla up --data {directory}` "
        "starts it again"
        for process, is_up in running.items()
        if not is_up
    ]
    try:
        found: dict[str, Any] = describe(cluster, token=kept_token(directory))
        problems += found.pop("problems")
    except EblaError as error:
        found = {"term": None, "servers": {}, "tables": {}}
        problems.append(f"no master answers: {error}")
    processes = [{**msgspec.to_builtins(process), "is_running": is_up} for process, is_up in running.items()]
    for process in processes:  # a server that was started by hand may be elsewhere than on record
        process["address"] = found["servers"].get(process["uuid"], process)["address"]
    if json:
        write_json({"address": cluster.address, "processes": processes, **found, "problems": problems})
    else:
        _tell(directory, processes, found, problems)
    if problems:
        raise typer.Exit(ExitCode.STORE)


def _replicas(table: dict[str, Any]) -> str:
    """Return how many replicas a table has: as wanted, or how many are in sync where they are fewest."""
    least = min((len(tablet["in_sync"]) for tablet in table["tablets"]), default=0)
    return str(table["replicas"]) if table["replicas"] in (1, least) else f"{least} of {table['replicas']}"


def tell_connected(db: ebla.Database, place: str, *, json: bool) -> None:
    """Tell what the leading master knows of a cluster; leaves with exit code 6 if something is wrong."""
    found = db.stats()
    problems = found.pop("problems")
    if json:
        write_json({"address": place, **found, "problems": problems})
    else:
        _tell_all(place, [_server_row(uuid, server) for uuid, server in found["servers"].items()], found, problems)
    if problems:
        raise typer.Exit(ExitCode.STORE)


def _server_row(uuid: str, server: dict[str, Any]) -> dict[str, Any]:
    return {
        "process": "tablet-server",
        "uuid": uuid[:8],
        "host": server["host"],
        "address": server["address"],
        "state": "is heard of" if server["is_alive"] else "is silent",
        "leads": server["leads"],
        "heard": f"{server['silent_seconds']} s ago",
    }


def _tell(directory: Path, processes: list[dict[str, Any]], found: dict[str, Any], problems: list[str]) -> None:
    rows = []
    for process in processes:
        server = found["servers"].get(process["uuid"], {})
        rows.append(
            {
                "process": process["role"],
                "uuid": process["uuid"][:8],
                "address": process["address"],
                "metrics": process["metrics"],
                "pid": process["pid"],
                "state": "runs" if process["is_running"] else "does not run",
                "leads": server.get("leads", ""),
                "heard": f"{server['silent_seconds']} s ago" if server else "",
            }
        )
    _tell_all(str(directory), rows, found, problems)


def _tell_all(place: str, rows: list[dict[str, Any]], found: dict[str, Any], problems: list[str]) -> None:
    from ebla.cli.shared.drawing import print_facts, print_rows

    health = f"{len(problems)} problem(s)" if problems else "nothing is known to be wrong"
    print_facts(place, [("term of the master", found["term"]), ("health", health)])
    print_rows(rows, f"{len(rows)} process(es)")
    tables = [
        {
            "table": name,
            "tablets": len(table["tablets"]),
            "served": sum(tablet["is_served"] for tablet in table["tablets"]),
            "leaders": len({tablet["leader"] for tablet in table["tablets"]} - {None}),
            "replicas": _replicas(table),
            "schema": table["schema_version"],
        }
        for name, table in found["tables"].items()
    ]
    if tables:
        print_rows(tables, f"{len(tables)} table(s)")
    for problem in problems:
        write_line(f"problem: {problem}")
