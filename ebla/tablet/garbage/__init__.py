"""What is kept and what goes: files that nobody names any more, and who holds on to others."""
