"""Replication at work: the machine of `ebla/replication`, driven by messages, the log of the run, METADATA and time."""
