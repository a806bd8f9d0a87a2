"""A store belongs to the process that opened it: what is forked from that process is refused, and does no harm."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import ebla
from tests.support.inside import abandon

PEOPLE = ebla.Schema(key={"user": "string"}, columns={"n": "int64"})


def told_by_a_child(work: Callable[[], object]) -> str:
    """Do something in a forked process, and return the error that it met."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = "no error"
        try:
            work()
        except ebla.EblaError as error:
            told = f"{type(error).__name__}: {error}"
        except BaseException:
            told = traceback.format_exc()
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_refused_and_its_parent_loses_nothing(tmp_path: Path) -> None:
    db = ebla.open(tmp_path)
    people = db.create_table("people", PEOPLE)
    people.put({"user": "ada", "n": 1})
    for _ in range(3):
        assert people.get("ada") == {"user": "ada", "n": 1}  # from the cache in the end
    for work in (
        lambda: people.put({"user": "bob", "n": 2}),
        lambda: people.erase("ada"),
        lambda: people.get("ada"),
        lambda: people.scan().to_arrow(),
        lambda: people.flush(),
        lambda: db.table("people"),
        lambda: db.create_table("more", PEOPLE),
        lambda: db.drop_table("people"),
    ):
        told = told_by_a_child(work)
        assert told.startswith("Closed: a store belongs to the process that opened it"), told
    assert told_by_a_child(db.close) == "no error"
    people.put({"user": "eve", "n": 3})
    abandon(db)
    with ebla.open(tmp_path) as again:
        assert list(again.table("people").scan()) == [{"user": "ada", "n": 1}, {"user": "eve", "n": 3}]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_may_open_the_store_of_its_parent_for_reading(tmp_path: Path) -> None:
    def read() -> None:
        with ebla.open(tmp_path, read_only=True) as mine:
            raise ebla.EblaError(str(mine.table("people").scan().to_arrow().to_pylist()))

    with ebla.open(tmp_path) as db:
        db.create_table("people", PEOPLE).put({"user": "ada", "n": 1})
        assert told_by_a_child(read) == "EblaError: [{'user': 'ada', 'n': 1}]"
