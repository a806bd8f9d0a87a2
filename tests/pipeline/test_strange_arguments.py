"""Every argument of every job, with values that nobody should give it: refused by an error of the tree, before Spark.

Spark is not started here: a job that would start it has taken its arguments.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
import ebla.pipeline as pipeline
from tests.bad_input.test_strange_values import ROW, SCHEMA, STRANGE, parameters

# A load takes a DataFrame of Spark before all else; the others are for Spark alone.
LEFT_OUT = {"attach", "load", "register", "session", "stream_into"}
JOBS = [n for n in pipeline.__all__ if inspect.isfunction(getattr(pipeline, n)) and n not in LEFT_OUT]
STARTERS = (
    "care.compact",
    "care.garbage",
    "replaying.replay",
    "scanning.scan",
    "spark.session",
    "statistics.key_survey",
    "streaming.mirror",
)
OF_BACKUPS = {"check_backup", "list_backups", "prune_backups", "remove_unfinished", "restore"}


class SparkStarts(BaseException):
    """A job has taken its arguments."""


def start(*args: object, **named: object) -> None:
    raise SparkStarts


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ebla.Database]:
    with ebla.open(Path(tmp_path_factory.mktemp("jobs")) / "store") as opened:
        table = opened.create_table("users", SCHEMA)
        table.put(ROW)
        table.flush()
        pipeline.backup(opened, "users", opened.path.parent / "kept", spark=False)
        yield opened


@pytest.mark.parametrize("job", JOBS)
def test_a_strange_argument_of_a_job_is_refused_or_understood(
    store: ebla.Database, job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in STARTERS:
        module = importlib.import_module(f"ebla.pipeline.{name}")
        for starter in {"session", "active_session"} & set(vars(module)):
            monkeypatch.setattr(module, starter, start)
    monkeypatch.chdir(tmp_path)
    call = getattr(pipeline, job)
    known: dict[str, Any] = {
        "source": store, "target": store, "table": "users", "tables": "users", "since": 1, "root": "nowhere",
        "checkpoint": "checkpoint", "unfinished": [],
        "path": store.path.parent / "kept" if job in OF_BACKUPS else "out",
        "store": store, "where": None, "set": {"name": "'x'"},
    }  # fmt: skip
    if job == "merge":
        known["source"] = store.table("users").scan().to_arrow()
    needed = [n for n, p in inspect.signature(call).parameters.items() if p.default is p.empty]
    for parameter in parameters(call):
        if parameter in ("spark", "limits"):
            continue
        for value, make in STRANGE.items():
            given = make()
            arguments = {**{name: known[name] for name in needed}, parameter: given}
            try:
                call(**arguments)
            except ebla.EblaError as error:
                assert str(error)  # noqa: PT017 - an answer is right as well
            except SparkStarts:
                assert parameter != "progress" or given is None or callable(given), value
            except Exception as error:
                raise AssertionError(f"{job}({parameter}={value}) raised {type(error).__name__}: {error}") from error
    assert store.tables() == ["users"] or job == "restore"


@pytest.mark.parametrize("name", ["", ".", "..", "../store", "nothing"])
def test_only_what_a_failed_backup_has_left_is_removed(store: ebla.Database, name: str) -> None:
    kept = store.path.parent / "kept"
    before = sorted(store.path.parent.rglob("*"))
    assert pipeline.remove_unfinished(kept, [name]) == []
    assert sorted(store.path.parent.rglob("*")) == before
