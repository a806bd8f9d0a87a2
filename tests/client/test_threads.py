"""Many threads on one table: nothing is lost between them, whatever they do at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import ebla


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_every_increment_of_many_threads_counts(tmp_path: Path) -> None:
    schema = ebla.Schema(groups=[ebla.Group("main", columns={"n": "int64"}), ebla.Group("events", families=["click"])])
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("counters", schema)

        def work(_: int) -> None:
            for _ in range(40):
                table.increment(b"a", "n", wait="logged")
                table.increment(b"a", "click:n", wait="none")

        in_threads(4, work)
        row = table.get(b"a", read_uncommitted=True)
        assert row is not None
        assert row["n"] == 160
        assert int.from_bytes(row["click:n"], "big") == 160


def test_of_many_threads_that_insert_a_row_if_it_is_absent_one_succeeds(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "store") as db:
        table = db.create_table("names", ebla.Schema(columns={"owner": "int64"}))
        won: list[tuple[bytes, int]] = []

        def work(number: int) -> None:
            for at in range(20):
                row = b"%d" % at
                try:
                    table.put({"row": row, "owner": number}, if_absent=True)
                except ebla.Conflict:
                    continue
                won.append((row, number))

        in_threads(4, work)
        assert len(won) == 20
        assert dict(won) == {row["row"]: row["owner"] for row in table.scan()}
