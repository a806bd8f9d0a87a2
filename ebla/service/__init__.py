"""The seam between whoever asks and whoever serves: requests and replies as values, and two small protocols."""
