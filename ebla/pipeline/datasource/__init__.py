"""Spark's format("ebla") in batches: its options, how it reads, and how it writes."""
