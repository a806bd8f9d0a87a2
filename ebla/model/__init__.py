"""What tables, keys and rows are: values without I/O, which everything else speaks of."""
