"""Bulk jobs of processes that may not have the store open: what they write, commit and hold."""
