"""From a put to a commit in the log: admission, order, the queue, and what is told to clients."""
