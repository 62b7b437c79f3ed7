"""Delivery: effect, proof and position in one local transaction per destination."""
