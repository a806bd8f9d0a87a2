"""The command line shows the log of the work on standard error, as much as is asked for."""

from __future__ import annotations

import logging

from ebla.cli.shared.command_failures import ExitCode
from tests.cli.conftest import Cli


def test_verbose_tells_what_was_done_on_standard_error(cli: Cli) -> None:
    quiet = cli.fine("create", "users", "--key", "user:string", "--column", "age:int32")
    assert quiet.out
    cli.fine("put", "users", '{"user": "ada", "age": 36}')
    told = cli("--verbose", "flush", "users")
    assert (told.code, told.out) == (0, "flushed users\n")
    assert " INFO ebla.client.embedded.opening: opened " in told.err
    assert " INFO ebla.tablet.flush.flusher: flushed " in told.err
    assert "Traceback" not in told.err


def test_a_level_says_from_which_weight_on_records_are_shown(cli: Cli) -> None:
    cli.fine("create", "users", "--key", "user:string", "--column", "age:int32")
    assert " INFO " in cli("--log-level", "info", "flush").err
    assert cli("--log-level", "error", "flush").err == ""
    assert "'loud'" in cli.fails(ExitCode.REQUEST, "--log-level", "loud", "flush")
    assert "give one of them" in cli.fails(ExitCode.REQUEST, "--log-level", "info", "--verbose", "flush")


def test_a_command_leaves_the_loggers_of_its_process_as_they_were(cli: Cli) -> None:
    ebla = logging.getLogger("ebla")
    before = (list(ebla.handlers), ebla.level)
    cli("--verbose", "tables")
    assert (list(ebla.handlers), ebla.level) == before
