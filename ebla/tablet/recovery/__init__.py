"""Opening a store: who it is, which tables it has, and what the log still holds."""
