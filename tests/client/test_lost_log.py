"""Files of the log that are gone, or cut, are missed: whoever opens, reads, verifies or replays the store is told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ebla
from ebla.cli import main
from ebla.client.embedded.verifying import repair, verify
from ebla.clock import SystemClock
from ebla.coordination.sqlite import SqliteCoordination
from ebla.settings import Settings
from tests.pipeline.replaying.replay_world import replay_here
from tests.support.inside import abandon, engine_of
from tests.support.logs import without_reserved

# Several segments, and nothing flushed but when it is asked for.
SETTINGS = Settings(background_compaction=False, log_segment_bytes=2_000)
SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})
ROWS = 20


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("log/*/*.log"))


def lose_oldest(root: Path) -> None:
    segments(root)[0].unlink()


def lose_newest(root: Path) -> None:
    segments(root)[-1].unlink()


def lose_middle(root: Path) -> None:
    segments(root)[2].unlink()


def lose_all(root: Path) -> None:
    for path in segments(root):
        path.unlink()


def lose_directory(root: Path) -> None:
    shutil.rmtree(root / "log")


def cut_newest(root: Path) -> None:
    newest = segments(root)[-1]
    newest.write_bytes(newest.read_bytes()[: without_reserved(newest) // 2])


def cut_last_entry(root: Path) -> None:
    """Cut where an entry ends, so that what is left is whole."""
    newest = segments(root)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data[: data.rindex(b"\xebLE\x01")])


LOSSES = {
    loss.__name__: loss
    for loss in (lose_oldest, lose_newest, lose_middle, lose_all, lose_directory, cut_newest, cut_last_entry)
}


@pytest.fixture(scope="module", params=["closed", "died", "died at once"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose rows are in the log alone: closed, killed after a quiet second, or killed after the last reply."""
    root: Path = tmp_path_factory.mktemp("whole") / request.param
    db = ebla.open(root, settings=SETTINGS)
    table = db.create_table("t", SCHEMA)
    for number in range(ROWS):
        table.put({"k": number, "v": number})
    if request.param == "closed":
        db.close()
    else:
        if request.param == "died":
            engine_of(db)._record_log()
        abandon(db)
    assert len(segments(root)) >= 4
    return root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    return root


def rows_of(root: Path, *, read_only: bool = True) -> list[int]:
    with ebla.open(root, read_only=read_only, settings=SETTINGS) as db:
        return [row["k"] for row in db.table("t").scan()]


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_lost_log_is_told_by_everybody_and_given_up_only_when_asked(
    store: Path, lose: Callable[[Path], None]
) -> None:
    lose(store)
    before = {path: path.read_bytes() for path in segments(store)}
    for read_only in (True, False):
        with pytest.raises((ebla.MissingFile, ebla.Corruption), match=r"\.log .*--accept-lost-log"):
            ebla.open(store, read_only=read_only, settings=SETTINGS)
    with pytest.raises((ebla.MissingFile, ebla.Corruption), match=r"\.log .*--accept-lost-log"):
        replay_here(store)
    assert {path: path.read_bytes() for path in segments(store)} == before
    for report in (verify(store), repair(store), repair(store, dry_run=False)):
        found = [finding for finding in report.findings if finding.kind == "log"]
        assert len(found) == 1
        assert re.search(r"\.log .*--accept-lost-log", found[0].text)
        assert not report.is_clean
        assert not report.repaired
    told = [finding for finding in repair(store, accept_lost_log=True).findings if finding.kind == "log"]
    assert told
    assert all("lost: all that was committed" in finding.text and finding.repair for finding in told)
    with pytest.raises((ebla.MissingFile, ebla.Corruption)):
        rows_of(store)
    assert repair(store, dry_run=False, accept_lost_log=True).repaired
    assert verify(store).is_clean
    left = rows_of(store)
    assert len(left) < ROWS
    assert left == rows_of(store, read_only=False)
    with ebla.open(store, settings=SETTINGS) as db:
        db.table("t").put({"k": 100, "v": 100})
    assert rows_of(store) == [*left, 100]
    assert verify(store).is_clean


def test_bytes_after_the_last_on_record_are_a_torn_write_as_ever(store: Path) -> None:
    newest = segments(store)[-1]
    newest.write_bytes(newest.read_bytes() + b"\xebLE\x01 half of an entry")
    assert rows_of(store) == rows_of(store, read_only=False) == [*range(ROWS)]


def test_a_store_of_the_version_before_opens_and_gets_its_record(store: Path) -> None:
    file = store / "coordination.sqlite"
    with SqliteCoordination(file, SystemClock()) as service:
        for path in service.list("logs"):
            node = service.read(path)
            assert node is not None
            service.delete(path, node.version)
    assert rows_of(store) == [*range(ROWS)]
    assert verify(store).is_clean
    assert rows_of(store, read_only=False) == [*range(ROWS)]
    lose_oldest(store)
    with pytest.raises(ebla.MissingFile):
        rows_of(store)


def reach_of(root: Path) -> Path:
    (path,) = root.glob("log-reach/*")
    return path


SPOILINGS: dict[str, Callable[[Path], object]] = {
    "is not there": Path.unlink,
    "is damaged": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9),
    "is damaged, empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("told", SPOILINGS)
def test_verify_tells_that_nothing_says_how_far_a_log_reaches_which_was_not_closed(
    whole: Path, store: Path, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(store).findings == ()
    SPOILINGS[told](reach_of(store))
    is_closed = whole.name == "closed"
    report = verify(store)
    assert [finding.kind for finding in report.findings] == ([] if is_closed else ["log reach"])
    assert all(told.partition(",")[0] in finding.text and finding.repair for finding in report.findings)
    assert report.is_clean  # nothing is lost
    with pytest.raises(SystemExit) as left:
        main(["verify", "--store", str(store)])
    assert left.value.code == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in shown[:-1]] == [finding.kind for finding in report.findings]
    assert repair(store, dry_run=False) == report
    assert rows_of(store) == [*range(ROWS)]  # reading changes nothing
    assert verify(store) == report
    with ebla.open(store, settings=SETTINGS) as db:
        assert [row["k"] for row in db.table("t").scan()] == [*range(ROWS)]
        db.table("t").put({"k": 100, "v": 100})
        assert db.verify().findings == ()
    assert verify(store).findings == ()


def test_verify_has_nothing_to_tell_of_a_log_that_is_begun_written_or_given_up(tmp_path: Path, store: Path) -> None:
    root = tmp_path / "new"
    with ebla.open(root, settings=SETTINGS) as db:
        assert db.verify().findings == verify(root).findings == ()
        table = db.create_table("t", SCHEMA)
        assert db.verify().findings == verify(root).findings == ()
        for number in range(ROWS):
            table.put({"k": number, "v": number})
            assert db.verify().findings == verify(root).findings == ()
    lose_middle(store)
    assert repair(store, dry_run=False, accept_lost_log=True).repaired
    assert verify(store).findings == ()


def test_a_log_that_was_let_go_of_is_not_missed(store: Path) -> None:
    with ebla.open(store, settings=SETTINGS) as db:
        table = db.table("t")
        table.flush()
        assert len(segments(store)) == 1
        assert rows_of(store) == [*range(ROWS)]
        assert db.verify().is_clean
        table.put({"k": 100, "v": 100})
    assert rows_of(store, read_only=False) == [*range(ROWS), 100]
    shutil.copytree(store, store.with_name("replayed"))
    replay_here(store.with_name("replayed"))
    assert rows_of(store.with_name("replayed")) == rows_of(store.with_name("replayed"), read_only=False)
    lose_all(store.with_name("replayed"))
    with pytest.raises(ebla.MissingFile):
        rows_of(store.with_name("replayed"))


def test_opening_putting_and_closing_many_times_leaves_few_segments(tmp_path: Path) -> None:
    settings = Settings(background_compaction=False)
    for number in range(40):
        with ebla.open(tmp_path / "s", settings=settings) as db:
            if not number:
                db.create_table("t", SCHEMA)
            db.table("t").put({"k": number, "v": number})
        if number % 10 == 9:
            db = ebla.open(tmp_path / "s", settings=settings)
            db.table("t").put({"k": number, "v": number})
            abandon(db)
    assert len(segments(tmp_path / "s")) == 1
    assert rows_of(tmp_path / "s") == [*range(40)]


def test_a_log_of_many_small_segments_is_flushed_at_close(tmp_path: Path) -> None:
    """As where hosts share a directory, and each opening begins a segment of its own."""
    settings = Settings(background_compaction=False, log_segment_bytes=64)
    with ebla.open(tmp_path / "s", settings=settings) as db:
        table = db.create_table("t", SCHEMA)
        for number in range(ROWS):
            table.put({"k": number, "v": number})
        assert len(segments(tmp_path / "s")) == ROWS
    assert len(segments(tmp_path / "s")) == 1
    assert rows_of(tmp_path / "s") == [*range(ROWS)]
