"""Which tablets a run of a server leads, and which requests it takes."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

import ebla
from ebla.errors import StaleRoute
from ebla.metadata.values.table_metadata import TableMetadata, initial_metadata
from ebla.model.ranges import KeyRange
from ebla.tablet.tables.led_tablets import LedTablets

SCHEMA = ebla.Schema(groups=[ebla.Group("g", columns={"v": "string"})]).number()


def table(*led: tuple[str | None, str | None]) -> TableMetadata:
    """Return a table whose tablets, cut at b, c, ..., have these leaders and logs."""
    ids = [f"t{at}" for at in range(len(led))]
    cuts = [bytes([ord("a") + at]) for at in range(1, len(led))]
    made = initial_metadata("table", SCHEMA, ids, cuts)
    return made.with_tablets(
        [
            msgspec.structs.replace(tablet, leader=leader, log=log, state="running")
            for tablet, (leader, log) in zip(made.tablets, led, strict=True)
        ]
    )


def led_by(run: str, metadata: TableMetadata) -> LedTablets:
    led = LedTablets(run)
    led.use(metadata)
    return led


def test_a_run_leads_what_has_its_log_and_a_leader() -> None:
    metadata = table(("A", "A/7"), ("A", "A/6"), (None, "A/7"), ("B", "B/2"), ("A", "A/7"))
    assert led_by("A/7", metadata).ids == {"t0", "t4"}


@pytest.mark.parametrize("row", [b"a", b"azz"])
def test_rows_that_are_led_here_are_read_and_written(row: bytes) -> None:
    metadata = table(("A", "A/7"), ("B", "B/2"))
    led = led_by("A/7", metadata)
    led.check_read([metadata.tablet_for(row)])
    led.check_read(metadata.overlapping(KeyRange(row, b"b")))
    led.check_write(metadata, pa.array([b"a", row], pa.binary()), [KeyRange(b"", b"b")])


def test_rows_that_are_led_elsewhere_are_sent_there() -> None:
    metadata = table(("A", "A/7"), ("B", "B/2"), ("A", "A/7"))
    led = led_by("A/7", metadata)
    with pytest.raises(StaleRoute, match="led by B"):
        led.check_read([metadata.tablet_for(b"b")])
    with pytest.raises(StaleRoute):
        led.check_read(metadata.overlapping(KeyRange(b"a", b"b\x00")))
    with pytest.raises(StaleRoute):
        led.check_write(metadata, pa.array([b"a", b"b", b"c"], pa.binary()))
    with pytest.raises(StaleRoute):
        led.check_write(metadata, pa.array([], pa.binary()), [KeyRange()])
    led.check_write(metadata, pa.array([b"a", b"c", b"d"], pa.binary()))


def test_a_frozen_tablet_is_read_and_not_written_until_it_is_thawed() -> None:
    metadata = table(("A", "A/7"), ("A", "A/7"))
    led = led_by("A/7", metadata)
    led.freeze(["t1"])
    led.check_read(metadata.tablets)
    with pytest.raises(StaleRoute, match="changing hands"):
        led.check_write(metadata, pa.array([b"x"], pa.binary()))
    led.use(metadata)  # a flush of it has come back meanwhile
    with pytest.raises(StaleRoute):
        led.check_write(metadata, pa.array([b"x"], pa.binary()))
    led.thaw(["t1"])
    led.check_write(metadata, pa.array([b"x"], pa.binary()))


def test_a_tablet_that_was_given_up_stays_so_while_metadata_does_not_know() -> None:
    metadata = table(("A", "A/7"), ("A", "A/7"))
    led = led_by("A/7", metadata)
    led.resign(["t0"])
    led.use(metadata)
    assert led.ids == {"t1"}
    with pytest.raises(StaleRoute):
        led.check_read([metadata.tablet_for(b"a")])
    led.use(table((None, None), ("A", "A/7")))
    led.use(metadata)  # it has come back to this run
    assert led.ids == {"t0", "t1"}


def test_giving_a_tablet_up_can_be_undone() -> None:
    metadata = table(("A", "A/7"))
    led = led_by("A/7", metadata)
    led.resign(["t0"])
    led.thaw(["t0"])
    led.check_write(metadata, pa.array([b"x"], pa.binary()))
