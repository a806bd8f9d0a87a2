"""Fragments: sorted Parquet files, how they are written, found by row, and read."""
