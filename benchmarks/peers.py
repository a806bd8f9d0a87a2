"""The stores that Ebla is measured against, each through the calls that its own users would make.

Every write is durable when the call returns. What is not said here is the peer's default.

    rocksdict  raw mode (bytes in, bytes out), sync=True, lz4 as Ebla has, bloom filter of 10 bits a key, and a block
               cache as large as Ebla's block and row cache together (its default is far smaller)
    lmdb       sync on commit, one transaction a batch, `putmulti`
    sqlite     WAL with synchronous=FULL, `WITHOUT ROWID` on the key, `executemany` and one commit a batch
    duckdb     primary key on the row, inserts from an Arrow batch, one commit each

Each is imported by whoever uses it: where memory is measured, it is Ebla's.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from ebla.settings import Settings

CACHE_BYTES = Settings().block_cache_bytes + Settings().row_cache_bytes
Pairs = Sequence[tuple[bytes, bytes]]


class Rocks:
    """rocksdict, a binding of RocksDB."""

    def __init__(
        self,
        path: Path,
        write_buffer_bytes: int | None = None,
        compacts: bool = True,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        if write_buffer_bytes is not None:
            options.set_write_buffer_size(write_buffer_bytes)
        options.set_disable_auto_compactions(not compacts)
        blocks = rocksdict.BlockBasedOptions()
        self._cache = rocksdict.Cache(cache_bytes)  # must outlive the store
        blocks.set_block_cache(self._cache)
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        self._compacts = compacts
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True
        self._new_batch = rocksdict.WriteBatch
        self.db = rocksdict.Rdict(str(path), options=options)
        self.get: Callable[[Any], Any] = self.db.get  # of one key, or of a list of keys: its multi-get

    def put_batch(self, pairs: Pairs) -> None:
        """Write the pairs as one synced WriteBatch."""
        batch = self._new_batch(raw_mode=True)
        put = batch.put
        for key, value in pairs:
            put(key, value)
        self.db.write(batch, self._synced)

    def put_each(self, pairs: Pairs) -> None:
        """Write the pairs one at a time, each synced."""
        put, synced = self.db.put, self._synced
        for key, value in pairs:
            put(key, value, synced)

    def scan(self) -> list[tuple[bytes, bytes]]:
        """Read everything in key order by the iterator."""
        return list(cast(Any, self.db.items()))

    def flush(self) -> None:
        """Write the memory tables to disk and wait for it."""
        self.db.flush()

    def compact(self) -> None:
        """Make one sorted run of everything: the state in which it reads fastest."""
        self.db.flush()
        self.db.compact_range(None, None)

    def settle(self) -> None:
        """Wait until no compaction is running or pending, but not for ever."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._is_compacting():
            time.sleep(0.02)

    def _is_compacting(self) -> bool:
        if not self._compacts:
            return False
        return bool(
            self.db.property_int_value("rocksdb.num-running-compactions")
            or self.db.property_int_value("rocksdb.compaction-pending")
        )

    def files(self) -> int:
        """Return how many table files it has."""
        return len(self.db.live_files())

    def close(self) -> None:
        """Close the store."""
        self.db.close()


class Lmdb:
    """lmdb, a memory-mapped B+tree."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=64 << 30)

    def put_batch(self, pairs: Pairs) -> None:
        """Write the pairs in one synced transaction."""
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs)

    def get_each(self, keys: Sequence[bytes]) -> int:
        """Read the keys one at a time in one read transaction; return how many were found."""
        with self._env.begin() as transaction:
            get = transaction.get
            return sum(get(key) is not None for key in keys)

    def scan(self) -> list[tuple[bytes, bytes]]:
        """Read everything in key order."""
        with self._env.begin() as transaction:
            return list(transaction.cursor())

    def close(self) -> None:
        """Close the store."""
        self._env.close()


class Sqlite:
    """SQLite from the standard library."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        run = self._connection.execute
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        run(f"PRAGMA cache_size=-{CACHE_BYTES // 1024}")
        run(
            'CREATE TABLE IF NOT EXISTS t ("row" BLOB PRIMARY KEY, id INTEGER, amount REAL, name TEXT, note TEXT) '
            "WITHOUT ROWID"
        )

    def put_batch(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write the rows in one synced transaction."""
        run = self._connection.execute
        run("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?, ?, ?, ?)", rows)
        run("COMMIT")

    def get_each(self, keys: Sequence[bytes]) -> int:
        """Read the keys one at a time; return how many were found."""
        run = self._connection.execute
        return sum(run('SELECT * FROM t WHERE "row" = ?', (key,)).fetchone() is not None for key in keys)

    def scan(self) -> list[tuple[Any, ...]]:
        """Read everything in key order."""
        return self._connection.execute('SELECT * FROM t ORDER BY "row"').fetchall()

    def close(self) -> None:
        """Close the store."""
        self._connection.close()


class Duck:
    """DuckDB with a table of its own."""

    def __init__(self, path: Path) -> None:
        import duckdb

        self._connection = duckdb.connect(str(path))
        self._connection.execute("SET enable_progress_bar = false")
        self._connection.execute(
            'CREATE TABLE IF NOT EXISTS t ("row" BLOB PRIMARY KEY, id BIGINT, amount DOUBLE, '
            "name VARCHAR, note VARCHAR)"
        )

    def put_batch(self, batch: Any) -> None:
        """Write an Arrow batch in one durable transaction."""
        self._connection.register("batch", batch)
        self._connection.execute("INSERT OR REPLACE INTO t SELECT * FROM batch")

    def load(self, table: Any) -> None:
        """Write a whole Arrow table in one transaction: set-up for reads, never timed."""
        self._connection.register("batch", table)
        self._connection.execute("INSERT INTO t SELECT * FROM batch")
        self._connection.execute("CHECKPOINT")

    def scan(self, ordered: bool) -> Any:
        """Read everything to an Arrow table, in key order if asked to."""
        order = ' ORDER BY "row"' if ordered else ""
        return self._connection.sql("SELECT * FROM t" + order).to_arrow_table()

    def close(self) -> None:
        """Close the store."""
        self._connection.close()
