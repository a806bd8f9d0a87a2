"""A DataFrame or files into a table, in one commit."""
