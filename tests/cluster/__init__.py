"""Whole clusters, as processes, under load and under attack."""
