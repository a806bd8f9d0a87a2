"""How far a stream that runs in this process has come, in a directory: what Spark's checkpoint is for one of Spark's.

    DIR/position.json     the offset up to which everything was given out; replaced as a whole, and synced

It is written when a batch was given out, so whoever dies in between gives that batch out again. A directory of Spark's
has its own files, and is for Spark to go on from.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ebla.errors import RequestError, StoreError
from ebla.pipeline.scanning.export_manifest import sync_directory
from ebla.pipeline.streaming.stream_offsets import Offset

__all__ = ["StreamCheckpoint", "is_of_spark"]

_NAME = "position.json"


def is_of_spark(directory: Path) -> bool:
    """Tell whether Spark has kept the offsets of a query in a directory."""
    return (directory / "offsets").is_dir()


class StreamCheckpoint:
    """The directory of one stream. Two processes at a time would both go on from where it is: one at a time uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def is_begun(self) -> bool:
        """Whether there is something to go on from."""
        return (self._directory / _NAME).is_file()

    def read(self) -> Offset | None:
        """Return how far the stream has come; None if it was never begun."""
        try:
            text = (self._directory / _NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"the checkpoint {self._directory} cannot be read: {error}: take another") from error
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RequestError(f"{self._directory / _NAME} is not the position of a stream: take another checkpoint")
        return Offset.of_json(found)

    def write(self, offset: Offset) -> None:
        """Note how far the stream has come, on disk when this returns."""
        beside = self._directory / f".{_NAME}.new"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(offset.to_json(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._directory / _NAME)
            sync_directory(self._directory)
        except OSError as error:
            raise StoreError(f"the checkpoint {self._directory} cannot be written: {error}") from error
