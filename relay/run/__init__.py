"""Assembly, the worker's loop and process, the supervisor."""
