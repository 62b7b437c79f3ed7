"""Handlers: what takes messages from a queue, runs an application's functions on them and writes what came of it."""
