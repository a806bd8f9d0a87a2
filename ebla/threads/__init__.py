"""Threads that work in the background, sleep until they are woken, and what a fork makes of them."""
