"""Commands that run the processes of a cluster."""
