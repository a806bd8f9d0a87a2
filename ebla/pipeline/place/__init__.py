"""Where the store of a job is, how tasks reach it, and what is held while they read."""
