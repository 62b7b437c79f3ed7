"""The cursor in PostgreSQL, and how rows take effect there."""
