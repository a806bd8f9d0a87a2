"""Log, memory, fragments, merge and cache: how records are kept and read. No network, no tables, no clock."""
