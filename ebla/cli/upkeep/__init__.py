"""The commands that keep a store well: backups, compaction, garbage, verification, repair."""
