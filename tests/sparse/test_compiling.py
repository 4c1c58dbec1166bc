"""Kernels are compiled once, with a word; then they come from disk."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
from oddlot.sparse.kernels.chance import below, mixed
assert 0 <= below(mixed(1), 10) < 10
"""


def said(cache: Path) -> list[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line for line in done.stderr.splitlines() if "compiling" in line]


def test_it_is_said_once_that_kernels_are_compiled(tmp_path: Path) -> None:
    assert said(tmp_path) == [
        "compiling kernels for this machine: some seconds, kept on disk for the next time"
    ]
    assert said(tmp_path) == []
