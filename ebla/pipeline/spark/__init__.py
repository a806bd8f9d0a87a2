"""Spark itself: its session and Java, types, progress, and what its errors say."""
