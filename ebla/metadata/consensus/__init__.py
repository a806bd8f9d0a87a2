"""One metadata server's part in the METADATA of a table, as state machines without I/O."""
