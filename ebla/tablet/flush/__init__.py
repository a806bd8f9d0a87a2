"""Flushing: memory becomes fragments, and the log behind it goes."""
