"""The commands about rows: put, get, scan, erase, and rows in bulk."""
