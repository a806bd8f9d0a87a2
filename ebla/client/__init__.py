"""What a user's program holds: databases, tables, scans and snapshots."""
