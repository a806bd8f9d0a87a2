"""Tables as streams, streams into tables, and mirrors made of both."""
