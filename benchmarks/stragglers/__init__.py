"""Benchmark of stragglers: how many workers to wait for, and how many samples to give to each."""
