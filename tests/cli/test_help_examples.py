"""Every command's help ends with examples, and the examples, one after the other, all work."""

from __future__ import annotations

import contextlib
import io
import shlex
from itertools import groupby
from pathlib import Path

import pytest

from ebla.cli import app, main
from tests.cli.conftest import Cli, Result, Shell

# Commands that need Spark find the session of all tests, and start none that would be in the way of others.
pytestmark = pytest.mark.usefixtures("spark")

COMMANDS = [
    command.name or command.callback.__name__.replace("_", "-")
    for command in app.registered_commands
    if command.callback
]

# These serve until they are stopped, or need those that do: tests with real processes run them.
SERVERS = {"up", "down", "restart", "master", "tablet-server", "move", "recover", "user", "grant", "top"}


def help_of(*command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    return printed.getvalue()


def examples_of(command: str) -> list[str]:
    _, found, block = help_of(command).partition("\n  Examples:\n")
    assert found, f"the help of {command} has no examples"
    lines = [line.removeprefix("    ") for line in block.rstrip().splitlines()]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def test_the_commands_are_all_there() -> None:
    expected = [
        "create",
        "tables",
        "describe",
        "put",
        "get",
        "scan",
        "erase",
        "alter",
        "load",
        "export",
        "backup",
        "restore",
        "backups",
        "changes",
        "mirror",
        "replay",
        "flush",
        "stats",
        "status",
        "compact",
        "clone",
        "rename",
        "snapshots",
        "offline",
        "online",
        "gc",
        "tablets",
        "split",
        "join",
        "histogram",
        "presplit",
        "verify",
        "repair",
        "salvage",
        "drop",
        "undelete",
        "up",
        "down",
        "restart",
        "master",
        "tablet-server",
        "move",
        "recover",
        "user",
        "grant",
        "certs",
        "top",
    ]
    assert expected == COMMANDS
    assert all(f"  {command} " in help_of() for command in COMMANDS)


def test_help_lists_the_exit_codes() -> None:
    assert "Exit codes:" in help_of()
    assert "130  interrupted" in help_of()


def run_here(line: str, cli: Cli) -> Result:
    """Run a line as a shell would, commands in this process: words and quotes, pipes, `>` and `echo` are known."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    words = list(lexer)
    target = words[-1] if ">" in words else None
    given, result = b"", Result(0, "", "")
    for is_pipe, stage in groupby(words[: words.index(">")] if target else words, key=lambda word: word == "|"):
        if is_pipe:
            continue
        command, *arguments = stage
        if command == "echo":
            result = Result(0, " ".join(arguments) + "\n", "")
        elif command == "ebla":
            result = cli(*arguments, stdin=given)
            if result.code:
                return result
        given = result.out.encode()
    if target:
        Path(target).write_text(result.out)
    return result


def test_examples_of_every_help_work_in_order(cli: Cli) -> None:
    for command in COMMANDS:
        examples = examples_of(command)
        assert any(f"ebla {command}" in line for line in examples)
        for line in [] if command in SERVERS else examples:
            done = run_here(line, cli)
            assert (done.code, done.err) == (0, ""), f"{line}\n{done}"


@pytest.mark.soak
def test_examples_of_every_help_work_in_a_real_shell(shell: Shell) -> None:
    for line in (line for command in COMMANDS if command not in SERVERS for line in examples_of(command)):
        done = shell(line)
        assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done}"
