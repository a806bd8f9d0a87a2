"""The store in this process as a service: what clients ask for, carried out by the engine."""
