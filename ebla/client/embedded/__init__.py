"""The store in this process: where it is, who owns it, and how it is opened."""
