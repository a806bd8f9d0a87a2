"""The command that moves a tablet to another server: move."""

from __future__ import annotations

from typing import Annotated

import typer

from ebla.cli.cluster.local_commands import DirectoryOption
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import connected, examples
from ebla.cli.shared.lines import write_line

MOVE_EXAMPLES = examples(
    "ebla move users 3f9a 7c9e --data cluster",
    "ebla move users 3f9a 10.0.0.8:7072 --data 10.0.0.7:7070",
)


@guarded
def move(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)],
    tablet: Annotated[
        str, typer.Argument(metavar="TABLET", help="Id of the tablet, or how it begins.", show_default=False)
    ],
    server: Annotated[
        str,
        typer.Argument(metavar="SERVER", help="Uuid of the server, how it begins, or its address.", show_default=False),
    ],
    data: DirectoryOption,
) -> None:
    """Have another server of a cluster lead a tablet, and return when it does. Reads and writes go on.

    The balancer goes on, too: where servers lead very different numbers of tablets, it moves some itself.
    """
    with connected(data) as db:
        db.move_tablet(table, tablet, server)
    write_line(f"moved: tablet {tablet} of {table} is led by {server}")
