"""The METADATA of a table and its changes, as values. Pure: no I/O, no time, no chance."""
