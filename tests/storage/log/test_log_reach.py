"""How far a log reaches is told to the byte, and what cannot be read tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.log.log_reach import LogReach, read_reach
from tests.support.simulated_files import SimulatedFiles


@pytest.fixture(params=["local", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return LocalFiles(tmp_path) if request.param == "local" else SimulatedFiles()


def test_what_was_told_last_is_read(files: Files) -> None:
    reach = LogReach(files, "server")
    assert read_reach(files, "server") == (0, 0)
    for synced in (64, 1 << 40, 128):
        reach.tell(7, synced)
        assert read_reach(files, "server") == (7, synced)
    reach.close()
    assert read_reach(files, "other") == (0, 0)


def test_another_run_goes_on_where_the_last_one_was(files: Files) -> None:
    for synced in (64, 90):
        reach = LogReach(files, "server")
        reach.tell(1, synced)
        reach.close()
        assert read_reach(files, "server") == (1, synced)


def test_what_is_forgotten_is_told_no_more(files: Files) -> None:
    reach = LogReach(files, "server")
    reach.tell(1, 64)
    reach.forget()
    assert read_reach(files, "server") == (0, 0)


def test_a_file_that_is_cut_or_flipped_tells_nothing(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    reach = LogReach(files, "server")
    reach.tell(3, 5_000)
    reach.close()
    path = tmp_path / "log-reach" / "server"
    whole = path.read_bytes()
    checked = len(whole) - 4  # the last bytes are zeros, and mean nothing
    for at in range(checked):
        path.write_bytes(whole[:at])
        assert read_reach(files, "server") == (0, 0)
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert read_reach(files, "server") == (0, 0)
    path.write_bytes(whole)
    assert read_reach(files, "server") == (3, 5_000)


def test_a_power_cut_leaves_any_that_was_told() -> None:
    files = SimulatedFiles()
    reach = LogReach(files, "server")
    for synced in range(64, 104):
        reach.tell(1, synced)
    left = {read_reach(image, "server") for image in files.crash_images(seed=3, count=50)}
    assert left <= {(0, 0), *((1, synced) for synced in range(64, 104))}
    assert len(left) > 10


def test_a_place_that_cannot_be_written_is_told_once_and_the_log_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log-reach").write_bytes(b"a file where the directory should be")
    reach = LogReach(LocalFiles(tmp_path), "server")
    for synced in (64, 90):
        reach.tell(1, synced)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(OSError, match="log-reach"):
        reach.forget()
