"""Leading some of the tablets: a run of a server, and how tablets come to it and leave it."""
