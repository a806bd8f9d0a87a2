"""The master: what tables there are, which servers keep their tablets, and what to tell those servers."""
