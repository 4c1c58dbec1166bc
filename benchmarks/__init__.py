"""Benchmarks: `python -m benchmarks.NAME [--quick]` prints a table and, as the last line, its figures as JSON."""
