"""Benchmark of the Ray engine: see `__main__`."""
