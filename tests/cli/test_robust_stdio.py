"""stdout and stderr that are full, closed or broken pipes."""

import os
import subprocess
import sys
from errno import ENOSPC, EPIPE
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from oddlot.cli.robust_stdio import Lasting
from tests.command import Oddlot

SIMULATE = ("simulate", "job.toml", "--machines", "fleet.toml")
SUMMARY = Path("runs/job-simulated-1/summary.json")


class Failing(StringIO):
    """A stream without a descriptor. All writes fail."""

    def __init__(self, number: int = ENOSPC) -> None:
        super().__init__()
        self.error = OSError(number, os.strerror(number))

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("where", "code"),
    [("> /dev/full", 2), (">&- 2>&-", 0), pytest.param("| true", 0, marks=pytest.mark.long)],
)
def test_run_completes_without_its_output(oddlot: Oddlot, where: str, code: int) -> None:
    command = [sys.executable, "-m", "oddlot", *SIMULATE]
    script = ["bash", "-c", f'set -o pipefail; "$@" {where}', "bash"]
    done = subprocess.run([*script, *command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (os.strerror(ENOSPC) in done.stderr) == (code == 2)
    assert "Traceback" not in done.stderr
    assert SUMMARY.exists()


@pytest.mark.parametrize("flags", ["", "--json"])
def test_full_stdout_is_an_error(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setattr(sys, "stdout", Failing())
    oddlot.rejects("unwritable_stdout", *SIMULATE, *flags.split(), reason=os.strerror(ENOSPC))
    assert SUMMARY.exists()


@pytest.mark.parametrize(("stream", "number"), [("stdout", EPIPE), ("stderr", ENOSPC), ("stderr", EPIPE)])
def test_broken_pipes_and_full_stderr_are_ignored(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch, stream: str, number: int
) -> None:
    monkeypatch.setattr(sys, stream, Failing(number))
    assert oddlot(*SIMULATE, "--json").code == 0
    assert SUMMARY.exists()


def test_unencodable_characters_are_escaped() -> None:
    raw = BytesIO()
    stream = Lasting(TextIOWrapper(raw, encoding="ascii"))
    stream.write("pr\u00e9par\u00e9")
    stream.flush()
    assert raw.getvalue() == b"pr\\xe9par\\xe9"
