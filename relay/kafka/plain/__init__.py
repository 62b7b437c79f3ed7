"""Clients as anybody writes them, without anything of the relay: what benchmarks measure against, and strangers in trials."""
