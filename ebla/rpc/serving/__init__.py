"""A `Service` behind RPC: the handlers that a server registers, and what they keep between requests."""
