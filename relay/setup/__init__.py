"""Before anything runs: what must be there is looked at, and what is the relay's own is made."""
