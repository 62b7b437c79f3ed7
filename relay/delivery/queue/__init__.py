"""Queue routes: a table route whose effect is a put into a queue."""
