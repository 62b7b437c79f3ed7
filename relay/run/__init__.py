"""Configuration, assembly, worker processes, schedule and clock."""
