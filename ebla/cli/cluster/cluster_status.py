"""How a cluster on one host is: its processes, tables and tablets, what is wrong and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from ebla.cli.shared.command_failures import ExitCode
from ebla.cli.shared.lines import write_json, write_line

__all__ = ["CLUSTER_FILE", "tell_cluster"]

CLUSTER_FILE = "cluster.json"


def tell_cluster(directory: Path, *, json: bool) -> None:
    """Tell how the cluster of a directory is; leaves with exit code 6 if something is wrong."""
    from ebla.errors import EblaError
    from ebla.local_cluster.cluster_file import is_running, read_cluster
    from ebla.local_cluster.local_cluster import describe

    cluster = read_cluster(directory)
    running = {process: is_running(process) for process in cluster.processes}
    problems = [
        f"the {process.role} in {process.data} does not run: see {process.data}.log; `ebla down` and `ebla up` start "
        "all of them again"
        for process, is_up in running.items()
        if not is_up
    ]
    try:
        found: dict[str, Any] = describe(cluster)
        problems += found.pop("problems")
    except EblaError as error:
        found = {"term": None, "servers": {}, "tables": {}}
        problems.append(f"no master answers: {error}")
    processes = [{**msgspec.to_builtins(process), "is_running": is_up} for process, is_up in running.items()]
    if json:
        write_json({"address": cluster.address, "processes": processes, **found, "problems": problems})
    else:
        _tell(directory, processes, found, problems)
    if problems:
        raise typer.Exit(ExitCode.STORE)


def _tell(directory: Path, processes: list[dict[str, Any]], found: dict[str, Any], problems: list[str]) -> None:
    from ebla.cli.shared.drawing import print_facts, print_rows

    health = f"{len(problems)} problem(s)" if problems else "nothing is known to be wrong"
    print_facts(str(directory), [("term of the master", found["term"]), ("health", health)])
    rows = []
    for process in processes:
        server = found["servers"].get(process["uuid"], {})
        rows.append(
            {
                "process": process["role"],
                "uuid": process["uuid"][:8],
                "address": process["address"],
                "pid": process["pid"],
                "state": "runs" if process["is_running"] else "does not run",
                "leads": server.get("leads", ""),
                "heard": f"{server['silent_seconds']} s ago" if server else "",
            }
        )
    print_rows(rows, f"{len(rows)} process(es)")
    tables = [
        {
            "table": name,
            "tablets": len(table["tablets"]),
            "served": sum(tablet["is_served"] for tablet in table["tablets"]),
            "leaders": len({tablet["leader"] for tablet in table["tablets"]} - {None}),
            "schema": table["schema_version"],
        }
        for name, table in found["tables"].items()
    ]
    if tables:
        print_rows(tables, f"{len(tables)} table(s)")
    for problem in problems:
        write_line(f"problem: {problem}")
