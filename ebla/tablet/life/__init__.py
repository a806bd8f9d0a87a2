"""What becomes of tables and tablets: made, loaded, altered, cloned, split, joined, dropped."""
