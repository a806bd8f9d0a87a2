"""The command for the certificates of a cluster: certs."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, examples
from ebla.cli.shared.lines import write_json, write_line

if TYPE_CHECKING:
    from ebla.access.certificates import Certificate

CERTS_EXAMPLES = examples(
    "ebla certs ca certs",
    "ebla certs server certs --name master-1 --host 127.0.0.1 --host db1.example.org",
    "ebla certs server certs --name server-1 --host 127.0.0.2 --days 90",
    "ebla certs renew certs --name server-1",
    "ebla certs show certs",
)


class CertsAction(StrEnum):
    """What is done with certificates."""

    ca = "ca"
    server = "server"
    renew = "renew"
    show = "show"


@guarded
def certs(
    ctx: typer.Context,
    action: Annotated[CertsAction, typer.Argument(help="What to do.", show_default=False)],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the certificates are.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the certificate: its files are NAME.pem and NAME.key.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Host name or address by which the process is reached; may be repeated.",
            show_default=False,
        ),
    ] = None,
    uuid: Annotated[
        str | None,
        typer.Option("--uuid", help="Of the process, if it was started before; else a new one.", show_default=False),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", help="How long it holds; else 365, the authority 3650.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make the certificates of a cluster: of its authority (ca), of a master or tablet server (server).

    A process is who its certificate says: started with an empty directory, it takes the uuid from there. `renew` makes
    certificate and key anew, for the same process; start it again then. Keys can be read by their owner alone, and
    nothing is overwritten. Copy to a host what its process needs: NAME.pem, NAME.key, ca.pem. Clients need ca.pem. Keep
    ca.key where no process runs: whoever has it can be any of them.
    """
    from ebla.access import certificates
    from ebla.errors import RequestError

    given = {"--name": name, "--host": host, "--uuid": uuid, "--days": days}
    taken = {"ca": {"--days"}, "server": set(given), "renew": {"--name", "--days"}, "show": set[str]()}[action.value]
    foreign = [option for option, value in given.items() if value and option not in taken]
    if foreign:
        raise RequestError(f"`ebla certs {action.value}` takes no {foreign[0]}")
    if "--name" in taken and not name:
        raise RequestError(f"`ebla certs {action.value}` needs --name")
    match action:
        case CertsAction.ca:
            made = [certificates.make_authority(directory, days or certificates.CA_DAYS)]
        case CertsAction.server:
            wanted = days or certificates.DAYS
            made = [certificates.make_certificate(directory, str(name), host or [], uuid=uuid, days=wanted)]
        case CertsAction.renew:
            made = [certificates.renew_certificate(directory, str(name), days or certificates.DAYS)]
        case CertsAction.show:
            made = certificates.list_certificates(directory)
    _tell([_row(one) for one in made], as_json=json)


def _row(one: Certificate) -> dict[str, Any]:
    return {
        "name": one.name,
        "of": one.uuid or ("the authority" if one.is_authority else "no process"),
        "hosts": list(one.hosts),
        "until": one.ends.isoformat(timespec="minutes"),
        "days": round(one.days_left(datetime.now(UTC)), 1),
    }


def _tell(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from ebla.cli.shared.drawing import print_rows

    if as_json:
        write_json(rows)
        return
    print_rows([{**row, "hosts": ", ".join(row["hosts"])} for row in rows], f"{len(rows)} certificate(s)")
    for row in rows:
        if row["days"] < 0:
            write_line(f"problem: {row['name']} has expired: `ebla certs renew DIR --name {row['name']}`")
