"""Care by many tasks: compaction, garbage collection, verification."""
