"""What changed in a table between two txns."""
