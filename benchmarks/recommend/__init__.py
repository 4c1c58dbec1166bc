"""Benchmarks of recommenders and of merging with hostile workers."""
