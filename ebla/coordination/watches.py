"""Who wants to hear of which change: the list of watches that an implementation keeps, and how it is fired.

    change of tables/7f3a  ->  watches of tables/7f3a, of tables, and of ""

No lock is held while a callback runs. A callback that raises is logged and the others are called all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

__all__ = ["WatchList", "covering"]

_log = logging.getLogger(__name__)


class _Watch:
    def __init__(self, watches: WatchList, path: str, callback: Callable[[str], None]) -> None:
        self.path = path
        self.callback = callback
        self.cancelled = False
        self._watches = watches

    def cancel(self) -> None:
        self._watches.remove(self)


class WatchList:
    """The watches of one client or of one store. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: dict[str, list[_Watch]] = {}  # guarded by _lock

    def add(self, path: str, callback: Callable[[str], None]) -> _Watch:
        """Register a callback for changes at or below `path`."""
        watch = _Watch(self, path, callback)
        with self._lock:
            self._by_path.setdefault(path, []).append(watch)
        return watch

    def remove(self, watch: _Watch) -> None:
        """Take a watch off the list; it may be off already."""
        with self._lock:
            watch.cancelled = True
            there = self._by_path.get(watch.path, [])
            if watch in there:
                there.remove(watch)
            if not there:
                self._by_path.pop(watch.path, None)

    def paths(self) -> set[str]:
        """Return the paths that are watched."""
        with self._lock:
            return set(self._by_path)

    def clear(self) -> None:
        """Cancel all of them."""
        with self._lock:
            for watches in self._by_path.values():
                for watch in watches:
                    watch.cancelled = True
            self._by_path.clear()

    def fire(self, changed: Iterable[str] | None) -> None:
        """Call every watch that covers one of the changed paths, once; all watches if `changed` is None."""
        with self._lock:
            paths: Iterable[str] = (
                [*self._by_path] if changed is None else {over: None for path in changed for over in covering(path)}
            )
            watches = [watch for path in paths for watch in self._by_path.get(path, ())]
        for watch in watches:
            if watch.cancelled:  # by a callback before this one, or by another thread meanwhile
                continue
            try:
                watch.callback(watch.path)
            except Exception:
                _log.exception("the callback of the watch on %r failed", watch.path)


def covering(path: str) -> Iterator[str]:
    """Yield the paths whose watches cover `path`: itself, those above it, and the empty one."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""
