"""Real processes that are killed, and what the next one finds."""
