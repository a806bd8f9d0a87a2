"""Which tests stay in one process where they are shared out among several: those with Spark, ZooKeeper, or a cluster.

Starting any of them is dearer than what the tests do with it, and a Java that has run for a while is faster. The
process that shares them out knows a test by its address alone, so the text of its file says what it needs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_TESTS = Path(__file__).resolve().parent.parent
_NEEDS = {
    "spark": re.compile(r"\bspark\b"),
    "zookeeper": re.compile(r"\bzookeeper_server\b"),
    "cluster": re.compile(r"\bdef cluster\("),
}


class SharingOut(LoadScopeScheduling):
    """Gives every test to the process that asks for one, but for those that stay together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return a name that is the same for tests that stay in one process."""
    file, _, name = nodeid.partition("::")
    return server_of(file) or ("zookeeper" if "[zookeeper" in name else nodeid)


@cache
def server_of(file: str) -> str | None:
    """Return which server the tests of a file need, if any."""
    text = (_TESTS.parent / file).read_text()
    return next((name for name, needed in _NEEDS.items() if needed.search(text)), None)
