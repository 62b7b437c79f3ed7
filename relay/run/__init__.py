"""Assembly, the worker's loop and process, the supervisor; clock, schedule, randomness and crash points."""
