"""The one way to the disk: what is durable when, and files that are written past the page cache or closed late."""
