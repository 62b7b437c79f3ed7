"""The cursor in an SQLite file, and how rows take effect there."""
