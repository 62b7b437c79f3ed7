"""The timed at-least-once copy from the log to a cursor."""
