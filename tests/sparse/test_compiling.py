"""Kernels are compiled once, with a message, and then loaded from disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from oddlot.sparse.kernels import jit
from tests.transcripts import TESTS, transcribe

BEGIN = "from oddlot.sparse.kernels.jit import kernel\n"
CALLER = f"""{BEGIN}from oddlot.sparse.kernels.callee import one
@kernel
def more(number):
    return one() + number
"""
PROGRAM = """
from tests import compiled_once
compiled_once.install()
from oddlot.sparse.kernels.caller import more
print(more(1))
"""


@pytest.fixture
def callee(tmp_path: Path) -> Path:
    """Return the file of a kernel that another kernel calls, in an otherwise empty package."""
    kernels = tmp_path / "oddlot" / "sparse" / "kernels"
    kernels.mkdir(parents=True)
    for folder in (kernels, kernels.parent, kernels.parent.parent):
        (folder / "__init__.py").touch()
    shutil.copy(jit.__file__, kernels / "jit.py")
    (kernels / "caller.py").write_text(CALLER)
    return kernels / "callee.py"


def called(path: Path, processes: int = 1) -> tuple[set[int], list[str]]:
    """Return the results of the calling kernel in all processes, and the lines of their stderr."""
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"NUMBA_CACHE_DIR": str(path / "cache"), "PYTHONPATH": f"{path}:{TESTS.parent}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    message = [process.communicate() for process in begun]
    return {int(out) for out, _ in message}, [line for _, err in message for line in err.splitlines()]


def test_kernel_is_recompiled_when_its_callee_changes(callee: Path, tmp_path: Path) -> None:
    """The file of the calling kernel is unchanged. Only the process that compiles shows the message."""
    callee.write_text(f"{BEGIN}@kernel\ndef one():\n    return 1\n")
    found, message = called(tmp_path, processes=2)
    assert found == {2}
    assert len(message) == 1
    transcribe(*message)
    callee.write_text(f"{BEGIN}@kernel\ndef one():\n    return 5\n")
    assert called(tmp_path) == ({6}, message)


def test_kernels_compile_without_a_writable_cache(
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
