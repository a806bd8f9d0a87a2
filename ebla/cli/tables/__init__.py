"""The commands about tables and tablets: make, describe, alter, name, cut."""
