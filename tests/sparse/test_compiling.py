"""Kernels are compiled once, with a word; then they come from disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from oddlot.sparse.kernels import jit

PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
from oddlot.sparse.kernels.chance import below, next_state
assert 0 <= below(next_state(1), 10) < 10
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


def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    """Though its own file is the same."""
    kernels = tmp_path / "oddlot" / "sparse" / "kernels"
    kernels.mkdir(parents=True)
    for folder in (kernels, kernels.parent, kernels.parent.parent):
        (folder / "__init__.py").touch()
    shutil.copy(jit.__file__, kernels / "jit.py")
    begin = "from oddlot.sparse.kernels.jit import kernel\n"
    (kernels / "caller.py").write_text(
        f"{begin}from oddlot.sparse.kernels.callee import one\n@kernel\ndef more():\n    return one() + 1\n"
    )
    command = [sys.executable, "-c", "from oddlot.sparse.kernels.caller import more; print(more())"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    found = []
    for number in (1, 5, 5):
        (kernels / "callee.py").write_text(f"{begin}@kernel\ndef one():\n    return {number}\n")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append((int(done.stdout), "compiling kernels" in done.stderr))
    assert found == [(2, True), (6, True), (6, False)]


def test_where_nothing_can_be_written_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusing(*given: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*given, **options)

    def twice(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(jit, "njit", refusing)
    assert jit.kernel(twice)(4) == 8
