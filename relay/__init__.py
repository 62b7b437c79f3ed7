"""The relay: captured with the database, relayed exactly once."""

__version__ = "0.1.0"
