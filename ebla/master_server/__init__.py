"""The process of a master: it keeps METADATA with the others, leads by lease, and answers servers and clients."""
