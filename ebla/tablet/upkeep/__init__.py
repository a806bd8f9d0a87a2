"""What a store does by itself to stay quick and small: flush, compaction, garbage, and what it may not let go."""
