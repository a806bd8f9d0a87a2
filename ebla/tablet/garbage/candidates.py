"""Candidates: the files that a round of garbage collection found unused, remembered until the next one.

    node `garbage`    {file: since when, in microseconds}          as long as they are not many
                      [name, checksum] of a file `garbage/<id>`    if they are

They belong to the store and not to a process: rounds may be made by the store itself, by hand, or by a job, and each
takes up where the last one ended. Forgetting them does no harm: files become candidates again, and go a round later.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

import google_crc32c
import msgspec

from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, OutcomeUnknown
from ebla.storage.files.files import Files

__all__ = ["CANDIDATES_MAX", "NODE", "Candidates"]

NODE = "garbage"
DIRECTORY = "garbage"
# So many are remembered; the rest has its turn later. So many fit into a node.
CANDIDATES_MAX = 1_000_000
IN_NODE_MAX = 4_000


class Candidates:
    """What earlier rounds found. Keeps nothing in memory."""

    def __init__(self, coordination: CoordinationService, files: Files) -> None:
        self._coordination = coordination
        self._files = files

    def read(self) -> tuple[dict[str, int], int | None]:
        """Return the candidates, and the version at which they stand (None: there were none ever)."""
        node = self._coordination.read(NODE)
        if node is None:
            return {}, None
        try:
            found = msgspec.msgpack.decode(node.value, type=dict[str, int] | tuple[str, int])
            if isinstance(found, dict):
                return found, node.version
            return self._from_file(*found), node.version
        except msgspec.MsgspecError as error:
            raise Corruption(NODE, f"the candidates of the last round cannot be read: {error}") from error

    def _from_file(self, path: str, crc: int) -> dict[str, int]:
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            return {}  # another round has replaced it at this moment
        if google_crc32c.value(content) != crc:
            return {}
        return msgspec.msgpack.decode(content, type=dict[str, int])

    def remember(self, candidates: Mapping[str, int], version: int | None) -> None:
        """Let these be the candidates, unless another round was faster."""
        value = content = msgspec.msgpack.encode(dict(candidates))
        former = self._file()
        fresh = None
        if len(candidates) > IN_NODE_MAX:
            fresh = f"{DIRECTORY}/{uuid.uuid4()}"
            with self._files.create(fresh) as file:
                file.write(content)
                file.sync()
            self._files.sync_directory(DIRECTORY)
            value = msgspec.msgpack.encode((fresh, google_crc32c.value(content)))
        unused = fresh
        with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # then they become candidates a round later
            self._coordination.put(NODE, value, version)
            unused = former
        if unused is not None and unused != self._file():
            with contextlib.suppress(OSError):
                self._files.delete(unused)

    def _file(self) -> str | None:
        node = self._coordination.read(NODE)
        with contextlib.suppress(msgspec.MsgspecError):
            found = None if node is None else msgspec.msgpack.decode(node.value, type=dict[str, int] | tuple[str, int])
            return found[0] if isinstance(found, tuple) else None
        return None
