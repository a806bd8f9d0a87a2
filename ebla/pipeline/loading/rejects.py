"""Rows that a load does not take: counted and shown, or kept as JSON lines beside the job.

    tasks     rejects/.<job>-<random>.part       what one attempt rejected; attempts that lose leave theirs behind
    driver    rejects/<job>-00000.jsonl, ...     those of the attempts that count, renamed just before the commit

Every line is ``{"reason": ..., "row": {...}}``. The files get their names before the commit, and go again if it is
refused: a driver that dies in between leaves rejects of rows that were not loaded, which running the job again
replaces. The other way round, rows would be missing in both places.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from ebla.errors import InvalidBatch, StoreError

__all__ = ["EXAMPLES_MAX", "RejectsWriter", "prepare_directory", "publish", "refusal", "row_as_json", "withdraw"]

EXAMPLES_MAX = 10
_EXAMPLE_LENGTH = 200


class RejectsWriter:
    """The rejects of one task attempt: a count, a few examples and, if there is a directory, a file of all of them."""

    def __init__(self, directory: str | None, job: str) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._path = None if directory is None else Path(directory) / f".{job}-{uuid.uuid4()}.part"
        self._file: TextIO | None = None

    def add(self, rows: Iterable[tuple[str, str]]) -> None:
        """Take rejects: the reason, and the row as JSON."""
        lines = []
        for reason, row in rows:
            self.count += 1
            if len(self.examples) < EXAMPLES_MAX:
                self.examples.append(_shortened(f"{reason}: {row}"))
            if self._path is not None:
                lines.append(f'{{"reason": {json.dumps(reason, ensure_ascii=False)}, "row": {row}}}\n')
        if self._path is not None and lines:
            try:
                if self._file is None:
                    self._file = open(self._path, "w", encoding="utf-8", errors="surrogatepass")  # noqa: SIM115
                self._file.writelines(lines)
            except OSError as error:
                raise StoreError(f"cannot write rejects to {self._path.parent}: {error}") from error

    def finish(self) -> str | None:
        """Make the file durable and return its path; None if there is none."""
        if self._file is None:
            return None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return str(self._path)

    def abandon(self) -> None:
        """Remove the file."""
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def row_as_json(row: dict[str, object]) -> str:
    """Return a row as JSON; what JSON has no form for, as text; bytes in base64, as Spark writes them."""

    def form(value: object) -> object:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps(row, ensure_ascii=False, default=form)


def refusal(rejected: int, rows: int, examples: Sequence[str]) -> InvalidBatch:
    """Return the error for a load that has rejects and nowhere to put them."""
    shown = "; ".join(examples[:EXAMPLES_MAX])
    more = "" if rejected <= len(examples[:EXAMPLES_MAX]) else "; ..."
    return InvalidBatch(
        f"{rejected:,} of {rows:,} rows do not fit and nothing was loaded; mend them, or give a directory for rejects. "
        f"Examples: {shown}{more}"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _EXAMPLE_LENGTH else text[: _EXAMPLE_LENGTH - 3] + "..."


# --- on the driver -------------------------------------------------------------------------------


def prepare_directory(directory: str) -> str:
    """Make the directory for rejects, if it is not there, and return its absolute path: tasks run elsewhere."""
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be a directory for rejects: {error.strerror or error}") from error
    return str(path)


def publish(directory: str, job: str, parts: Sequence[str]) -> list[str]:
    """Give the files of a job their names, in place of those of an earlier run; return them."""
    withdraw(directory, job, keep=parts)
    names = []
    try:
        for number, part in enumerate(sorted(parts)):
            names.append(str(Path(directory) / f"{job}-{number:05}.jsonl"))
            os.replace(part, names[-1])
    except OSError as error:
        raise StoreError(f"the rejects in {directory} cannot be renamed: {error}") from error
    return names


def withdraw(directory: str, job: str, keep: Sequence[str] = ()) -> None:
    """Remove the files of a job, finished or not."""
    for path in [*Path(directory).glob(f".{_escaped(job)}-*.part"), *Path(directory).glob(f"{_escaped(job)}-*.jsonl")]:
        if str(path) not in keep:
            with contextlib.suppress(OSError):
                path.unlink()


def _escaped(job: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in job)
