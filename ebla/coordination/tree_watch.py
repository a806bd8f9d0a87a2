"""Watching whole trees with watches that fire once: the part of it that does not know ZooKeeper.

    a znode changes --> its one-time watch fires --> look at the znode again, which arms it anew --> call back
                                                     new children are armed too, all the way down

The order is what keeps the promise that no change is missed: the callback runs after everything is armed again, so
what happened before that is seen by whoever reads in the callback, and what happens later fires again. Several changes
may become one call, and after a lost connection every watch is called: its one-time watches went with the connection.

One thread does this for all watches of a client. `look` asks the service for one znode with one-time watches on its
data and its children, and returns its children, or None if it is not there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from ebla.coordination.service import Watch
from ebla.coordination.watches import WatchList, covering
from ebla.errors import EblaError

__all__ = ["TreeWatcher"]

_log = logging.getLogger(__name__)

# Look at several znodes at once; for each, the paths of its children, or None if there is no such znode.
Look = Callable[[Sequence[str]], list[list[str] | None]]


class TreeWatcher:
    """All watches of one client, and the thread that calls them back."""

    def __init__(self, look: Look, retry_seconds: float) -> None:
        # Set once.
        self._look = look
        self._retry_seconds = retry_seconds
        self._watches = WatchList()
        self._changed = threading.Condition()
        self._fired: set[str] = set()  # guarded by _changed, as the next three
        self._everything = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._arming = threading.RLock()
        self._armed: set[str] = set()  # guarded by _arming

    def watch(self, path: str, callback: Callable[[str], None]) -> Watch:
        """Arm everything at and below `path`, so that every later change calls back."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ebla-coordination-watch", daemon=True)
                self._thread.start()
        watch = self._watches.add(path, callback)
        try:
            with self._arming:
                if path not in self._armed:
                    self._arm([path], {path})
        except BaseException:
            watch.cancel()
            raise
        return watch

    def fired(self, path: str) -> None:
        """Take note that the one-time watch of a znode fired. Called from any thread; returns at once."""
        with self._changed:
            self._fired.add(path)
            self._changed.notify()

    def connected(self) -> None:
        """Take note that one-time watches were lost. Called from any thread; returns at once."""
        if not self._watches.paths():
            return  # nothing was armed, or is being armed
        with self._changed:
            self._everything = True
            self._changed.notify()

    def stop(self) -> None:
        """Call nobody any more."""
        self._watches.clear()
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._fired or self._everything or self._stopped):
                    self._changed.wait()
                if self._stopped:
                    return
                fired, self._fired = self._fired, set()
                everything, self._everything = self._everything, False
            try:
                with self._arming:
                    roots = self._watches.paths()
                    if everything:
                        self._armed.clear()
                    again = roots if everything else {path for path in fired if not roots.isdisjoint(covering(path))}
                    self._arm(sorted(again), roots)
            except EblaError as error:
                if not self._stopped:
                    _log.warning("the watches cannot be set anew yet, will try again: %s", error)
                with self._changed:
                    self._everything = True
                    self._changed.wait(self._retry_seconds)
                continue
            self._watches.fire(None if everything else fired)

    def _arm(self, paths: Iterable[str], roots: set[str]) -> None:
        """Arm these, and everything below them that is not armed yet."""
        asked = list(paths)
        while asked:
            self._armed.difference_update(asked)
            found = self._look(asked)
            following: dict[str, None] = {}
            for path, children in zip(asked, found, strict=True):
                # A root that is missing is armed for its creation; any other would be seen by its parent.
                if children is not None or path in roots:
                    self._armed.add(path)
                following.update(dict.fromkeys(children or ()))
            asked = [path for path in following if path not in self._armed]
