"""Benchmarks of training with hostile workers and untrusted data."""
