"""Tables that are loaded lazily, dropped when idle, taken offline and brought back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ebla
from ebla.metadata.values.changes import TabletAt
from ebla.metadata.values.recutting import BeginSplit
from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.serving import LoadTablets, UnloadTablets
from ebla.settings import Settings
from ebla.tablet.tables.tablet_stages import TabletStage
from tests.crash.machine import bounded
from tests.support.inside import abandon, engine_of, state_of

BY_HAND = Settings(background_compaction=False, tablet_idle_seconds=0.001)
SCHEMA = ebla.Schema(
    key={"k": "string"}, groups=[ebla.Group("main", columns={"n": "int64"}), ebla.Group("events", families=["c"])]
)


def rows(begin: int = 0, end: int = 200) -> list[dict[str, Any]]:
    return [{"k": f"{n:04}", "n": n, "c:x": b"%d" % n} for n in range(begin, end)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a table of three tablets, closed."""
    with ebla.open(tmp_path / "store", settings=BY_HAND) as db:
        table = db.create_table("t", SCHEMA, splits=["0050", "0100"])
        table.put(rows())
        table.flush()
        table.compact()
    return tmp_path / "store"


@pytest.fixture
def db(path: Path) -> Iterator[ebla.Database]:
    with ebla.open(path, settings=BY_HAND) as opened:
        yield opened


def lives(table: ebla.Table) -> list[str]:
    """Return the state of every tablet, in order; not by `tablets()`, which opens files to count their rows."""
    state = state_of(table)
    return [state.door.state_of(tablet.id).name.lower() for tablet in state.view.metadata.tablets]


LAZY, ACTIVE = "fragments_loading", "active"


# --- lazily ----------------------------------------------------------------------------------------


def test_a_tablet_is_loaded_when_it_is_read(db: ebla.Database) -> None:
    table = db.table("t")
    assert lives(table) == [LAZY] * 3
    table.put({"k": "0150", "n": -1})
    assert lives(table) == [LAZY] * 3, "writes need no fragments"
    assert table.get("0060")["n"] == 60  # type: ignore[index]
    assert lives(table) == [LAZY, ACTIVE, LAZY]
    assert table.get_many(["0001", "0002"]).column("n").to_pylist() == [1, 2]
    assert lives(table) == [ACTIVE, ACTIVE, LAZY]
    assert len(list(table.scan())) == 200
    assert lives(table) == [ACTIVE] * 3


def test_a_conditional_write_loads_what_it_has_to_look_at(db: ebla.Database) -> None:
    table = db.table("t")
    with pytest.raises(ebla.Conflict):
        table.put({"k": "0150", "n": 1}, if_absent=True)
    assert lives(table) == [LAZY, LAZY, ACTIVE]
    assert table.increment("0010", "n") == 11
    assert lives(table) == [ACTIVE, LAZY, ACTIVE]


def test_tables_can_be_loaded_first(path: Path) -> None:
    with ebla.open(path, settings=replace(BY_HAND, load_first=("t",))) as db:
        assert lives(db.table("t")) == [ACTIVE] * 3
    with pytest.raises(ebla.UnknownTable, match="nothing"):
        ebla.open(path, settings=replace(BY_HAND, load_first=("nothing",)))
    with ebla.open(path, settings=BY_HAND) as db:
        db.load_table("t")
        assert lives(db.table("t")) == [ACTIVE] * 3


def test_only_active_tablets_are_split_and_joined(db: ebla.Database) -> None:
    table = db.table("t")
    table.split("0120")
    assert lives(table) == [LAZY, LAZY, ACTIVE, ACTIVE]
    table.join("0000", "0060")
    assert lives(table) == [ACTIVE, ACTIVE, ACTIVE]
    assert state_of(table).door.is_open


def test_idle_tablets_let_go_of_footers_and_blocks(db: ebla.Database) -> None:
    table, store = db.table("t"), engine_of(db)
    expected = list(table.scan())
    for key in ("0001", "0060", "0150"):
        table.get(key)
    assert store.cache.stats()["entries"] > 0
    assert len(store.fragments._open) == 6

    def sweep() -> int:
        store.loader._swept_at -= 1
        return store.loader.drop_idle()

    assert sweep() == 0, "everything was used"
    table.scan("0055", "0060").to_arrow()
    assert sweep() == 2
    assert lives(table) == [LAZY, ACTIVE, LAZY]
    assert len(store.fragments._open) == 2
    assert sweep() == 1
    assert (len(store.fragments._open), store.cache.stats()["entries"]) == (0, 0)
    assert list(table.scan()) == expected


@pytest.mark.parametrize("what", ["split", "unload"])
def test_tablets_that_are_cut_or_unloaded_while_idle_ones_are_looked_for_keep_no_other_state(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table, store = db.table("t"), engine_of(db)
    expected = list(table.scan())
    store.fragments.take_used()
    door = state_of(table).door
    look = door.state_of

    def and_then(tablet: str) -> TabletStage:
        state = look(tablet)
        monkeypatch.setattr(door, "state_of", look)
        if what == "split":
            table.split("0020")
        else:
            db.unload_table("t")
        return state

    monkeypatch.setattr(door, "state_of", and_then)
    store.loader._swept_at -= 1
    store.loader.drop_idle()
    if what == "unload":
        assert set(lives(table)) == {"unknown"}
        db.load_table("t")
    assert list(table.scan()) == expected
    assert door.is_open, "a tablet that is gone has a state"


def test_a_table_that_nobody_reads_is_flushed(db: ebla.Database) -> None:
    table, store = db.table("t"), engine_of(db)
    table.put({"k": "0001", "n": -1})
    table.scan().to_arrow()
    for _ in range(2):
        store.loader._swept_at -= 1
        store.loader.drop_idle()
    assert table.stats()["groups"]["main"]["memory_bytes"] == 0
    assert table.get("0001")["n"] == -1  # type: ignore[index]


# --- safe load -------------------------------------------------------------------------------------


def break_file(db: ebla.Database, number: int, how: str) -> Path:
    """Damage a fragment of a tablet, before it is loaded."""
    ref = state_of(db.table("t")).view.metadata.tablets[number].groups[0].fragments[0]
    file = db.path / ref.file
    if how == "missing":
        file.rename(file.with_suffix(".away"))
    else:
        file.write_bytes(file.read_bytes()[:-1])
    return file


@pytest.mark.parametrize(("how", "error"), [("missing", ebla.MissingFile), ("short", ebla.Corruption)])
def test_a_tablet_with_a_bad_file_says_which_and_the_others_go_on(
    db: ebla.Database, how: str, error: type[Exception]
) -> None:
    table = db.table("t")
    file = break_file(db, 1, how)
    for _ in range(2):
        with pytest.raises(error, match=file.name):
            table.get("0060")
    with pytest.raises(error, match=file.name):
        list(table.scan())
    assert table.get("0001")["n"] == 1  # type: ignore[index]
    assert len(list(table.scan("0100"))) == 100
    table.put({"k": "0060", "n": 2})
    assert lives(table) == [ACTIVE, LAZY, ACTIVE]
    if how == "missing":
        file.with_suffix(".away").rename(file)
        assert table.get("0060")["n"] == 2  # type: ignore[index]


def test_a_load_by_hand_that_fails_leaves_the_table_offline(db: ebla.Database) -> None:
    db.unload_table("t")
    file = break_file(db, 2, "missing")
    with pytest.raises(ebla.MissingFile, match=file.name):
        db.load_table("t")
    with pytest.raises(ebla.TableUnloaded, match="loading failed"):
        db.table("t").get("0001")
    file.with_suffix(".away").rename(file)
    db.load_table("t")
    assert len(list(db.table("t").scan())) == 200


def test_ranges_that_do_not_fit_are_found_at_the_load(db: ebla.Database) -> None:
    state = state_of(db.table("t"))
    view = state.view
    metadata = view.metadata
    a, b, c = metadata.tablets
    for wrong, word in [
        (msgspec.structs.replace(b, first=b"0060"), "hole"),
        (msgspec.structs.replace(b, first=b"0040"), "overlap"),
        (msgspec.structs.replace(b, last=b"0090"), "hole"),
        (msgspec.structs.replace(b, last=b"0110"), "overlap"),
        (msgspec.structs.replace(b, last=None), "overlap"),
    ]:
        broken = msgspec.structs.replace(metadata, tablets=(a, wrong, c))
        state.view = msgspec.structs.replace(view, metadata=broken)
        with pytest.raises(ebla.Corruption, match=rf"{word} at {b.id}.*`repair` make them meet"):
            db.table("t").get("0070")
        state.view = view
    assert db.table("t").get("0070") is not None


# --- offline and back ------------------------------------------------------------------------------


def test_an_unloaded_table_is_refused_and_comes_back_with_all_its_rows(db: ebla.Database) -> None:
    table = db.table("t")
    other = db.create_table("other", SCHEMA)
    table.put(rows(180, 220))
    expected = list(table.scan())
    table.get("0001")
    table.get("0001")
    db.unload_table("t")
    db.unload_table("t")
    assert {tablet["state"] for tablet in table.tablets()} == {"unloaded"}
    assert {tablet["life"] for tablet in table.tablets()} == {"unknown"}
    assert table.stats()["stage"] == "unknown"
    requests = [
        lambda: table.get("0001"),
        lambda: table.get_many(["0001"]),
        lambda: list(table.scan()),
        lambda: table.put({"k": "x", "n": 1}),
        lambda: table.increment("0001", "n"),
        lambda: table.erase_range(),
        table.compact,
        table.split,
        lambda: table.join("0000", "0060"),
    ]
    for request in requests:
        with pytest.raises(ebla.TableUnloaded) as told:
            bounded(request)
        assert told.value.advice == "retry"
    other.put({"k": "a", "n": 1})
    assert "t" in db.tables()
    db.load_table("t")
    assert table.stats()["stage"] == "active"
    assert list(table.scan()) == expected
    table.put({"k": "x", "n": 1})
    table.split("0120")
    assert table.get("x")["n"] == 1  # type: ignore[index]


def test_a_get_that_ends_after_the_unloading_leaves_no_row_that_is_served_then(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.table("t")
    cache = state_of(table).row_cache
    keep = cache.put

    def late(*given: Any) -> None:
        db.unload_table("t")
        keep(*given)

    with monkeypatch.context() as patched:
        patched.setattr(cache, "put", late)
        found = table.get("0007")
    with pytest.raises(ebla.TableUnloaded):
        table.get("0007")
    db.load_table("t")
    assert [table.get("0007") for _ in range(3)] == [found] * 3
    assert table.stats()["row_cache"]["rows"] == 1


def test_a_table_stays_offline_over_a_reopening_and_nothing_of_it_is_in_the_log(path: Path) -> None:
    db = ebla.open(path, settings=BY_HAND)
    table = db.table("t")
    table.put(rows(180, 220))
    table.erase_range("0010", "0020")
    expected = list(table.scan())
    db.unload_table("t")
    assert all(tablet.log is None for tablet in state_of(table).view.metadata.tablets)
    abandon(db)
    with ebla.open(path, settings=BY_HAND) as again:
        with pytest.raises(ebla.TableUnloaded):
            again.table("t").get("0001")
        again.load_table("t")
        assert list(again.table("t").scan()) == expected
        again.table("t").put({"k": "0001", "n": -5})
        abandon(again)
    with ebla.open(path, settings=BY_HAND) as again:
        assert again.table("t").get("0001")["n"] == -5  # type: ignore[index]


def test_an_offline_table_can_be_dropped_and_looked_at_read_only(path: Path) -> None:
    with ebla.open(path, settings=BY_HAND) as db:
        db.unload_table("t")
        with ebla.open(path, read_only=True) as reader:
            with pytest.raises(ebla.TableUnloaded):
                list(reader.table("t").scan())
            with pytest.raises(ebla.ReadOnly):
                reader.load_table("t")
            with pytest.raises(ebla.ReadOnly):
                reader.unload_table("t")
        db.drop_table("t")
        db.create_table("t", SCHEMA).put({"k": "a", "n": 1})


def test_a_scan_goes_on_from_its_position_after_unloading_and_loading(db: ebla.Database) -> None:
    table = db.table("t")
    expected = list(table.scan())
    scan = table.scan()
    batches = scan.to_batches()
    found = next(batches).to_pylist()
    position = scan.position
    table.erase_range("0150")
    with db.snapshot() as held:
        pass
    del held
    db.unload_table("t")
    with pytest.raises(ebla.TableUnloaded):
        list(table.scan(resume=position))
    db.load_table("t")
    rest = list(table.scan(resume=position))
    assert [row["k"] for row in found] + [row["k"] for row in rest] == [row["k"] for row in expected]


def test_writers_are_never_told_a_lie_while_a_table_goes_and_comes(db: ebla.Database) -> None:
    table = db.table("t")
    stop = threading.Event()
    counts = [0, 0]
    wrong: list[BaseException] = []

    def write(number: int) -> None:
        try:
            while not stop.is_set():
                try:
                    table.increment(f"counter {number}", "n")
                except ebla.TableUnloaded:
                    continue
                counts[number] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        db.unload_table("t")
        db.load_table("t")
    stop.set()
    for thread in threads:
        bounded(thread.join)
    assert not wrong, wrong
    found = [(table.get(f"counter {n}") or {"n": 0})["n"] for n in (0, 1)]
    assert found == counts


def test_an_unload_that_cannot_be_flushed_leaves_the_table_served(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.table("t")
    table.put({"k": "0001", "n": -1})

    def fail(*_: Any) -> Any:
        raise ebla.StoreError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(engine_of(db).flusher, "_save", fail)
        with pytest.raises(ebla.StoreError, match="no space"):
            db.unload_table("t")
    table.put({"k": "0002", "n": -2})
    assert [table.get(key)["n"] for key in ("0001", "0002")] == [-1, -2]  # type: ignore[index]


def test_an_unload_of_unknown_outcome_keeps_the_table_offline_until_it_is_loaded(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.table("t")
    table.put({"k": "0001", "n": -1})
    commit = engine_of(db).metadata.commit

    def unsure(table_id: str, changes: Any) -> Any:
        if isinstance(changes[0], (UnloadTablets, LoadTablets)):
            raise ebla.OutcomeUnknown("who knows")
        return commit(table_id, changes)

    with monkeypatch.context() as patched:
        patched.setattr(engine_of(db).metadata, "commit", unsure)
        with pytest.raises(ebla.OutcomeUnknown):
            db.unload_table("t")
        with pytest.raises(ebla.TableUnloaded):
            table.put({"k": "0001", "n": 1})
    db.load_table("t")
    assert table.get("0001")["n"] == -1  # type: ignore[index]
    table.put({"k": "0001", "n": 1})


def test_an_unload_after_a_load_of_unknown_outcome_is_not_forgotten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(path, settings=BY_HAND) as db:
        db.unload_table("t")
        metadata = engine_of(db).metadata
        commit = metadata.commit

        def no_answer(table_id: str) -> Any:
            raise ebla.Unavailable("no answer")

        with monkeypatch.context() as patched:

            def lost_reply(table_id: str, changes: Any) -> Any:
                commit(table_id, changes)
                patched.setattr(metadata, "refresh", no_answer)
                raise ebla.OutcomeUnknown("no answer")

            patched.setattr(metadata, "commit", lost_reply)
            with pytest.raises(ebla.OutcomeUnknown):
                db.load_table("t")
        db.unload_table("t")
    with ebla.open(path, settings=BY_HAND) as db, pytest.raises(ebla.TableUnloaded):
        db.table("t").get("0001")


def test_tablets_that_are_being_cut_are_not_unloaded_in_metadata(db: ebla.Database) -> None:
    metadata = engine_of(db).metadata
    state = state_of(db.table("t"))
    tablet = state.view.metadata.tablets[0]
    at = TabletAt(tablet.id, tablet.epoch)
    engine_of(db).open_tables.use_metadata(state, metadata.commit(state.id, [BeginSplit(at, b"0020", ("x", "y"))]), "")
    with pytest.raises(RequirementFailed, match="splitting"):
        metadata.commit(state.id, [UnloadTablets((at,))])
    db.unload_table("t")  # finishes it first
    assert len(db.table("t").tablets()) == 4
    with pytest.raises(RequirementFailed, match="unloaded"):
        metadata.commit(state.id, [BeginSplit(TabletAt("x", 1), b"0010", ("v", "w"))])


# --- requests meanwhile ----------------------------------------------------------------------------


class Paused:
    """Stops whoever comes by, until it is told to go on, or to fail."""

    def __init__(self, work: Any) -> None:
        self.work, self.error = work, None
        self.is_there, self.may_go = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.is_there.set()
        assert self.may_go.wait(60)
        if self.error is not None:
            raise self.error
        return self.work(*arguments, **options)

    error: ebla.EblaError | None


def begun(*works: Any) -> tuple[list[threading.Thread], list[Any]]:
    """Start threads, and return them with the list of what comes of each."""
    outcomes: list[Any] = [None] * len(works)

    def run(at: int) -> None:
        try:
            outcomes[at] = works[at]()
        except ebla.EblaError as error:
            outcomes[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(works))]
    for thread in threads:
        thread.start()
    return threads, outcomes


@pytest.mark.parametrize("is_good", [True, False])
def test_requests_that_come_during_a_load_wait_and_are_served_or_refused_in_the_end(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch, is_good: bool
) -> None:
    table = db.table("t")
    db.unload_table("t")
    paused = Paused(engine_of(db).unloader._save)
    paused.error = None if is_good else ebla.StoreError("the disk is gone")
    monkeypatch.setattr(engine_of(db).unloader, "_save", paused)
    (loading,), outcome = begun(lambda: db.load_table("t"))
    assert paused.is_there.wait(60)
    requests = (lambda: table.get("0001"), lambda: table.scan().count(), lambda: table.put({"k": "new", "n": 1}))
    threads, outcomes = begun(*requests)
    other = db.create_table("other", SCHEMA)
    other.put({"k": "a", "n": 1})  # nobody else waits
    threads[0].join(0.05)
    assert outcomes == [None, None, None]
    paused.may_go.set()
    for thread in (loading, *threads):
        bounded(thread.join)
    if is_good:
        assert outcome == [None]
        assert outcomes[0]["n"] == 1
        assert outcomes[1] in (200, 201)
        assert table.get("new") is not None
    else:
        assert isinstance(outcome[0], ebla.StoreError)
        assert [type(one) for one in outcomes] == [ebla.TableUnloaded] * 3
        monkeypatch.undo()
        db.load_table("t")
        assert table.get("new") is None


def test_a_table_that_is_being_unloaded_is_read_but_not_written(
    db: ebla.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.table("t")
    table.put({"k": "0001", "n": -1})
    paused = Paused(engine_of(db).flusher._save)
    monkeypatch.setattr(engine_of(db).flusher, "_save", paused)
    (unloading,), outcome = begun(lambda: db.unload_table("t"))
    assert paused.is_there.wait(60)
    assert bounded(lambda: table.get("0001"))["n"] == -1
    assert bounded(lambda: table.scan().count()) == 200
    with pytest.raises(ebla.TableUnloaded):
        bounded(lambda: table.put({"k": "0002", "n": -2}))
    paused.may_go.set()
    bounded(unloading.join)
    assert outcome == [None]
    with pytest.raises(ebla.TableUnloaded):
        table.get("0001")
    db.load_table("t")
    assert [table.get(key)["n"] for key in ("0001", "0002")] == [-1, 2]  # type: ignore[index]
