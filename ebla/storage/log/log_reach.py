"""How far a log reaches, told after every sync, in a place of its own.

    log-reach/<server>   | magic 4 | zero 4 | segment 8 | synced bytes 8 | crc32c 4 | zero 4 |     32 bytes, overwritten

The record in the coordination service (log_extent.py) follows the log by seconds, since each change of it is a sync.
This file is overwritten after every sync of the log, before anything in it is acknowledged, and is never synced itself:
to write 32 bytes to a page that is in memory costs two microseconds. So when a process is killed, what it has
acknowledged is known to the byte. A power cut may leave an older content. That is true as well, as the log only grows:
*the file never says more than the log durably holds.*

What cannot be read counts for nothing, and neither does a file that tells of less than the record: a store opens
without it, and `verify` tells so. It is no part of the log's directory, so that it does not go with it.
"""

from __future__ import annotations

import logging
import struct

import google_crc32c

from ebla.errors import TooManyFiles
from ebla.retry import RACES
from ebla.storage.files.files import Files, OverwrittenFile

__all__ = ["LogReach", "find_reach_problem", "read_reach"]

_MAGIC = b"\xebLR\x01"
_REACH = struct.Struct("<4s4xQQ")
_CRC = struct.Struct("<I4x")

_log = logging.getLogger(__name__)


def read_reach(files: Files, server: str) -> tuple[int, int]:
    """Return the newest segment of a server's log that is told of, and how much of it is durable; zeros if none is."""
    told = _read(files, server)
    return (0, 0) if isinstance(told, str) else told


def find_reach_problem(files: Files, server: str) -> str:
    """Return which file tells nothing of the log of a server, and why; nothing if it is whole."""
    told = ""
    for _ in RACES:  # its owner may be overwriting it
        found = _read(files, server)
        if not isinstance(found, str):
            return ""
        told = f"{_path(server)} {found}"
    return told


def _read(files: Files, server: str) -> tuple[int, int] | str:
    """Return what is told, or why nothing is."""
    try:
        data = files.read(_path(server))
    except TooManyFiles:
        raise
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error})"
    if len(data) == _REACH.size + _CRC.size:
        magic, sequence, synced = _REACH.unpack_from(data)
        is_whole = _CRC.unpack_from(data, _REACH.size)[0] == google_crc32c.value(data[: _REACH.size])
        if magic == _MAGIC and is_whole:
            return sequence, synced
    return "is damaged"


class LogReach:
    """Tells how far the log of one server reaches. One thread at a time, that which writes the log."""

    def __init__(self, files: Files, server: str) -> None:
        # Set once.
        self._files = files
        self._server = server
        # Made by the first who tells something; None also after an error.
        self._file: OverwrittenFile | None = None
        self._has_failed = False

    def tell(self, sequence: int, synced: int) -> None:
        """Tell that so many bytes of a segment are durable. If that fails, less is known, and nothing else is wrong."""
        if self._has_failed:
            return
        try:
            self._overwrite(sequence, synced)
        except OSError as error:
            self._has_failed = True
            _log.warning("how far the log reaches is on record every few seconds only: %s", error)

    def forget(self) -> None:
        """Tell nothing: part of what was told is lost, and given up. `OSError` if that fails."""
        self._overwrite(0, 0)
        self.close()

    def _overwrite(self, sequence: int, synced: int) -> None:
        if self._file is None:
            self._file = self._files.open_overwritten(_path(self._server))
        told = _REACH.pack(_MAGIC, sequence, synced)
        self._file.overwrite(told + _CRC.pack(google_crc32c.value(told)))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _path(server: str) -> str:
    return f"log-reach/{server}"
