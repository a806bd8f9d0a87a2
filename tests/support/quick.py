"""Which tests `make quick` runs: those that need neither Spark nor ZooKeeper, and do not take long.

What a test needs is told by the text of its file, as where tests are shared out. What takes long is listed here: tests
that crash, kill, compare or simulate by the thousand. `make test` runs all of them.
"""

from __future__ import annotations

from functools import cache

from tests.support.sharing_out import scope_of, server_of

# Folders and modules below tests/ of which each takes more than some seconds.
LONG = (
    "crash/",
    "recovery/",
    "reference/",
)


def is_quick(nodeid: str) -> bool:
    """Tell whether a test is a quick one, by its address."""
    return is_quick_file(nodeid.partition("::")[0]) and scope_of(nodeid) != "zookeeper"


@cache
def is_quick_file(file: str) -> bool:
    """Tell whether a file, by its path below the root of the project, may have quick tests."""
    return not file.removeprefix("tests/").startswith(LONG) and server_of(file) is None
