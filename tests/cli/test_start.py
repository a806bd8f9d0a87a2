"""What is not needed at once is not loaded: help answers before Arrow is there, and pandas is for those who use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ebla

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import contextlib, io, json, sys

def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules})

import ebla.cli

for command in [[]] + [[command.callback.__name__.replace("_", "-")] for command in ebla.cli.app.registered_commands]:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        ebla.cli.main([*command, "--help"])
    assert "Usage: ebla" in printed.getvalue()
after_help, names = loaded(), dir(ebla)
for name in ebla.__all__:
    getattr(ebla, name)
print(json.dumps([after_help, names, loaded()]))
"""


def test_help_and_import_load_only_what_they_need() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    after_help, names, after_all = json.loads(done.stdout)
    assert "typer" in after_help
    assert not {"numpy", "pyarrow", "pandas", "polars", "pyspark", "rich"} & set(after_help)
    assert set(ebla.__all__) < set(names)
    assert "pyarrow" in after_all
    assert not {"pandas", "polars", "pyspark", "kazoo", "rich"} & set(after_all) - set(after_help)


def test_a_name_that_is_not_there_is_told_as_everywhere_else() -> None:
    with pytest.raises(AttributeError, match="module 'ebla' has no attribute 'opne'"):
        ebla.opne  # type: ignore[attr-defined]  # noqa: B018
