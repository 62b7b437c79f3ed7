"""The relay among seeded accidents: what happens is planned, written down, watched by a reader and audited."""
