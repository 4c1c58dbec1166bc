"""Benchmark of huge output layers on a CPU: `python -m benchmarks.slide`."""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # waiting threads sleep, in all systems; must be set before PyTorch is imported
