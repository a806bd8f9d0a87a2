"""Lookup files: rows of a fragment laid out one by one, so that one is found without decoding a block."""
