"""Every command's help ends with examples, and the examples, one after the other, all work."""

from __future__ import annotations

import contextlib
import io

import pytest

from ebla.cli import app, main
from tests.cli.conftest import Shell

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


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
    expected = ["create", "tables", "describe", "put", "get", "scan", "erase", "flush", "stats", "drop"]
    assert expected == COMMANDS
    assert all(f"  {command} " in help_of() for command in COMMANDS)


def test_help_lists_the_exit_codes() -> None:
    assert "Exit codes:" in help_of()
    assert "130  interrupted" in help_of()


def test_examples_of_every_help_work_in_order(shell: Shell) -> None:
    for command in COMMANDS:
        examples = examples_of(command)
        assert any(f"ebla {command}" in line for line in examples)
        for line in examples:
            done = shell(line)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            assert done.stderr == "", f"{line}\n{done.stderr}"
