"""Many sorted runs in, one answer out: for readers, for memory and for compaction."""
