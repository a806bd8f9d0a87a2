"""A whole cluster on one host: its processes started, looked at and stopped, and the file that names them."""
