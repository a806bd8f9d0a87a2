"""Input that cannot be right: refused with a typed error, and nothing lost or half applied."""
