"""Benchmark of huge output layers on a CPU: `python -m benchmarks.slide`."""

import os

# Must be set before PyTorch is imported. Waiting threads then sleep, in all systems.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
