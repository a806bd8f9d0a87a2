"""Coordination: a few small values that everybody agrees on, changed by compare-and-set, and leases with epochs."""
