"""Kafka and PostgreSQL on this machine for the demo, development and tests."""
