"""METADATA on disk and in the coordination service: who stores it, changes it, and finds it."""
