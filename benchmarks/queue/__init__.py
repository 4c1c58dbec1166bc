"""Benchmarks of the queue: ordering, prediction, parking, and a real queue."""
