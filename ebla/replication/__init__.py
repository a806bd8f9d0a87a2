"""How the log of a tablet is kept on several servers: pure machines, events in, actions out. Not wired yet."""
