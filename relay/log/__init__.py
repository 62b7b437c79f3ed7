"""The log side of a route: what was read, what is held, which lane waits, how far all is acknowledged."""
