"""The reference model of the store, and the tests that drive store and model side by side."""
