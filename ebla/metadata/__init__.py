"""METADATA: what a table is made of, changed by transactions that are durable before they count."""
