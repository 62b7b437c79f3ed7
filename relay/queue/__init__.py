"""The intelligent queue: states of every message for its publisher and each subscriber, the same on every medium."""
