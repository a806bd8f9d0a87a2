"""Settings are values: frozen, with their units in their names, passed in where they are used.

Nothing in the package reads the environment; the command line does, and builds a `Settings` from it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from ebla.errors import RequestError, shown

KIB = 1024
MIB = 1024 * KIB


# Of these whole numbers 0 has a meaning: nothing of it, or never.
_MAY_BE_ZERO = (
    "close_flush_bytes",
    "tablet_bytes_max",
    "join_bytes_max",
    "block_cache_bytes",
    "row_cache_bytes",
    "lookup_bytes_max",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How an embedded store uses memory, disk and time. The defaults suit a process of well under 1 GiB."""

    # Limits on what is accepted.
    key_bytes_max: int = 64 * KIB
    value_bytes_max: int = 64 * MIB
    batch_bytes_max: int = 256 * MIB

    # Memory: writers wait while more than this is unwritten to the log, or unflushed in memory.
    queue_bytes_max: int = 32 * MIB
    memory_bytes_max: int = 128 * MIB
    # A flush starts when a table group holds this much, or the log as a whole `log_bytes_max`.
    flush_bytes: int = 48 * MIB
    # What may stay in the log when the store is closed, to be replayed by the next open.
    close_flush_bytes: int = 4 * MIB

    # Which table group is flushed first: the largest A * memory bytes + B * log bytes it holds back.
    flush_weight_memory: float = 1.0
    flush_weight_log: float = 0.25

    background_compaction: bool = True
    # Compaction merges fragments that lie on each other: from `min` of them on if their sizes are alike, from `max` on
    # whatever their sizes.
    compact_runs_min: int = 5
    compact_runs_max: int = 10
    # A tablet is split when it would have more than this after a compaction; neighbours that have this little together
    # are joined, if they have been so for a while. 0: never by itself. See tablet/life/shape.py.
    tablet_bytes_max: int = 512 * MIB
    join_bytes_max: int = 32 * MIB
    join_after_seconds: float = 3600.0
    # A tablet that was not read for this long lets go of what it holds in memory (0: never). See loader.py.
    tablet_idle_seconds: float = 600.0
    # These tables are loaded wholly when the store is opened, before anything else; others when they are read.
    load_first: tuple[str, ...] = ()
    # A compaction or a bulk load begins a new file when one has this size.
    fragment_bytes_max: int = 128 * MIB

    # The newest segment is read by every open, whatever of it is flushed; unless all was flushed at a clean close.
    log_segment_bytes: int = 16 * MIB
    log_bytes_max: int = 256 * MIB

    # Caches, each of all tables together.
    block_cache_bytes: int = 256 * MIB
    row_cache_bytes: int = 64 * MIB
    open_files_max: int = 256
    # Lookup files, by which single rows are found without decoding a block, take at most this much disk, of all tables
    # together (0: there are none). One is made where that pays, or of every fragment at once; they lie in the root of
    # the store, or in a directory of this machine. See docs/formats/lookup.md.
    lookup_bytes_max: int = 4096 * MIB
    lookup_at_once: bool = False
    lookup_directory: str = ""
    # Slots of the table that remembers recent row changes for conflict checks; a power of two.
    recent_row_slots: int = 1 << 18

    # Reads.
    scan_batch_rows: int = 65_536
    scan_window_bytes: int = 32 * MIB
    scan_threads: int = 2
    scanner_expiry_seconds: float = 300.0
    scanners_max: int = 1_000

    # Fragments that no table names any more are removed when they have been seen so in two rounds, this far apart.
    garbage_age_seconds: float = 900.0
    garbage_round_seconds: float = 60.0

    # A dropped table can be brought back for this long, and takes its space until then; 0: it is gone at once.
    drop_retention_seconds: float = 0.0

    # Time.
    history_seconds: float = 900.0
    clock_skew_seconds_max: float = 60.0
    clock_reserve_seconds: float = 2.0
    # ZooKeeper forgets the owner of a store that gave no sign of life for this long.
    owner_lease_seconds: float = 10.0
    # What keeps writers waiting for longer than this is told as a warning to the log of the process (0: nothing is).
    slow_seconds: float = 1.0
    # One in this many METADATA transactions saves the table as a whole; those in between save changes.
    metadata_snapshot_every: int = 32

    def __post_init__(self) -> None:
        """Raise `RequestError` for a number that cannot be: a store would wait for ever, or for nothing."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind = type(field.default)
            if kind is bool and not isinstance(value, bool):
                raise RequestError(f"settings: {field.name} is True or False, not {shown(value)}")
            if kind is tuple and (not isinstance(value, (tuple, list)) or not all(isinstance(n, str) for n in value)):
                raise RequestError(
                    f"settings: {field.name} is a list of names of tables, such as ['users'], not {shown(value)}"
                )
            if kind is str and not isinstance(value, str):
                raise RequestError(f"settings: {field.name} is a path, such as '/fast/lookup', not {shown(value)}")
            if kind not in (int, float):
                continue
            least = 0 if kind is float or field.name in _MAY_BE_ZERO else 1
            what = "a number" if kind is float else "a whole number"
            if isinstance(value, bool) or not isinstance(value, (int, kind)) or not least <= value < inf:
                raise RequestError(f"settings: {field.name} is {what}, {least} or more, not {shown(value)}")
