"""Capture: a message exists if and only if the database transaction that announced it committed."""
