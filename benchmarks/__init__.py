"""Measurements: `python -m benchmarks.NAME [--quick]` prints a table and one last line of JSON."""
