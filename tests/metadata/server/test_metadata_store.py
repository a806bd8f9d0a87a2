"""METADATA files: what is saved is loaded, what is damaged is found, what is pruned was not needed."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from ebla.errors import Corruption, FormatTooNew, MissingFile, StoreError
from ebla.metadata.server.metadata_store import MetadataNotSaved, MetadataStore
from ebla.metadata.values import transaction_file
from ebla.metadata.values.changes import Change, Flush, FlushedTablet, NewFragment, RecordJob, TabletAt, apply
from ebla.metadata.values.recutting import BeginSplit, FinishSplit
from ebla.metadata.values.table_metadata import GroupState, InvalidMetadata, TableMetadata
from ebla.metadata.values.transaction_file import FORMAT_VERSION, ChangeRecord, SnapshotRecord, decode, encode
from ebla.storage.files.local_files import LocalFiles
from tests.metadata.metadata_world import PROFILE, TABLE, files_of, flush, fragment, table
from tests.support.simulated_files import FaultPlan, SimulatedFiles


class History:
    """A table that grows by one flush with every transaction."""

    def __init__(self, files: SimulatedFiles | LocalFiles | None = None, snapshot_every: int = 4) -> None:
        self.files = files or SimulatedFiles()
        self.store = MetadataStore(self.files, snapshot_every)
        self.values = [table().with_txnid("x1", 1)]
        self.store.save(None, self.values[0], ())

    def grow(self, count: int) -> History:
        for _ in range(count):
            base = self.values[-1]
            number = base.sequence + 1
            changes = [flush(f"f{number}", {"a": number})]
            self.values.append(apply(base, changes, f"x{number}"))
            self.store.save(base, self.values[-1], changes)
        return self

    def fork(self, base: TableMetadata, name: str, changes: list[Change] | None = None) -> TableMetadata:
        changes = changes or [RecordJob(name, 1)]
        value = apply(base, changes, name)
        self.store.save(base, value, changes)
        return value

    def names(self) -> set[str]:
        return {info.path.rpartition("/")[2].removesuffix(".meta") for info in self.files.list(f"metadata/{TABLE}")}


def path(txnid: str) -> str:
    return f"metadata/{TABLE}/{txnid}.meta"


# --- saving and loading --------------------------------------------------------------------------


def test_every_transaction_can_be_loaded(tmp_path: Path) -> None:
    for files in (SimulatedFiles(), LocalFiles(tmp_path)):
        history = History(files).grow(10)
        fresh = MetadataStore(files)
        for value in history.values:
            loaded = fresh.load(TABLE, value.txnid)
            assert loaded == value
            assert loaded.checksum == value.checksum


def test_many_changes_are_loaded_at_once_with_the_outcome_of_one_by_one() -> None:
    history = History(snapshot_every=64).grow(4)
    at = TabletAt("b", 1)
    for number, change in enumerate((BeginSplit(at, b"k", ("b1", "b2")), FinishSplit(at, 9, 9), RecordJob("j", 1))):
        history.values.append(history.fork(history.values[-1], f"y{number}", [change]))
        loaded = MetadataStore(history.files).load(TABLE, f"y{number}")
        assert loaded == history.values[-1]
    history.values.append(history.fork(history.values[-1], "last", [flush("f9", {"b2": 12})]))
    loaded = MetadataStore(history.files).load(TABLE, "last")
    assert loaded == history.values[-1]
    assert loaded.checksum == history.values[-1].checksum == msgspec.structs.replace(loaded).checksum
    # What is loaded is checked again when it is changed.
    with pytest.raises(InvalidMetadata, match="no row of the tablet"):
        apply(
            loaded,
            [Flush(PROFILE, (NewFragment(fragment("g", b"a", b"b"), ("b2",)),), (FlushedTablet("b2", 1, 13),))],
            "z",
        )


def test_changes_that_lead_elsewhere_than_was_saved_are_damage() -> None:
    history = History(snapshot_every=64).grow(4)
    record = history.store.record(TABLE, "x4")
    assert isinstance(record, ChangeRecord)
    other = msgspec.structs.replace(record, changes=(flush("other", {"a": 4}),))
    history.files.put(path("x4"), encode(other))
    with pytest.raises(Corruption, match=r"x4\.meta.*another checksum"):
        MetadataStore(history.files).load(TABLE, "x5")


def test_a_snapshot_comes_every_so_often() -> None:
    history = History(snapshot_every=4).grow(9)
    kinds = [type(history.store.record(TABLE, value.txnid)) for value in history.values]
    assert [number + 1 for number, kind in enumerate(kinds) if kind is SnapshotRecord] == [1, 5, 9]


def test_loading_stops_at_the_last_snapshot_and_at_what_is_known() -> None:
    history = History(snapshot_every=4).grow(7)
    for old in ("x1", "x2", "x3", "x4"):
        history.files.delete(path(old))
    assert history.store.load(TABLE, "x8") == history.values[7]
    for old in ("x5", "x6"):
        history.files.delete(path(old))
    with pytest.raises(MissingFile):
        history.store.load(TABLE, "x8")
    assert history.store.load(TABLE, "x8", known=history.values[5]) == history.values[7]
    assert history.store.load(TABLE, "x6", known=history.values[5]) is history.values[5]


def test_a_known_value_off_the_way_does_no_harm() -> None:
    history = History().grow(6)
    aside = history.fork(history.values[1], "aside")
    for known in (aside, history.values[0], history.values[6]):
        assert history.store.load(TABLE, "x6", known=known) == history.values[5]


def test_what_was_saved_survives_a_power_cut() -> None:
    history = History().grow(6)
    for image in history.files.crash_images():
        assert MetadataStore(image).load(TABLE, "x7") == history.values[6]


def test_an_id_is_never_written_twice() -> None:
    history = History().grow(1)
    before = history.files.read(path("x2"))
    with pytest.raises(MetadataNotSaved):
        history.fork(history.values[0], "x2")
    assert history.files.read(path("x2")) == before


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a.b", "x" * 200, "é"])
def test_an_id_that_is_no_file_name_is_refused(bad: str) -> None:
    store = MetadataStore(SimulatedFiles())
    for table_id, txnid in ((bad, "x"), (TABLE, bad)):
        with pytest.raises(InvalidMetadata):
            store.load(table_id, txnid)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("txnid", ["x1", "x2"])
def test_damage_at_any_byte_is_found(txnid: str) -> None:
    history = History().grow(1)
    content = history.files.read(path(txnid))
    for position in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= flip
            history.files.put(path(txnid), bytes(damaged))
            with pytest.raises(Corruption, match=path(txnid)) as raised:
                history.store.load(TABLE, "x2")
            assert raised.value.file == path(txnid)
    history.files.put(path(txnid), content)
    assert history.store.load(TABLE, "x2") == history.values[1]


@pytest.mark.parametrize("txnid", ["x1", "x2"])
def test_a_file_of_any_other_length_is_found(txnid: str) -> None:
    history = History().grow(1)
    content = history.files.read(path(txnid))
    for other in [*(content[:length] for length in range(len(content))), content + b"\0", content * 2, b"\xa5" * 5000]:
        history.files.put(path(txnid), other)
        with pytest.raises(Corruption, match=path(txnid)):
            history.store.load(TABLE, "x2")


@pytest.mark.parametrize("txnid", ["x1", "x2"])
def test_a_missing_file_is_named(txnid: str) -> None:
    history = History().grow(1)
    history.files.delete(path(txnid))
    with pytest.raises(MissingFile, match=path(txnid)):
        history.store.load(TABLE, "x2")


def test_a_file_that_cannot_be_read_is_not_a_missing_one() -> None:
    history = History().grow(1)
    history.files.plan = FaultPlan(reads={path("x2"): errno.EIO})
    with pytest.raises(StoreError, match=path("x2")) as raised:
        history.store.load(TABLE, "x2")
    assert not isinstance(raised.value, MissingFile)


def test_a_file_under_another_name_is_found() -> None:
    history = History().grow(2)
    history.files.put(path("x3"), history.files.read(path("x2")))
    with pytest.raises(Corruption, match="it holds transaction x2"):
        history.store.load(TABLE, "x3")


def rewritten(history: History, txnid: str, **changes: object) -> None:
    """Save a transaction's file with other content and a right crc, as a program gone wrong would."""
    record = history.store.record(TABLE, txnid)
    history.files.put(path(txnid), encode(msgspec.structs.replace(record, **changes)))


def test_a_wrong_outcome_is_found() -> None:
    history = History().grow(1)
    rewritten(history, "x2", checksum=1)
    with pytest.raises(Corruption, match="another checksum"):
        history.store.load(TABLE, "x2")
    rewritten(history, "x1", checksum=1)
    # That of a snapshot is trusted by those who load it, as all its bytes are what was written, and not by `verify`.
    assert history.store.load(TABLE, "x1") == history.values[0]
    assert "another checksum" in history.store.load_anyway(TABLE, "x1")[1]
    with pytest.raises(Corruption, match=r"x2\.meta"):
        history.store.load(TABLE, "x2")


def test_changes_that_do_not_fit_their_base_are_found() -> None:
    history = History().grow(2)
    rewritten(history, "x3", changes=(flush("f9", {"a": 1}),))
    with pytest.raises(Corruption, match="do not fit"):
        history.store.load(TABLE, "x3")


def test_a_snapshot_that_breaks_the_invariants_is_found() -> None:
    history = History()
    value = history.values[0]
    broken = TableMetadata(TABLE, "x1", 1, value.schema, value.tablets[:1])
    rewritten(history, "x1", metadata=broken, checksum=broken.checksum)
    with pytest.raises(Corruption, match="no tablet holds"):
        history.store.load(TABLE, "x1")


def test_a_ring_of_transactions_is_found() -> None:
    history = History().grow(2)
    rewritten(history, "x2", base="x3")
    with pytest.raises(Corruption, match="it should be transaction 1"):
        history.store.load(TABLE, "x3")
    rewritten(history, "x2", base="x2")
    with pytest.raises(Corruption):
        history.store.load(TABLE, "x2")


def test_a_newer_format_is_told_from_damage() -> None:
    content = encode(ChangeRecord(TABLE, "x1", "x2", 2, 0, ()))
    fields = content[:8] + struct.pack("<H", FORMAT_VERSION + 1) + content[10:20]
    crc = google_crc32c.extend(google_crc32c.value(fields), content[24:])
    with pytest.raises(FormatTooNew, match="some file"):
        decode(fields + struct.pack("<I", crc) + content[24:], "some file")


def test_a_body_that_makes_no_sense_is_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode(ChangeRecord(TABLE, "x1", "x2", 2, 0, ()))
    for kind, body in ((1, b"\xc1"), (2, good[24:]), (1, b""), (3, good[24:])):
        fields = struct.pack("<8sHBBQ", transaction_file.MAGIC, 1, kind, 0, len(body))
        crc = google_crc32c.extend(google_crc32c.value(fields), body)
        with pytest.raises(Corruption, match="some file"):
            decode(fields + struct.pack("<I", crc) + body, "some file")


def test_a_full_disk_is_a_clear_error_and_leaves_nothing_behind() -> None:
    history = History().grow(1)
    used = sum(info.size for info in history.files.list(f"metadata/{TABLE}"))
    history.files.bytes_max = used + 20
    with pytest.raises(MetadataNotSaved, match="make room"):
        history.grow(1)
    assert history.names() == {"x1", "x2"}
    history.files.bytes_max = None
    assert history.fork(history.values[1], "x3").sequence == 3


@pytest.mark.parametrize("kind", ["create", "write", "sync", "sync_directory"])
def test_any_failure_to_write_is_a_typed_error(kind: str) -> None:
    history = History()
    history.files.plan = FaultPlan.fail_when(lambda operation: operation.kind == kind)
    with pytest.raises(MetadataNotSaved, match=path("x2")):
        history.grow(1)


# --- ancestry and pruning ------------------------------------------------------------------------


def test_ancestors_are_told_from_transactions_beside_the_way() -> None:
    history = History().grow(9)
    aside = history.fork(history.values[4], "aside")
    ahead = history.fork(history.values[9], "ahead")
    for value in history.values:
        assert history.store.is_ancestor(value, "x10")
    assert not history.store.is_ancestor(aside, "x10")
    assert not history.store.is_ancestor(ahead, "x10")
    assert history.store.is_ancestor(ahead, "ahead")


def test_an_ancestor_that_cannot_be_reached_any_more_is_not_denied() -> None:
    history = History().grow(9)
    history.files.delete(path("x7"))
    with pytest.raises(MissingFile):
        history.store.is_ancestor(history.values[3], "x10")


def test_pruning_keeps_the_last_two_snapshots_and_all_since() -> None:
    history = History(snapshot_every=4).grow(15)  # snapshots: x1, x5, x9, x13
    removed = history.store.prune(TABLE, "x16")
    assert sorted(removed) == sorted(f"x{number}" for number in range(1, 9))
    assert history.names() == {f"x{number}" for number in range(9, 17)}
    for number in range(9, 17):
        assert history.store.load(TABLE, f"x{number}") == history.values[number - 1]
    assert history.store.prune(TABLE, "x16") == []


def test_pruning_removes_aborted_transactions_and_keeps_those_that_may_still_be_committed() -> None:
    history = History(snapshot_every=4).grow(5)
    history.fork(history.values[4], "aborted")
    history.fork(history.values[2], "aborted-long-ago")
    under_way = history.fork(history.values[5], "under-way")
    history.fork(under_way, "of-somebody-ahead-of-us")
    assert sorted(history.store.prune(TABLE, "x6")) == ["aborted", "aborted-long-ago"]
    assert {"under-way", "of-somebody-ahead-of-us"} < history.names()


def test_pruning_keeps_what_it_cannot_read_and_what_it_does_not_know() -> None:
    history = History(snapshot_every=2).grow(8)
    history.files.put(path("x1"), b"damaged")
    history.files.put(f"metadata/{TABLE}/notes.txt", b"")
    history.files.plan = FaultPlan.fail_when(lambda operation: operation.path == path("x2"))
    removed = MetadataStore(history.files).prune(TABLE, "x9")  # one that has not written them itself
    assert "x3" in removed
    assert {"x1", "x2", "notes.txt"} <= history.names()


@pytest.mark.parametrize("lost", ["x9", "x10"])
def test_nothing_is_pruned_if_the_current_transaction_cannot_be_loaded(lost: str) -> None:
    history = History(snapshot_every=4).grow(9)
    history.files.delete(path(lost))
    names = history.names()
    with pytest.raises(MissingFile):
        history.store.prune(TABLE, "x10")
    assert history.names() == names


def test_pruning_over_and_over_keeps_the_number_of_files_bounded() -> None:
    history = History(snapshot_every=3)
    for _ in range(30):
        history.grow(1)
        history.store.prune(TABLE, history.values[-1].txnid)
        assert len(history.names()) <= 2 * 3
        assert history.store.load(TABLE, history.values[-1].txnid) == history.values[-1]
    assert len(files_of(history.values[-1])) == 30
    assert history.values[-1].by_id("a").group(PROFILE) != GroupState(PROFILE)
