"""Tables that others serve: the service behind `ebla.connect`, over RPC."""
