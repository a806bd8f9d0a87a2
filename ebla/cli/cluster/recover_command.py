"""The command that goes on with what is left of a tablet: recover."""

from __future__ import annotations

from typing import Annotated

import typer

from ebla.cli.cluster.local_commands import DirectoryOption
from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import examples
from ebla.cli.shared.lines import write_line

RECOVER_EXAMPLES = examples("ebla recover 3f9a --data cluster", "ebla recover 3f9a --accept-loss --data cluster")


@guarded
def recover(
    ctx: typer.Context,
    tablet: Annotated[
        str, typer.Argument(metavar="TABLET", help="Id of the tablet, or how it begins.", show_default=False)
    ],
    data: DirectoryOption,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Lose what only the replicas that are gone have.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="UUID",
            help="Go on from the replica on this server. Default: the one that has most.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Go on with what is left of a tablet of a cluster whose in-sync replicas are gone for good.

    Such a tablet waits, for a server that returns with its disk loses nothing. Without --accept-loss nothing is done,
    and what would be lost is told. What was done stands in the audit log of the master.
    """
    import ebla

    with ebla.connect(data) as db:
        write_line(db.recover_tablet(tablet, accept_loss=accept_loss, server=server))
