"""The command line ``ebla``: the public API of the package, for people and shell scripts.

    arguments --> context (which store)         open, read-only for commands that read
              --> schema_text, text_values       text to schemas and typed values; pure
              --> sources                       files of rows, in portions
              --> ebla.Database, ebla.Table     the work
              --> lines, drawing, sinks         lines and tables for people; JSON lines and CSV for machines
              --> failures                      one line on standard error, and an exit code

This package alone reads the environment (EBLA_STORE, EBLA_TOKEN, EBLA_TLS_CA). It imports nothing of the engine but
what any user can. A module of commands imports at its top what describes them, and inside a command what does the work:
help is there before Arrow could be loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

import ebla
from ebla.cli.cluster import (
    certs_command,
    local_commands,
    master_command,
    move_command,
    recover_command,
    tablet_server_command,
    top_command,
    user_commands,
)
from ebla.cli.rows import changes_command, export_command, load_command, mirror_command, row_commands
from ebla.cli.shared.command_failures import ExitCode, complain, error_line
from ebla.cli.shared.context import STORE_DEFAULT, STORE_HELP, Context
from ebla.cli.shared.lines import write_line
from ebla.cli.shared.log_options import (
    LogFormat,
    LogFormatOption,
    LogLevelOption,
    VerboseOption,
    level_of,
    show,
    shown_only_inside,
)
from ebla.cli.tables import alter_command, care_commands, histogram_command, table_commands, tablet_commands
from ebla.cli.upkeep import (
    backup_command,
    backups_command,
    compact_command,
    gc_command,
    replay_command,
    restore_command,
    salvage_command,
    status_command,
    verify_commands,
)

__all__ = ["app", "main"]

EXIT_CODES = "\b\nExit codes:\n" + "\n".join(
    (
        "  0    fine",
        "  1    there is no such row",
        "  2    the request is wrong: fix it before you repeat it",
        "  3    conflict: somebody was faster, or the row exists; read again",
        "  4    not now: another process writes, or a timeout; try again",
        "  5    the outcome is unknown: read before you repeat it",
        "  6    the store needs attention, or there is none; see docs/operations.md",
        "  70   a fault in Ebla itself; repeat with --debug and report it",
        "  130  interrupted",
    )
)

# Plain help: every line can be copied as it stands, in any terminal and any version of typer.
app = typer.Typer(
    name="ebla",
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES,
)


@app.callback()
def ebla_command(
    ctx: typer.Context,
    store: Annotated[
        Path, typer.Option("--store", metavar="PATH", envvar="EBLA_STORE", help=STORE_HELP)
    ] = STORE_DEFAULT,
    debug: Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")] = False,
    verbose: VerboseOption = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = LogFormat.text,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Sorted, versioned, mutable tables over Parquet files."""
    if version:
        write_line(f"ebla {ebla.__version__}")
        raise typer.Exit
    try:
        show(level_of(log_level, verbose), log_format)
    except ebla.RequestError as error:
        complain(error_line(error))
        raise typer.Exit(ExitCode.REQUEST) from None
    ctx.obj = Context(store=store, debug=debug, log_format=log_format.value)
    if ctx.invoked_subcommand is None:
        write_line(ctx.get_help())


for _command, _epilog in (
    (table_commands.create, table_commands.CREATE_EXAMPLES),
    (table_commands.tables, table_commands.TABLES_EXAMPLES),
    (table_commands.describe, table_commands.DESCRIBE_EXAMPLES),
    (row_commands.put, row_commands.PUT_EXAMPLES),
    (row_commands.get, row_commands.GET_EXAMPLES),
    (row_commands.scan, row_commands.SCAN_EXAMPLES),
    (row_commands.erase, row_commands.ERASE_EXAMPLES),
    (alter_command.alter, alter_command.ALTER_EXAMPLES),
    (load_command.load, load_command.LOAD_EXAMPLES),
    (export_command.export, export_command.EXPORT_EXAMPLES),
    (backup_command.backup, backup_command.BACKUP_EXAMPLES),
    (restore_command.restore, restore_command.RESTORE_EXAMPLES),
    (backups_command.backups, backups_command.BACKUPS_EXAMPLES),
    (changes_command.changes, changes_command.CHANGES_EXAMPLES),
    (mirror_command.mirror, mirror_command.MIRROR_EXAMPLES),
    (replay_command.replay, replay_command.REPLAY_EXAMPLES),
    (table_commands.flush, table_commands.FLUSH_EXAMPLES),
    (table_commands.stats, table_commands.STATS_EXAMPLES),
    (status_command.status, status_command.STATUS_EXAMPLES),
    (compact_command.compact, compact_command.COMPACT_EXAMPLES),
    (care_commands.clone, care_commands.CLONE_EXAMPLES),
    (care_commands.rename, care_commands.RENAME_EXAMPLES),
    (care_commands.snapshots, care_commands.SNAPSHOTS_EXAMPLES),
    (care_commands.offline, care_commands.OFFLINE_EXAMPLES),
    (care_commands.online, care_commands.ONLINE_EXAMPLES),
    (gc_command.gc, gc_command.GC_EXAMPLES),
    (tablet_commands.tablets, tablet_commands.TABLETS_EXAMPLES),
    (tablet_commands.split, tablet_commands.SPLIT_EXAMPLES),
    (tablet_commands.join, tablet_commands.JOIN_EXAMPLES),
    (histogram_command.histogram, histogram_command.HISTOGRAM_EXAMPLES),
    (histogram_command.presplit, histogram_command.PRESPLIT_EXAMPLES),
    (verify_commands.verify, verify_commands.VERIFY_EXAMPLES),
    (verify_commands.repair, verify_commands.REPAIR_EXAMPLES),
    (salvage_command.salvage, salvage_command.SALVAGE_EXAMPLES),
    (table_commands.drop, table_commands.DROP_EXAMPLES),
    (table_commands.undelete, table_commands.UNDELETE_EXAMPLES),
    (local_commands.up, local_commands.UP_EXAMPLES),
    (local_commands.down, local_commands.DOWN_EXAMPLES),
    (local_commands.restart, local_commands.RESTART_EXAMPLES),
    (master_command.master, master_command.MASTER_EXAMPLES),
    (tablet_server_command.tablet_server, tablet_server_command.TABLET_SERVER_EXAMPLES),
    (move_command.move, move_command.MOVE_EXAMPLES),
    (recover_command.recover, recover_command.RECOVER_EXAMPLES),
    (user_commands.user, user_commands.USER_EXAMPLES),
    (user_commands.grant, user_commands.GRANT_EXAMPLES),
    (certs_command.certs, certs_command.CERTS_EXAMPLES),
    (top_command.top, top_command.TOP_EXAMPLES),
):
    app.command(epilog=_epilog)(_command)

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export it


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    try:
        with shown_only_inside():
            code = _commands()(args=arguments, prog_name="ebla", standalone_mode=False)
    except _UsageError as error:
        sys.exit(_usage_error(error))
    except typer.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except KeyboardInterrupt as interrupt:  # before the command itself began, or after it
        complain(error_line(interrupt))
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.FINE)


def run() -> None:
    """Be the process of a command: run it, and end.

    A thread that comes back from Flight while Python is taken down is ended in the middle of C++, which aborts the
    process. So a process that had to do with servers does what is to be done at its end, and then is not taken down.
    """
    # gRPC writes lines of its own about handshakes that fail: the error says what there is to know.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        main()
    except SystemExit as leaving:
        if "ebla.rpc.link" not in sys.modules:
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else ExitCode.FINE)


@cache
def _commands() -> Any:
    """Return what reads the arguments; typer would make it anew for every line, which is most of the work."""
    return typer.main.get_command(app)


def _usage_error(error: Exception) -> int:
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "ebla")
    option = str(getattr(error, "option_name", ""))
    if option[:1] == "-" and option[1:2].isdecimal():
        message += f" (a value that begins with '-' comes after `--`, as in `{command} TABLE -- {option}`)"
    complain(f"{message[:1].lower()}{message[1:]}; see `{command} --help`")
    return ExitCode.REQUEST
