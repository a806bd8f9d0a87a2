"""Scans under way: windows, read-ahead, at which txn, and what is loaded before anybody asks."""
