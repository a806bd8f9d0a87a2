"""The lookup files of a store, as whoever reads rows sees them: there, or not.

A reader asks for that of a fragment and, where there is none, says what the row has cost him; by that it is known which
are worth making. They are made elsewhere (tablet/life/lookup_maker.py). One that turns out damaged is let go of at
once, and the reader asks the fragment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa

from ebla.errors import TooManyFiles
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.lookup.lookup_file import LookupFile
from ebla.storage.lookup.lookup_format import Damaged, lookup_path
from ebla.storage.lookup.lookup_policy import is_worth_making
from ebla.storage.lookup.row_values import Elsewhere, RecordShape, Values

__all__ = ["NO_LOOKUPS", "Lookups", "lookup_files"]

_log = logging.getLogger(__name__)


class Lookups:
    """Open lookup files by fragment. Safe to use from several threads. Without `files`, there are none."""

    def __init__(
        self, files: Files | None, open_max: int = 0, reserve: Callable[[int], None] = lambda size_bytes: None
    ) -> None:
        """`reserve` is told how many bytes of memory their indexes take, and with a minus, took."""
        # Set once.
        self.files = files
        self._open_max = open_max
        self._reserve = reserve
        self._lock = threading.Lock()
        # Written under _lock; read without it. None: there is none.
        self._open: dict[str, LookupFile | None] = {}
        # Any reader adds to it, and may miss what another adds at the same moment.
        self._points: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        # Guarded by _lock.
        self._worth: set[str] = set()
        self._removed: set[str] = set()  # fragments whose lookup files were damaged, or not there
        self._used: dict[str, int] = {}
        self._found = 0
        # Counted by whoever finds one damaged.
        self.damaged_files = 0

    def of(self, fragment: str, fragment_bytes: int) -> LookupFile | None:
        """Return the lookup file of a fragment, if there is one."""
        try:
            return self._open[fragment]
        except KeyError:
            return None if self.files is None else self.look_for(fragment, fragment_bytes)

    def find(self, fragment: str, fragment_bytes: int, row: bytes) -> tuple[RecordShape, Values | None] | None:
        """Return the values of a row, None if the fragment has none, and their shape; None: ask the fragment."""
        file = self.of(fragment, fragment_bytes)
        if file is None:
            return None
        try:
            return file.shape, file.find(row)
        except Elsewhere:
            return None
        except (Damaged, OSError) as reason:
            self.let_go_damaged(fragment, reason)
            return None

    def find_many(
        self, fragment: str, fragment_bytes: int, rows: pa.Array, names: Collection[str] | None
    ) -> pa.RecordBatch | None:
        """Return the records of many rows, which are sorted, with the columns given or all; None: ask the fragment."""
        file = self.of(fragment, fragment_bytes)
        if file is None:
            return None
        try:
            return file.shape.batch(file.find_sorted(rows.to_pylist()), names)
        except Elsewhere:
            return None
        except (Damaged, OSError) as reason:
            self.let_go_damaged(fragment, reason)
            return None

    def look_for(self, fragment: str, fragment_bytes: int) -> LookupFile | None:
        """Open the lookup file of a fragment, one that was made meanwhile included; None if there is none."""
        assert self.files is not None, "only a store that may have some looks for one"
        found: LookupFile | None = None
        try:
            found = LookupFile(self.files, fragment, fragment_bytes)
        except FileNotFoundError:
            with self._lock:
                self._removed.add(fragment)  # if one was made: people may remove them at any time
        except TooManyFiles:
            return None
        except (Damaged, OSError) as reason:
            self._remove_damaged(fragment, reason)
        with self._lock:
            self._close(fragment)
            if found is not None:
                if sum(one is not None for one in self._open.values()) >= self._open_max:
                    self._close_one()
                self._reserve(found.index_bytes)
            self._open[fragment] = found
        return found

    def _close(self, fragment: str) -> None:
        """Let go of a file, if it is open. The lock is held."""
        known = self._open.pop(fragment, None)
        if known is not None:
            self._used[fragment] = self._used.get(fragment, 0) + known.used
            self._found += known.used
            self._reserve(-known.index_bytes)

    def _close_one(self) -> None:
        """Close the file that was used least. The lock is held."""
        least = min((one.used, fragment) for fragment, one in self._open.items() if one is not None)
        self._close(least[1])

    def let_go_damaged(self, fragment: str, reason: Exception) -> None:
        """Use a lookup file no more that cannot be read, and remove it: it is made again if it pays."""
        with self._lock:
            self._close(fragment)
            self._open[fragment] = None
        self._remove_damaged(fragment, reason)

    def _remove_damaged(self, fragment: str, reason: Exception) -> None:
        self.damaged_files += 1
        with self._lock:
            self._removed.add(fragment)
        _log.warning("the lookup file of %s is not used, and is removed: %s", fragment, reason)
        assert self.files is not None
        with contextlib.suppress(OSError):  # others may read the store only; then it is the owner's
            self.files.delete(lookup_path(fragment))

    def forget(self, fragments: Collection[str]) -> None:
        """Close the lookup files of fragments that nobody reads any more, or not for a while."""
        with self._lock:
            for fragment in fragments:
                self._close(fragment)
                self._points.pop(fragment, None)
                self._asked.pop(fragment, None)
                self._used.pop(fragment, None)

    def close(self) -> None:
        """Close all. Whoever reads one at this moment reads on."""
        with self._lock:
            for fragment in [*self._open]:
                self._close(fragment)

    # --- which are worth making ---

    def count_asked(self, fragment: str, rows: int) -> int:
        """Count rows of a fragment that are asked for many at once; return how many that are by now."""
        asked = self._asked[fragment] = self._asked.get(fragment, 0) + rows
        return asked

    def note_cost(self, fragment: str, records: int, points: int) -> None:
        """Say what a row has cost that was found in the fragment itself."""
        total = self._points.get(fragment, 0) + points
        if is_worth_making(records, total):
            with self._lock:
                self._worth.add(fragment)
                if self._open.get(fragment, fragment) is None:
                    del self._open[fragment]  # look once more: where stores are only read, another process makes them
            total = 0
        self._points[fragment] = total

    def take_worth(self) -> set[str]:
        """Return the fragments whose lookup file was found worth making since this was asked last."""
        with self._lock:
            worth, self._worth = self._worth, set()
        return worth

    def take_removed(self) -> set[str]:
        """Return the fragments whose lookup file was found damaged, or not there, since this was asked last."""
        with self._lock:
            removed, self._removed = self._removed, set()
        return removed

    def finds(self) -> int:
        """Return how many rows were looked for, in files of fragments that are gone too."""
        with self._lock:
            return self._found + sum(one.used for one in self._open.values() if one is not None)

    def uses(self) -> dict[str, int]:
        """Return how often rows were looked for in each file that is open, or was."""
        with self._lock:
            uses = dict(self._used)
            for fragment, one in self._open.items():
                if one is not None:
                    uses[fragment] = uses.get(fragment, 0) + one.used
        return uses


NO_LOOKUPS = Lookups(None)


def lookup_files(files: Files, settings: Settings, server: str) -> Files | None:
    """Return where a server has its lookup files, given the files of its store; None if it has none."""
    if not settings.lookup_bytes_max:
        return None
    return files if not settings.lookup_directory else LocalFiles(Path(settings.lookup_directory) / server)
