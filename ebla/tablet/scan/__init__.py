"""Scans under way: windows, read-ahead, and at which txn."""
