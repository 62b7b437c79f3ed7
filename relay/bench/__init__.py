"""Benchmarks: each measured side by side with its reference in one run, on the same machine."""
