"""Crashes and failures at every single operation of a scripted run, on a simulated disk."""
