"""The log of a store that died, sorted into fragments by many tasks."""
