"""What an engine uses of METADATA: no more than the interface says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.tablet.recovery import open_metadata, opening

NAMES = {name for name in vars(MetadataAccess) if not name.startswith("_")}


class OnlyAccess:
    """Hands on what the interface has, and nothing else."""

    def __init__(self, metadata: MetadataAccess) -> None:
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        assert name in NAMES, f"an engine uses {name} of METADATA, which the interface has not"
        return getattr(self._metadata, name)


def test_an_engine_lives_on_what_the_interface_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_metadata.open_metadata
    monkeypatch.setattr(opening, "open_metadata", lambda *parts, **options: OnlyAccess(made(*parts, **options)))
    schema = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"v": "string"})])
    with ebla.open(tmp_path / "data", settings=ebla.Settings(drop_retention_seconds=60.0)) as db:
        table = db.create_table("t", schema)
        table.put([{"k": k, "v": str(k)} for k in range(100)])
        table.flush()
        table.split((50,))
        table.put({"k": 7, "v": "seven"})
        table.compact()
        db.alter_table("t", add_columns={"g": {"w": "int32"}})
        db.clone_table("t", "u")
        db.rename_table("u", "v")
        db.drop_table("v")
        db.undelete_table("v")
        db.unload_table("v")
        db.load_table("v")
        db.drop_table("v")
        db.gc(dry_run=False)
        assert {finding.kind for finding in db.verify().findings} <= {"orphan"}
    with ebla.open(tmp_path / "data") as db:
        assert db.table("t").get((7,)) == {"k": 7, "v": "seven", "w": None}
    with ebla.open(tmp_path / "data", read_only=True) as db:
        assert len(list(db.table("t").scan())) == 100
