"""What an operator's tools ask over HTTP: liveness, readiness, metrics, and a page; nothing here changes anything."""
