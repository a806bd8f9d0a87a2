"""Fragments read by other people's programs."""
