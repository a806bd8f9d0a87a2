"""Holding a store against its files: what is wrong, and what can be mended."""
