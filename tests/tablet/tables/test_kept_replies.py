"""What clients were told outlives the log it stood in and the tablets that remembered it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.errors import Conflict
from ebla.rows.rows import to_put_batch
from ebla.service.requests import Put
from ebla.settings import KIB
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.log.log_entry import LogEntry, Reply
from ebla.storage.log.log_reader import read_segment
from tests.support.inside import abandon, engine_of, local_table, state_of

REQUEST = ("client", 7)
SETTINGS = ebla.Settings(background_compaction=False, log_segment_bytes=2 * KIB, close_flush_bytes=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with ebla.open(tmp_path / "s", settings=SETTINGS) as db:
        schema = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_versions="all")])
        db.create_table("t", schema, ["h"])
    return tmp_path / "s"


@pytest.fixture
def db(path: Path) -> Iterator[ebla.Database]:
    db = ebla.open(path, settings=SETTINGS)
    yield db
    if not db._closed:
        db.close()


def put(db: ebla.Database, keys: str, n: int, request: tuple[str, int] = REQUEST) -> int:
    rows = [{"k": key, "n": n} for key in keys]
    return local_table(db.table("t")).write(Put(rows, request_id=request))


def values(db: ebla.Database) -> dict[str, list[int]]:
    return {row["k"]: [one.value for one in row["n"]] for row in db.table("t").scan(versions=9)}


def entries(path: Path) -> list[LogEntry]:
    files = LocalFiles(path)
    logs = sorted(str(file.relative_to(path)) for file in (path / "log").rglob("*.log"))
    return [entry for log in logs for _, entry in read_segment(files, log)]


def test_a_request_is_carried_out_only_by_the_tablets_that_have_not_done_so(db: ebla.Database) -> None:
    first = put(db, "a", 1)
    second = put(db, "az", 1)  # it had met one tablet of two, as when the other was led elsewhere
    assert second > first
    assert put(db, "za", 1) == second
    assert values(db) == {"a": [1], "z": [1]}


def test_who_repeats_a_request_meets_no_conflict_with_what_it_did_itself(db: ebla.Database) -> None:
    rows = [{"k": "a", "n": 1}]
    once = Put(rows, if_absent=True, request_id=REQUEST)
    service = local_table(db.table("t"))
    first = service.write(once)
    assert service.write(once) == first
    both = Put([*rows, {"k": "z", "n": 1}], if_absent=True, unchanged_since=first - 1, request_id=REQUEST)
    assert service.write(both) > first
    assert values(db) == {"a": [1], "z": [1]}
    with pytest.raises(Conflict):
        service.write(Put(rows, if_absent=True, request_id=("client", 8)))


def test_a_reply_stands_in_the_parts_of_all_tablets_that_the_request_touched(path: Path, db: ebla.Database) -> None:
    left, right = (tablet.id for tablet in state_of(db.table("t")).view.metadata.tablets)
    txn = put(db, "az", 1)
    put(db, "b", 2, ("another", 1))
    abandon(db)
    told = [(part.tablet, part.replies) for entry in entries(path) for part in entry.parts if part.replies]
    assert told[:2] == [(left, (Reply("client", 7, txn),)), (right, (Reply("client", 7, txn),))]
    assert [tablet for tablet, _ in told[2:]] == [left]


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("change", ["split", "join", "flush"])
def test_a_request_is_known_after_a_split_a_join_or_a_flush(
    path: Path, db: ebla.Database, change: str, is_killed: bool
) -> None:
    table = db.table("t")
    first = put(db, "acz", 1)
    if change == "split":
        table.split("b")
    elif change == "join":
        table.join("a", "z")
    else:
        for n in range(30):
            table.put({"k": "y", "n": n})
        before = len(entries(path))
        table.flush()
        assert len(entries(path)) < before, "the log with the reply in it is gone"
    assert put(db, "acz", 1) == first
    for _ in range(2):
        if is_killed:
            abandon(db)
        else:
            db.close()
        db = ebla.open(path, settings=SETTINGS)
        assert put(db, "acz", 1) == first
        assert put(db, "c", 1) == first
    assert {key: found for key, found in values(db).items() if key in "acz"} == {"a": [1], "c": [1], "z": [1]}
    assert put(db, "ac", 2, ("client", 8)) > first
    db.close()
    assert ebla.verify(path).is_clean


def test_what_was_logged_for_tablets_that_never_came_counts_for_nothing(path: Path, db: ebla.Database) -> None:
    put(db, "a", 1)
    engine, state = engine_of(db), state_of(db.table("t"))
    left = state.view.metadata.tablets[0].id
    engine.kept_replies.bequeath(state, {"never": [left]})
    assert any(part.tablet == "never" and part.index < part.index_min for e in entries(path) for part in e.parts)
    abandon(db)
    with ebla.open(path, settings=SETTINGS) as again:
        assert values(again) == {"a": [1]}
    assert ebla.verify(path).is_clean


def test_what_another_server_told_is_logged_here(path: Path, db: ebla.Database) -> None:
    engine, state = engine_of(db), state_of(db.table("t"))
    left = state.view.metadata.tablets[0].id
    engine.kept_replies.adopt(state, {left: [Reply("client", 7, 5)], "none": []}, {left: 1})
    assert put(db, "a", 1) == 5
    abandon(db)
    with ebla.open(path, settings=SETTINGS) as again:
        assert put(again, "a", 1) == 5
        assert values(again) == {}


def test_a_mutation_is_cut_to_the_tablets_that_are_left(db: ebla.Database) -> None:
    state = state_of(db.table("t"))
    rows = [{"k": key, "n": 1} for key in "abyz"]
    mutation = state.admission.put(to_put_batch(rows, state.view.schema))
    left, right = (tablet.id for tablet in state.view.metadata.tablets)
    rest = state.without(mutation, [left])
    assert rest.rows.to_pylist() == [b"y", b"z"]
    assert [part.records.column("_row").to_pylist() for part in rest.groups.values()] == [[b"y", b"z"]]
    assert state.without(mutation, [left, right]).is_empty
