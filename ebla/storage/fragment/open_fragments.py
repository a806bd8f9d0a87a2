"""The fragments of a store that are open: as many as there may be, least recently used closed first."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection

from ebla.errors import Closed, EblaError, MissingFile
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.fragment.fragment_file import FieldTypes
from ebla.storage.fragment.fragment_format import Tail
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.lookup.lookups import NO_LOOKUPS, Lookups

__all__ = ["OpenFragments", "told_as_is"]

# Files are closed, least recently used first, while the footers of those that are open take more than this, and more
# than half of the block cache; a few stay open.
FOOTER_BYTES_MAX = 64 << 20
OPEN_MIN = 8


def told_as_is(file: str, error: MissingFile) -> EblaError:
    """Return what to tell a reader of a file that is not there: just that."""
    return error


class OpenFragments:
    """The fragments that are open, least recently used closed first. Safe to use from several threads."""

    def __init__(
        self,
        files: Files,
        cache: BlockCache,
        open_max: int,
        explain: Callable[[str, MissingFile], EblaError] = told_as_is,
        lookups: Lookups = NO_LOOKUPS,
    ) -> None:
        """`explain` returns what to tell a reader of a file that is not there."""
        self.cache = cache
        self.lookups = lookups
        self.explain = explain
        self._files = files
        self._open_max = open_max
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: OrderedDict[tuple[str, int | None, str], Fragment] = OrderedDict()
        self._footer_bytes = 0
        self._used: set[str] = set()
        self._looked_up: dict[str, int] = {}  # how often rows were found by the lookup files, when that was asked last
        self._alive: weakref.WeakSet[Fragment] = weakref.WeakSet()  # some are read on after they are not among these
        self._is_closed = False

    def close(self) -> None:
        """Close all files, also those that somebody still has: he finds them closed."""
        self.lookups.close()
        with self._lock:
            self._is_closed = True
            alive = [*self._alive]
            self._open.clear()
            self._count(-self._footer_bytes)
        for fragment in alive:
            fragment.close()

    def find(self, file: str, constant_txn: int | None = None, types: str = "") -> Fragment | None:
        """Return a fragment if it is open; `types` is the key of the types that it was opened with."""
        key = (file, constant_txn, types)
        with self._lock:
            found = self._open.get(key)
            self._used.add(file)
            if found is not None:
                self._open.move_to_end(key)
            return found

    def take_used(self) -> set[str]:
        """Return the files that were asked for since the last time that this was asked."""
        with self._lock:
            used, self._used = self._used, set()
            uses = self.lookups.uses()
            used.update(file for file, count in uses.items() if count > self._looked_up.get(file, 0))
            self._looked_up = uses
        return used

    def forget(self, files: Collection[str]) -> None:
        """Let go of fragments that were replaced; whoever still reads one keeps it open."""
        self.lookups.forget(files)
        with self._lock:
            for key in [key for key in self._open if key[0] in files]:
                self._count(-self._open.pop(key).footer_bytes)

    def get(
        self,
        file: str,
        constant_txn: int | None = None,
        tail: Tail | None = None,
        types: FieldTypes | None = None,
    ) -> Fragment:
        """Return an open fragment, opening it if it is not, and then checking its end."""
        types_key = "" if types is None else types.key
        found = self.find(file, constant_txn, types_key)
        if found is not None:
            return found
        key = (file, constant_txn, types_key)
        try:
            fragment = Fragment(self._files, file, self.cache, constant_txn, tail, types)
        except MissingFile as error:
            raise self.explain(file, error) from None
        with self._lock:
            if self._is_closed:
                fragment.close()
                raise Closed("the store was closed: open it again")
            self._alive.add(fragment)
            known = self._open.get(key)
            if known is not None:
                return known
            self._open[key] = fragment
            self._count(fragment.footer_bytes)
            while len(self._open) > self._open_max or self._footers_are_large():
                self._count(-self._open.popitem(last=False)[1].footer_bytes)
        return fragment

    def _count(self, footer_bytes: int) -> None:
        """Count a footer in, or out. The lock is held."""
        self._footer_bytes += footer_bytes
        self.cache.reserve(footer_bytes)

    def _footers_are_large(self) -> bool:
        footer_bytes_max = max(FOOTER_BYTES_MAX, self.cache.bytes_max // 2)
        return len(self._open) > OPEN_MIN and self._footer_bytes > footer_bytes_max
