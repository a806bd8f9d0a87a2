"""What jobs hold of a store that another process has open, or may open: their snapshot and their files stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.coordination.service import CoordinationFailed
from ebla.direct import held_pins
from ebla.direct.held_pins import Held
from ebla.direct.holding import Holding, held_plan
from ebla.direct.opens import forget
from ebla.errors import HistoryGone
from ebla.pipeline.datasource.datasource_options import ReadOptions
from ebla.pipeline.datasource.datasource_reader import EblaReader, Pinned, pin
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan, read_section
from ebla.settings import Settings
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.upkeep.horizon import Horizon
from tests.support.inside import coordination_of

AT_ONCE = Settings(background_compaction=False, history_seconds=0.0, garbage_age_seconds=0.0)
POINTS = ebla.Schema(key={"k": "int64"}, columns={"n": "int64"})


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A store with a hundred rows in a file, and one more that is not flushed. Nobody has it open."""
    place = str(tmp_path / "store")
    with ebla.open(place, settings=AT_ONCE) as db:
        table = db.create_table("t", POINTS)
        table.put([{"k": k, "n": 1} for k in range(100)])
        table.flush()
        table.put({"k": 100, "n": 1})
    yield place
    forget(place)


@pytest.fixture
def holding() -> Iterator[Holding]:
    """Holds what a test plans."""
    with Holding() as one:
        yield one


def overwrite(db: ebla.Database, n: int = 2) -> None:
    """Write every row anew, and have the store do all it can to let go of what was there."""
    table = db.table("t")
    table.put([{"k": k, "n": n} for k in range(101)])
    table.compact()
    for _ in range(3):
        db.gc(dry_run=False)


def read(planned: SectionPlan) -> list[int]:
    """Read a plan as a job does: files by their names, sections through opens of their own."""
    values: list[int] = []
    for part in planned.plan.clean:
        for file in part.files:
            values += pq.read_table(f"{planned.target.root}/{file}", columns=["n"]).column(0).to_pylist()
    for section in planned.sections:
        for batch in read_section(planned.target, section):
            values += batch.column(batch.schema.get_field_index("n")).to_pylist()
    return values


def snapshots(db: ebla.Database) -> dict[str, Any]:
    found: dict[str, Any] = db.stats()["garbage"]["held"]["snapshots"]
    return found


@pytest.mark.parametrize("with_owner", [True, False])
def test_what_a_job_reads_is_held_whoever_opens_the_store_until_it_lets_go(
    root: str, holding: Holding, with_owner: bool
) -> None:
    if with_owner:
        with ebla.open(root, settings=AT_ONCE):
            planned = plan_scan(root, "t", holding=holding)
    else:
        planned = plan_scan(root, "t", holding=holding)
    assert planned.plan.clean
    assert planned.sections
    for n in (2, 3):  # another owner each time
        with ebla.open(root, settings=AT_ONCE) as db:
            overwrite(db, n)
            ((name, told),) = snapshots(db).items()
            assert name.startswith("scan-t-")
            assert told["reader"].startswith("scan of t by process")
            assert (told["txn"], told["files"]) == (planned.target.as_of, 1)
            assert db.gc().by_jobs == 1
            assert read(planned) == [1] * 101
    holding.release()
    with ebla.open(root, settings=AT_ONCE) as db:
        assert db.snapshots() == {}
        overwrite(db, 4)
        assert coordination_of(db).list("held") == []
        with pytest.raises((OSError, HistoryGone)):
            read(planned)


def test_a_plan_that_compaction_has_passed_is_made_anew(
    root: str, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        passed = db.table("t").scan().txn
        plans = []
        by_name = Holding.hold_by_name

        def late(self: Holding, *more: Any) -> Held:
            plans.append(more)
            if len(plans) == 1:
                overwrite(db)
            return by_name(self, *more)

        monkeypatch.setattr(Holding, "hold_by_name", late)
        planned = plan_scan(root, "t", holding=holding)
        assert len(plans) == 2
        assert db.snapshots() == dict.fromkeys(db.snapshots(), planned.target.as_of)
        assert read(planned) == [2] * 101
        plans.clear()
        with pytest.raises(HistoryGone):
            plan_scan(root, "t", holding=holding, as_of=passed)


def test_a_plan_of_an_open_that_is_out_of_date_is_made_anew_at_its_own_moment(root: str, holding: Holding) -> None:
    with ebla.open(root, settings=AT_ONCE) as db, ebla.open(root, read_only=True) as before:
        with db.snapshot() as moment:
            overwrite(db)
            planned = plan_scan(before, "t", holding=holding)
        assert planned.target.as_of == moment.txn
        overwrite(db, 3)
        assert read(planned) == [1] * 101


def test_a_txn_that_a_compaction_may_be_passing_is_not_taken(root: str, holding: Holding) -> None:
    with ebla.open(root, settings=AT_ONCE) as db, connect_at(Path(root), SystemClock()) as coordination:
        first = db.table("t").scan().txn
        Horizon(coordination).raise_to(first + 1)  # a compaction has begun
        with pytest.raises(ebla.Unavailable, match="faster than a job"):
            plan_scan(root, "t", holding=holding)
        newer = db.table("t").put({"k": 0, "n": 7})
        assert plan_scan(root, "t", holding=holding).target.as_of == newer
        assert plan_scan(root, "t", holding=holding, as_of=first).target.as_of == first, "METADATA still has it"


def test_a_job_that_may_not_write_reads_without_holding(
    root: str, holding: Holding, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*more: object) -> Held:
        raise CoordinationFailed("attempt to write a readonly database")

    monkeypatch.setattr(held_pins, "begin", refuse)
    assert read(plan_scan(root, "t", holding=holding)) == [1] * 101
    assert "readonly database" in caplog.text


# --- loads, which nobody sees the end of ---------------------------------------------------------


def load(root: str, **more: str) -> Pinned:
    return pin(ReadOptions.of({"root": root, "table": "t", **more}))


def test_loads_of_a_minute_share_a_pin_that_nobody_ends(root: str) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        first, again = load(root), load(root, prefix="1")
        (name,) = snapshots(db)
        assert name.startswith("loads-")
        assert first.plan.target.held == again.plan.target.held == replace(first.plan.target.held, name=name)  # type: ignore[type-var]
        overwrite(db)
        assert read(first.plan) == [1] * 101


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def test_tasks_renew_the_pin_of_their_load(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pins, "HOLD_SECONDS", 0.4)
    with ebla.open(root, settings=AT_ONCE) as db:
        loaded = load(root)
        held = loaded.plan.target.held
        assert held is not None
        (section,) = loaded.plan.sections
        reading: Any = read_section(loaded.plan.target, section)
        assert next(reading).num_rows == 101

        def until() -> int:
            pin = Pins(coordination_of(db), SystemClock()).find(held.name)
            return 0 if pin is None or pin.expires_microseconds is None else pin.expires_microseconds

        wait_for(lambda: until() > held.until_microseconds + 400_000)
        reading.close()
        wait_for(lambda: not until())
        # Another query on the same frame, a while later.
        reader = EblaReader(loaded, loaded.schema)
        reader.partitions()
        assert until()


def test_a_plan_in_a_writable_store_is_made_once(root: str, holding: Holding) -> None:
    with ebla.open(root, settings=AT_ONCE) as db:
        planned = plan_scan(db, "t", holding=holding)
        assert db.snapshots() == {}
        overwrite(db)
        assert read(planned) == [1] * 101
        assert held_plan(db, None, lambda database: (database, None)) is db  # type: ignore[arg-type,return-value]
