"""Records: the one shape of rows in memory, in the log and in files."""
