"""The index of names: every planted damage is found, mended in one change, and tables lose nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.coordination.service import CoordinationService
from ebla.metadata.values.check_names import examine_names
from ebla.metadata.values.table_config import TableConfig, config_path, decode_config, encode_config, name_path
from ebla.tablet.check.verify_names import NamesVerifier
from tests.client.damages import ROWS, current
from tests.support.inside import state_of

replace = msgspec.structs.replace


@contextmanager
def connected(root: Path) -> Iterator[CoordinationService]:
    with connect_at(root, SystemClock()) as coordination:
        yield coordination


def set_name(coordination: CoordinationService, name: str, table_id: str) -> None:
    node = coordination.read(name_path(name))
    if node is None:
        coordination.create(name_path(name), table_id.encode())
    else:
        coordination.compare_and_set(name_path(name), table_id.encode(), node.version)


def forget_name(coordination: CoordinationService, name: str) -> None:
    node = coordination.read(name_path(name))
    assert node is not None
    coordination.delete(name_path(name), node.version)


def call(coordination: CoordinationService, table_id: str, **changes: str) -> None:
    node = coordination.read(config_path(table_id))
    assert node is not None
    changed = replace(decode_config(table_id, node), **changes)
    coordination.compare_and_set(config_path(table_id), encode_config(changed), node.version)


def two_names(c: CoordinationService, users: str, other: str) -> None:
    set_name(c, "alias", users)


def name_of_a_missing_table(c: CoordinationService, users: str, other: str) -> None:
    set_name(c, "ghost", "nobody")


def name_of_a_dropped_table(c: CoordinationService, users: str, other: str) -> None:
    c.create(config_path("gone"), encode_config(TableConfig("gone", "deleted", "", ())))
    set_name(c, "gone", "gone")


def name_that_is_no_text(c: CoordinationService, users: str, other: str) -> None:
    c.create(name_path("junk"), b"\xff\xfe")


def no_name(c: CoordinationService, users: str, other: str) -> None:
    forget_name(c, "users")


def half_a_rename(c: CoordinationService, users: str, other: str) -> None:
    forget_name(c, "users")
    set_name(c, "people", users)


def other_half_of_a_rename(c: CoordinationService, users: str, other: str) -> None:
    call(c, users, name="people")


def exchanged(c: CoordinationService, users: str, other: str) -> None:
    set_name(c, "users", other)
    set_name(c, "other", users)


def two_of_one_name(c: CoordinationService, users: str, other: str) -> None:
    call(c, other, name="users")
    forget_name(c, "other")


# What is planted, what is found, and what the two tables are called after the repair.
Plant = Callable[[CoordinationService, str, str], None]
DAMAGES: list[tuple[Plant, list[str], tuple[str, str]]] = [
    (two_names, ["name"], ("users", "other")),
    (name_of_a_missing_table, ["name"], ("users", "other")),
    (name_of_a_dropped_table, ["name"], ("users", "other")),
    (name_that_is_no_text, ["name"], ("users", "other")),
    (no_name, ["no name"], ("users", "other")),
    (half_a_rename, ["name", "no name"], ("users", "other")),
    (other_half_of_a_rename, ["name", "no name"], ("people", "other")),
    (exchanged, ["name", "name", "no name", "no name"], ("users", "other")),
    (two_of_one_name, ["no name"], ("users", "users-")),
]


@pytest.mark.parametrize(("plant", "kinds", "names"), DAMAGES, ids=lambda it: getattr(it, "__name__", ""))
def test_a_damaged_index_is_found_and_mended(
    root: Path, plant: Plant, kinds: list[str], names: tuple[str, str]
) -> None:
    ids = {name: current(root, name).table_id for name in ("users", "other")}
    with connected(root) as coordination:
        plant(coordination, ids["users"], ids["other"])
    report = ebla.verify(root)
    assert sorted(finding.kind for finding in report.findings) == sorted(kinds)
    assert all(finding.repair for finding in report.findings)
    assert ebla.repair(root) == report
    assert ebla.verify(root) == report, "a dry run changes nothing"
    assert ebla.repair(root, dry_run=False).repaired
    assert ebla.verify(root) == ebla.VerifyReport(2, 12, ())
    with ebla.open(root) as database:
        assert len(database.tables()) == 2
        for wanted, table_id in zip(names, ids.values(), strict=True):
            name = f"{wanted}{table_id[:8]}" if wanted.endswith("-") else wanted
            table = database.table(name)
            assert state_of(table).id == table_id
            assert table.scan().to_arrow().num_rows == len(ROWS)
            table.put({"k": "new", "v": 1})


@pytest.mark.parametrize(("plant", "kinds", "names"), DAMAGES, ids=lambda it: getattr(it, "__name__", ""))
@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_a_store_with_a_damaged_index_opens_and_serves_what_is_right(
    root: Path, plant: Plant, kinds: list[str], names: tuple[str, str], read_only: bool
) -> None:
    ids = {name: current(root, name).table_id for name in ("users", "other")}
    with connected(root) as coordination:
        plant(coordination, ids["users"], ids["other"])
    with ebla.open(root, read_only=read_only) as database:
        served = {}
        for name in database.tables():
            try:
                served[name] = state_of(database.table(name)).id
            except ebla.TableDamaged as error:
                assert "`ebla.verify` tells" in str(error)  # noqa: PT017 - others are served
                with pytest.raises((ebla.Corruption, ebla.UnknownTable, ebla.ReadOnly)):
                    database.drop_table(name)
        assert len(set(served.values())) == len(served), "no table is served twice"
        for name, table_id in served.items():
            assert ids[name] == table_id
            assert database.table(name).scan().to_arrow().num_rows == len(ROWS)
            if not read_only:
                database.table(name).put({"k": "new", "v": 1})
    assert not ebla.verify(root).is_clean


def test_a_node_that_cannot_be_read_is_told_and_nothing_is_mended_then(root: Path) -> None:
    with connected(root) as coordination:
        coordination.create(config_path("odd"), b"{")
        set_name(coordination, "odd", "odd")
    kinds = {finding.kind: finding.repair for finding in ebla.verify(root).findings}
    assert kinds == {"config": "", "name": ""}
    assert not ebla.repair(root, dry_run=False).repaired
    with ebla.open(root) as database:
        assert database.table("users").scan().to_arrow().num_rows == len(ROWS)
        with pytest.raises(ebla.TableDamaged, match="not a table's configuration"):
            database.table("odd")


def test_names_that_come_and_go_meanwhile_are_no_damage() -> None:
    coordination = MemoryCoordination(MemoryStore(), SystemClock())
    running = TableConfig("t", "running", "x", ())
    coordination.create(config_path("1"), encode_config(running))
    real = coordination.list
    looks = 0

    def listing(path: str) -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 2:  # the table was seen without its name, which comes now
            coordination.create(name_path("t"), b"1")
        return real(path)

    coordination.list = listing  # type: ignore[method-assign]
    assert NamesVerifier(coordination).look()[1].findings == ()


def test_a_free_name_is_free() -> None:
    running = TableConfig("t", "running", "x", ())
    taken = {"t": "1", "t-22222222": "3"}
    configs = {"1": running, "22222222-2": running, "3": replace(running, name="t-22222222")}
    assert examine_names(taken, configs).give == (("22222222-2", "t-22222222-2"),)
