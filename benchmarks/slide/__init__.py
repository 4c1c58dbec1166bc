"""Huge output layers on a CPU: `python -m benchmarks.slide`."""
