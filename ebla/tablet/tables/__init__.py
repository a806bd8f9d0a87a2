"""Open tables: their state, their tablets' states, who may pass, and who is told of changes."""
