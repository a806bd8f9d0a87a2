"""The commands for the users of a cluster: user, grant."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ebla.cli.shared.command_failures import guarded
from ebla.cli.shared.context import JsonOption, examples
from ebla.cli.shared.lines import write_json, write_line

USER_EXAMPLES = examples(
    "ebla user add ada --data cluster",
    "ebla user add nightly --hours 12 --coordination zk://one:2181/ebla",
    "ebla user list --data cluster",
    "ebla user revoke ada --token 4f1c09aa --data cluster",
    "ebla user revoke ada --data cluster",
)
GRANT_EXAMPLES = examples(
    "ebla grant ada write words --data cluster",
    "ebla grant ada read '*' --data cluster",
    "ebla grant ada none words --data cluster",
)

DirectoryOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of `ebla up`.", show_default=False)
]
CoordinationOption = Annotated[
    str | None,
    typer.Option(
        "--coordination", metavar="PLACE", help="Else: where the cluster is coordinated, as for `ebla master`.",
        show_default=False,
    ),
]  # fmt: skip


class UserAction(StrEnum):
    """What is done with users."""

    add = "add"
    list = "list"
    revoke = "revoke"


class RightName(StrEnum):
    """A right on a table."""

    read = "read"
    write = "write"
    admin = "admin"
    none = "none"


@guarded
def user(
    ctx: typer.Context,
    action: Annotated[UserAction, typer.Argument(help="What to do.", show_default=False)],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The user.", show_default=False)] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.0, help="The token expires then; else never.", show_default=False)
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="ID", help="Revoke this one alone.", show_default=False)
    ] = None,
    data: DirectoryOption = None,
    coordination: CoordinationOption = None,
    json: JsonOption = False,
) -> None:
    """Make users of a cluster that was started with --auth, list them, or take their tokens away.

    `add` prints a token, which is kept nowhere but as a hash: whoever has it is that user. A user that is there gets
    one more. Rights come with `ebla grant`. Servers go by a change after a second.
    """
    from ebla.access.tokens import new_token
    from ebla.errors import RequestError
    from ebla.local_cluster.administrator import users_of

    if action is not UserAction.list and name is None:
        raise RequestError(f"`ebla user {action.value}` needs the NAME of a user")
    with users_of(data, coordination) as users:
        if action is UserAction.list:
            _tell(users.read().users, as_json=json)
            return
        who = str(name)
        if action is UserAction.revoke:
            users.change(lambda now: now.without(who, token))
            write_line(f"revoked: {who if token is None else f'token {token} of {who}'}")
            return
        made, stored = new_token(who, None if hours is None else time.time() + hours * 3_600)
        users.change(lambda now: now.with_token(who, stored))
    write_json({"user": who, "id": stored.id, "token": made}) if json else write_line(made)


@guarded
def grant(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user.", show_default=False)],
    right: Annotated[RightName, typer.Argument(help="What it may do.", show_default=False)],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table, or '*'.", show_default=False)],
    data: DirectoryOption = None,
    coordination: CoordinationOption = None,
) -> None:
    """Let a user read, write or administer a table, or all of them; each right has those before it.

    To administer is to create it, alter it, drop it. The right replaces the one that the user had on that table.
    """
    from ebla.local_cluster.administrator import users_of

    with users_of(data, coordination) as users:
        users.change(lambda now: now.granted(name, table, None if right is RightName.none else right.value))
    write_line(f"{name}: {right.value} on {table}")


def _tell(users: Mapping[str, object], *, as_json: bool) -> None:
    import msgspec

    from ebla.cli.shared.drawing import print_rows

    rows = []
    for name, value in sorted(users.items()):
        found = msgspec.to_builtins(value)
        tokens = [
            {"id": one["id"], "expires": one["expires"] and datetime.fromtimestamp(one["expires"], UTC).isoformat()}
            for one in found["tokens"]
        ]
        rows.append({"user": name, "tokens": tokens, "grants": found["grants"]})
    if as_json:
        write_json(rows)
        return
    for row in rows:
        row["tokens"] = ", ".join(f"{one['id']} (until {one['expires'] or 'revoked'})" for one in row["tokens"])
        row["grants"] = ", ".join(f"{right} on {table}" for table, right in row["grants"].items())
    print_rows(rows, f"{len(rows)} user(s)")
