"""Resource managers: databases whose local transaction takes part in capture or delivery."""
