"""The log: its bytes, who writes it, who reads it, and how its beginning is removed."""
