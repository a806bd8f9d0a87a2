"""Ebla: a tablet store for people who work in Python and Spark."""
