"""The monitor topic: evidence of what was delivered, and recovery by that evidence."""
