"""A store in one process keeps one copy, and says so to whoever asks for more."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"n": "int64"})])


def test_more_than_one_replica_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        with pytest.raises(ebla.RequestError, match="keeps one copy, not 3: connect to a cluster"):
            db.create_table("t", SCHEMA, replicas=3)
        assert db.tables() == []
        table = db.create_table("t", SCHEMA, replicas=1)
        with pytest.raises(ebla.RequestError, match="keeps one copy, not 2"):
            db.alter_table("t", replicas=2)
        assert db.alter_table("t", replicas=1).schema.version == table.schema.version
        with pytest.raises(ebla.RequestError, match="no replicas to recover from"):
            db.recover_tablet("x", accept_loss=True)
        for wrong in (0, -1, True, 1.5, "3"):
            with pytest.raises(ebla.RequestError, match="replicas is a whole number from 1 to 9"):
                db.create_table("u", SCHEMA, replicas=wrong)  # type: ignore[arg-type]


def test_a_tablet_says_how_many_replicas_it_has(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        db.create_table("t", SCHEMA)
        (row,) = db.table("sys.tablets").scan()
        assert (row["wanted"], row["in_sync"]) == (1, [])
