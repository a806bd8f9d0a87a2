"""Where a stream of this process is, kept in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla
from ebla.pipeline.streaming.stream_checkpoint import StreamCheckpoint
from ebla.pipeline.streaming.stream_offsets import Offset, Position

OFFSET = Offset("7f3a", "stream-t-1", Position((b"", b"m"), (90, 70)), Position((b"",), (70,)))


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "seen"
    assert StreamCheckpoint(directory).read() is None
    assert not StreamCheckpoint(directory).is_begun
    StreamCheckpoint(directory).write(Offset("7f3a", "stream-t-1", Position()))
    StreamCheckpoint(directory).write(OFFSET)
    assert StreamCheckpoint(directory).is_begun
    assert StreamCheckpoint(directory).read() == OFFSET
    assert [file.name for file in directory.iterdir()] == ["position.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1, "table": "a", "pin": "b", "at": []}', "\xff"])
def test_what_is_no_position_is_refused_and_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "position.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ebla.EblaError, match="take another"):
        StreamCheckpoint(tmp_path).read()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ebla.StoreError, match="cannot be written"):
        StreamCheckpoint(tmp_path / "file").write(OFFSET)
