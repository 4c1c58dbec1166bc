"""Benchmark of VC-ASGD on preempted machines: see `__main__`."""
