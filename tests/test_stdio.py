"""stdout and stderr that are full, closed or gone."""

import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from oddlot.stdio import Lasting
from tests.command import FLEET, JOB, MY_TASKS


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize(
    ("where", "code"), [("> /dev/full", 2), ("| true", 0), (">&-", 0), ("2> /dev/full", 0), ("2>&-", 0)]
)
def test_a_run_outlives_its_output(tmp_path: Path, where: str, code: int, flags: tuple[str, ...]) -> None:
    for name, text in {"fleet.toml": FLEET, "job.toml": JOB, "my_tasks.py": MY_TASKS}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "oddlot", "simulate", "job.toml", "--machines", "fleet.toml", *flags]
    script = ["bash", "-c", f'set -o pipefail; "$@" {where}', "bash"]
    done = subprocess.run([*script, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("stdout cannot be written: No space left" in done.stderr) == (where == "> /dev/full")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/job-simulated-1/summary.json").exists()


def test_what_an_encoding_has_not_is_spelt_out() -> None:
    raw = BytesIO()
    stream = Lasting(TextIOWrapper(raw, encoding="ascii"))
    stream.write("pr\u00e9par\u00e9")
    stream.flush()
    assert raw.getvalue() == b"pr\\xe9par\\xe9"


def test_a_stream_without_a_descriptor_may_fail_too() -> None:
    class Full(StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    stream = Lasting(Full())
    assert stream.write("lost") == 4
    assert stream.problem == "No space left on device"
