"""How a command fails: one line on standard error that says what to do next, and an exit code that means something.

     0  fine                           4  not now: locked or unavailable, try again
     1  there is no such row           5  the outcome is unknown: read before repeating
     2  the request is wrong: fix it   6  the store needs attention
     3  conflict: read again          70  a fault in Ebla itself        130  interrupted

The codes follow the error tree of `ebla.errors`. A closed pipe (``ebla scan ... | head``) is no failure.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec

import typer

from ebla import errors

P = ParamSpec("P")


class ExitCode(IntEnum):
    """What the process tells its caller."""

    FINE = 0
    NOT_FOUND = 1
    REQUEST = 2
    CONFLICT = 3
    UNAVAILABLE = 4
    UNKNOWN = 5
    STORE = 6
    FAULT = 70
    INTERRUPTED = 130


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.RequestError, ExitCode.REQUEST),
    (errors.Conflict, ExitCode.CONFLICT),
    (errors.Unavailable, ExitCode.UNAVAILABLE),
    (errors.OutcomeUnknown, ExitCode.UNKNOWN),
    (errors.EblaError, ExitCode.STORE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (OSError, ExitCode.STORE),
)

# The first that fits an error is added to its message.
_NEXT_STEPS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.TlsError, "in a shell, EBLA_TLS_CA=FILE names the certificate of the authority"),
    (errors.UnknownTable, "`ebla tables` lists what there is"),
    (errors.HistoryGone, "ask for a later moment; `ebla snapshots --take NAME` holds one for longer"),
    (errors.Conflict, "read the row again, then decide"),
    (
        errors.StoreLocked,
        "wait until that process closes it; get, scan, describe, tables and stats work meanwhile, and so do load, "
        "export, changes, backup, `compact --spark` and `gc --spark`",
    ),
    (errors.TableUnloaded, "`ebla online TABLE` brings it back"),
    (errors.TooManyFiles, ""),  # says which limit to raise
    (errors.Unavailable, "try again"),
    (errors.OutcomeUnknown, "look whether it has happened before you repeat it"),
    (errors.StoreNotFound, "check --store or EBLA_STORE; `ebla create`, without a table, makes an empty store"),
    (errors.LogFailed, "free disk space or repair the disk, then run the command again"),
    (errors.FormatTooNew, "install the version of Ebla that wrote it, or a later one"),
    (errors.Corruption, "leave the directory as it is and see docs/operations.md"),
    (errors.TableDamaged, "leave the directory as it is and see docs/operations.md"),
    (errors.MissingFile, ""),  # says what to bring back, or which path to check
    (errors.StoreError, "see docs/operations.md"),
    (OSError, "check the path, its permissions and the disk"),
)

# What these say after their last colon is for who calls from Python; the step above is the same for a shell.
_ADVICE_FOR_PYTHON = (errors.StoreLocked, errors.StoreNotFound, errors.TableUnloaded)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code that an error stands for."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAULT)


def error_line(error: BaseException) -> str:
    """Return the one line that tells a person about an error."""
    code = exit_code(error)
    message = " ".join(str(error).split())
    if code is ExitCode.FAULT:
        return f"a fault in ebla: {type(error).__name__}: {message}; run it again with `ebla --debug` and report it"
    step = next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), "")
    if isinstance(error, _ADVICE_FOR_PYTHON):
        message = message.rpartition(": ")[0] or message
    parts = ["interrupted" if code is ExitCode.INTERRUPTED else message, *getattr(error, "__notes__", ()), step]
    return "; ".join(filter(None, parts))


def complain(line: str) -> None:
    """Write an error line to standard error."""
    sys.stderr.write(f"error: {line}\n")
    sys.stderr.flush()


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command report its errors in one line and leave with the right exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has had enough. Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.FINE) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if kwargs["ctx"].obj.debug:  # type: ignore[attr-defined]
                traceback.print_exception(error, file=sys.stderr)
            complain(error_line(error))
            raise typer.Exit(exit_code(error)) from None

    return run
