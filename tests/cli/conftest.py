"""The command line as a user meets it: a real process in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


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
