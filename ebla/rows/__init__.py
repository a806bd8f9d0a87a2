"""Whatever users call rows, as the batches that a store takes: exact types, nothing too large, nothing half right."""
