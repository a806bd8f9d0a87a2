"""The command line in this process, which is quick, and as a user meets it: a process in a directory of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ebla.cli import main
from ebla.cli.shared.command_failures import ExitCode

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Commands on one store, in this process."""

    def __init__(self, store: str) -> None:
        self.store = store

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
                main(["--store", self.store, *arguments])
        finally:
            sys.stdin = given
        out.flush()
        return Result(int(left.value.code or 0), out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]

    def fine(self, *arguments: str, stdin: bytes = b"") -> Result:
        result = self(*arguments, stdin=stdin)
        assert (result.code, result.err) == (0, ""), result
        return result

    def fails(self, code: ExitCode, *arguments: str, stdin: bytes = b"") -> str:
        """Expect an exit code and one line about the error; return the line."""
        result = self(*arguments, stdin=stdin)
        assert result.code == code, result
        assert result.out == "", result
        assert result.err.startswith("error: "), result
        assert result.err.count("\n") == 1, result
        return result.err

    def scan(self, table: str, *more: str) -> list[dict[str, object]]:
        return self.fine("scan", table, "--format", "jsonl", *more).rows


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("EBLA_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(str(tmp_path / "store"))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a line of shell in a fresh directory, with this checkout's `ebla` on the path."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    command = binaries / "ebla"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from ebla.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    root = Path(__file__).resolve().parents[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EBLA_")} | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "PYTHONUTF8": "1",
        "TERM": "dumb",
    }

    def run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            cwd=work,
            env=environment | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
