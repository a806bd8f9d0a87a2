"""How the keys of a table are spread, and cutting it by that."""
