"""METADATA over the wire: the masters keep it together, and tablet servers have it read and changed by them."""
