"""What `db.metrics()` gives is read by Prometheus' own parser, and says what happened."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import ebla
from ebla.service.counters import Counters, described
from ebla.service.metrics import metrics_text
from ebla.settings import Settings
from tests.support.inside import publisher_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})
CALM = Settings(background_compaction=False)


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, name: str, **labels: str) -> float:
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(samples) == 1, (name, labels)
    return float(samples[0].value)


@pytest.fixture
def told(tmp_path: Path) -> str:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA)
        for number in range(3):
            table.put({"k": number, "v": number})
        table.flush()
        table.put({"k": 0, "v": 9})
        table.compact()
        table.put({"k": 0, "v": 10})
        table.split((1,))
        table.put({"k": 0, "v": 11})
        assert table.get(1) == {"k": 1, "v": 1}
        return db.metrics()


def test_every_metric_has_a_help_a_type_and_a_name_with_its_unit(told: str) -> None:
    found = families(told)
    assert len(found) > 40
    names = set()
    for family in found.values():
        assert family.documentation
        assert family.type == ("counter" if family.samples[0].name.endswith("_total") else "gauge")
        names |= {sample.name for sample in family.samples}
    assert {f"ebla_{name}" for name in Counters.__struct_fields__} <= names
    assert all(re.fullmatch(r"ebla_[a-z_]+", name) for name in names)
    assert not [
        name
        for name in names
        if re.search(r"seconds|bytes", name) and not re.search(r"(seconds|bytes)(_total)?$", name)
    ]
    lines = told.splitlines()
    assert len([line for line in lines if line.startswith("# HELP ")]) == len(found)
    assert told.endswith("\n")


def test_metrics_count_what_was_done(told: str) -> None:
    assert value(told, "ebla_commits_total") == 6
    assert value(told, "ebla_log_writes_total") == 6
    assert value(told, "ebla_log_write_seconds_total") > 0
    assert value(told, "ebla_flushes_total") == 3
    assert value(told, "ebla_flush_seconds_total") > 0
    assert value(told, "ebla_compactions_total") == 1
    assert value(told, "ebla_compaction_read_bytes_total") > 0
    assert value(told, "ebla_splits_total") == 1
    assert value(told, "ebla_writers_held_total") == 1
    assert value(told, "ebla_metadata_commits_total") >= 5
    assert value(told, "ebla_tables") == 1
    assert value(told, "ebla_log_failed") == 0
    assert value(told, "ebla_memory_bytes") > 0
    assert value(told, "ebla_table_tablets", table="t") == 2
    assert value(told, "ebla_table_fragments", table="t", group="default") == 3
    assert value(told, "ebla_table_history_bytes", table="t", group="default") > 0
    assert value(told, "ebla_table_memory_bytes", table="t", group="default") > 0


def test_labels_are_escaped() -> None:
    strange = 'back\\slash "quote" and\nnew line'
    facts = {"tablets": 1, "groups": {}}
    text = metrics_text(None, {strange: facts}, {"path": strange})
    assert value(text, "ebla_table_tablets", table=strange) == 1
    assert value(text, "ebla_info", path=strange) == 1


def test_every_counter_has_a_meaning_and_begins_at_zero() -> None:
    assert list(described()) == list(Counters.__struct_fields__)
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in described().values())
    assert not any(msgspec.structs.asdict(Counters()).values())


def test_who_reads_gets_the_counters_of_who_writes_and_none_of_a_closed_store(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        db.create_table("t", SCHEMA).put({"k": 1, "v": 1})
        publisher_of(db)._publish(is_closed=False)
        with ebla.open(tmp_path / "s", read_only=True) as reader:
            assert value(reader.metrics(), "ebla_commits_total") == 1
            assert value(reader.metrics(), "ebla_table_tablets", table="t") == 1
    with ebla.open(tmp_path / "s", read_only=True) as reader:
        assert "ebla_commits_total" not in reader.metrics()
        assert value(reader.metrics(), "ebla_table_tablets", table="t") == 1
