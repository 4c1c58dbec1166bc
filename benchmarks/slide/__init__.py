"""Huge output layers on a CPU: `python -m benchmarks.slide`."""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # threads that wait sleep, for all systems alike; read as PyTorch loads
