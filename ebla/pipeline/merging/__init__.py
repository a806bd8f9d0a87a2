"""MERGE, UPDATE and DELETE: rows of a table changed by what others say, or by a condition, in one commit."""
