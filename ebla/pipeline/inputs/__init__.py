"""Files that people bring: found, and read as Arrow batches in the process or as DataFrames by Spark."""
