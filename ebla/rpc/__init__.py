"""Requests and replies between processes, over Arrow Flight: frames, a server, a channel. Knows no engine."""
