"""Backup and restore on a Spark cluster of several processes: an executor is killed in the middle of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.standalone import can_have_two_hosts, standalone

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not can_have_two_hosts(), reason="the machine has one address of its own"),
]

KILLED = """
from ebla.pipeline.backups.copying import copy_file

url, place = sys.argv[1:]
root, there, other = f"{place}/store", f"{place}/backups", f"{place}/other"

def killing(mark):
    def copy(one):
        if not Path(mark).exists():
            # What an attempt leaves behind that is cut off in the middle.
            Path(f"{one.aside[0]}11111111-1111-4111-8111-111111111111{one.aside[1]}").write_bytes(b"half")
        kill_executor_once(mark)
        return copy_file(one)
    return replaced("ebla.pipeline.backups.copying", "copy_file", copy)

def files(directory):
    return {path.name for path in Path(directory).rglob("*") if path.parent.parent.name == "fragments"}

spark = standalone_session(url)
with ebla.open(root) as db, replaced("ebla.pipeline.backups.copying", "TASK_BYTES", 1):
    table = db.create_table("t", ebla.Schema(key={"n": "int64"}, columns={"v": "string"}), splits=[300, 600])
    for begin in range(0, 1000, 250):
        table.put([{"n": n, "v": f"v{n}"} for n in range(begin, begin + 250)])
        table.flush()
    with killing(f"{place}/mark-backup"):
        done = ebla.pipeline.backup(db, "t", there, spark=spark)
    assert Path(f"{place}/mark-backup").exists()
    assert (done.rows, done.files) == (1000, len(table.files()))
    assert files(f"{there}/{done.id}") == {Path(file).name for file in table.files()}
    assert (db.snapshots(), engine_of(db).pins.held_here()) == ({}, {})
    table.erase_range(100, 200)
    second = ebla.pipeline.backup(root, "t", there, since="last", spark=spark)
    assert second.rows == 900 and second.new_files < second.files
    with ebla.open(other) as target, killing(f"{place}/mark-restore"):
        back = ebla.pipeline.restore(there, target, "t", at=done.id, spark=spark)
        assert Path(f"{place}/mark-restore").exists()
        assert back.rows == 1000 and target.table("t").scan().count() == 1000
        assert files(other) == {Path(file).name for file in target.table("t").files()}
        ebla.pipeline.restore(there, target, "t", in_place=True, spark=spark)
        assert target.table("t").scan().count() == 900
        assert ebla.verify(other).is_clean or {f.kind for f in ebla.verify(other).findings} == {"orphan"}
print("fine")
"""


def test_a_backup_and_a_restore_survive_the_death_of_an_executor(tmp_path: Path) -> None:
    with standalone(tmp_path / "cluster") as cluster:
        assert "fine" in cluster.run(KILLED, str(tmp_path))
