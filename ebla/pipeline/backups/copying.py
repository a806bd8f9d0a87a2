"""Copying files by many tasks, each with the checksum of what it copied.

    driver   Copy(source, target, bytes, sha256 if known), ...  -->  portions of about as many bytes
    task     read, hash, write beside the target under a name of its own, sync, compare, rename  -->  Copied
             (to be checked only: read, hash, compare)

An attempt that is lost, or runs twice, leaves at most a file under a name of its own, or the same bytes once more under
the target's. Whoever started the job removes the former and makes the names durable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Sequence
from io import FileIO

import msgspec

from ebla.errors import Corruption, MissingFile
from ebla.pipeline.spark.engine import Engine
from ebla.pipeline.spark.portions import portions_of
from ebla.pipeline.spark.progress import Report

__all__ = ["Copied", "Copy", "copy_files", "leftover_of"]

MIB = 1 << 20
TASK_BYTES = 64 * MIB
CHUNK_BYTES = 4 * MIB


class Copy(msgspec.Struct, frozen=True):
    """A file to be copied, by full paths; `sha256` is None where it is not known yet.

    `aside` is the path under which an attempt writes, up to an id of its own and an ending; None if the file is to be
    read and compared, and nothing to be written.
    """

    source: str
    target: str
    aside: tuple[str, str] | None
    bytes: int
    sha256: str | None = None


class Copied(msgspec.Struct, frozen=True):
    """What became of a copy: its checksum, or what is wrong with its source."""

    target: str
    sha256: str
    missing: bool = False
    problem: str = ""


def copy_files(engine: Engine, group: str, phase: str, copies: Sequence[Copy], report: Report | None) -> dict[str, str]:
    """Copy files and return the SHA-256 of each by its target; durable, but for the names.

    Raises `MissingFile` or `Corruption` of the first source that is gone, or not as it should be.
    """
    portions = portions_of(sorted(copies, key=lambda one: one.target), lambda one: one.bytes, TASK_BYTES)
    found = engine.run(_copy_portion, portions, group=group, phase=phase, report=report) if portions else []
    done = {one.target: one for portion in found for one in portion}
    for copy in copies:
        copied = done[copy.target]
        if copied.missing:
            raise MissingFile(f"{copy.source} is gone: {copied.problem}")
        if copied.problem:
            raise Corruption(copy.source, copied.problem)
    return {target: copied.sha256 for target, copied in done.items()}


def leftover_of(name: str) -> bool:
    """Tell whether a file of a backup is what a lost attempt has left."""
    return name.startswith(".") and name.endswith(".part")


# --- in a task -----------------------------------------------------------------------------------


def _copy_portion(portion: Sequence[Copy]) -> list[Copied]:
    return [copy_file(copy) for copy in portion]


def copy_file(copy: Copy) -> Copied:
    """Copy one file. What is wrong with the source is told; what is wrong with the target raises, and is retried."""
    aside = None if copy.aside is None else f"{copy.aside[0]}{uuid.uuid4()}{copy.aside[1]}"
    try:
        source = open(copy.source, "rb", buffering=0)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return Copied(copy.target, "", missing=True, problem="bring it back")
    with source:
        try:
            digest, size = _read(source) if aside is None else _write(source, aside)
            problem = ""
            if size != copy.bytes:
                problem = f"it has {size} bytes, and should have {copy.bytes}"
            elif copy.sha256 is not None and digest != copy.sha256:
                problem = "its SHA-256 is not the one in the manifest"
            if not problem:
                if aside is not None:
                    os.replace(aside, copy.target)
                return Copied(copy.target, digest)
        except BaseException:
            _remove(aside)
            raise
    _remove(aside)
    return Copied(copy.target, "", problem=problem)


def _write(source: FileIO, aside: str) -> tuple[str, int]:
    with open(aside, "xb", buffering=0) as target:

        def write(part: memoryview) -> None:
            while part:
                part = part[target.write(part) :]

        found = _read(source, write)
        os.fsync(target.fileno())
    return found


def _read(source: FileIO, take: Callable[[memoryview], None] = lambda part: None) -> tuple[str, int]:
    """Hand on a file part by part; return its SHA-256 and its size."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while count := source.readinto(buffer):
        digest.update(buffer[:count])
        size += count
        take(buffer[:count])
    return digest.hexdigest(), size


def _remove(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
