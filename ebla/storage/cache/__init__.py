"""Decoded blocks that are kept, and memory that is given back to the system."""
