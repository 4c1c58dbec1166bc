"""Commands that read a run or a file.

They execute no code of the current folder, and their output controls no terminal.
"""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from oddlot.core.events import Evaluated, Joined, UpdateRejected
from oddlot.core.records import Record
from oddlot.core.support.text import printable
from oddlot.history.metrics import Tally
from oddlot.report.live_view import Picture, summary
from tests.command import Oddlot

TITLE = "\x1b]0;x\x07"
SHOWN = r"\x1b]0;x\x07"


SCRIPT, MODULE = [str(Path(sys.executable).parent / "oddlot")], [sys.executable, "-m", "oddlot"]


@pytest.mark.parametrize(
    ("start", "command"),
    [
        (MODULE, "report ."),
        (SCRIPT, "report ."),
        pytest.param(SCRIPT, "watch .", marks=pytest.mark.long),
        pytest.param(SCRIPT, "replay .", marks=pytest.mark.long),
        pytest.param(MODULE, "train nothing:here", marks=pytest.mark.long),
    ],
)
def test_files_in_the_current_folder_are_not_imported(tmp_path: Path, start: list[str], command: str) -> None:
    for name in ("rich", "typer", "pydantic", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\nraise SystemExit(9)\n")
    done = subprocess.run(
        [*start, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not list(tmp_path.glob("ran-*"))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("oddlot: ")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (TITLE, SHOWN),
        ("a\tb\nc\u00e9 \u4e2d \U0001f600", "a\tb\nc\u00e9 \u4e2d \U0001f600"),
        ("\r\x7f\x9b\u2028\u202e", r"\r\x7f\x9b\u2028\u202e"),
    ],
)
def test_control_characters_are_escaped(given: str, shown: str) -> None:
    assert printable(given) == shown


def test_log_text_is_shown_without_control_characters() -> None:
    """Control characters are removed from the title, workers, metrics and rejections."""
    worker, metric = f"w{TITLE}[/b]", f"m{TITLE}"
    tally = Tally(64)
    tally(Record(0.0, Joined(worker)))
    tally(Record(1.0, Evaluated(0, {metric: 0.5})))
    tally(Record(1.0, UpdateRejected("w1:1", f"bad{TITLE}")))
    figures = tally.summary() | {"ended": f"ended{TITLE}", "ended_version": 0, "run_dir": f"r{TITLE}"}
    for drawn, count in ((Picture(TITLE, tally).draw(), 4), (summary(TITLE, figures, virtual=False), 4)):
        Console(file=(file := StringIO()), width=200).print(drawn)
        message = file.getvalue()
        assert "\x1b" not in message
        assert message.count(SHOWN) == count, message


@pytest.mark.parametrize("command", ["report", "watch", "replay"])
def test_escape_sequences_of_a_run_are_not_printed(oddlot: Oddlot, command: str) -> None:
    oddlot.json("simulate", "my_jobs:small", "--machines", "fleet.toml", "--out", "run")
    path = Path("run/run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"job": f"j{TITLE}"}))
    answer = oddlot(command, "run")
    assert answer.code == 0, answer.err
    assert "\x1b" not in answer.out + answer.err
    assert (f"j{SHOWN} with synchronous" in answer.out) == (command != "replay")
    lost = oddlot(command, f"no{TITLE}")
    assert (lost.code, f"no{SHOWN}" in lost.err, "\x1b" in lost.err) == (2, True, False)


@pytest.mark.parametrize(
    "command",
    [
        "train pipe.toml",
        "simulate digits --machines pipe.toml",
        "simulate my_jobs:small --machines fleet.toml --chaos pipe.toml",
        "simulate digits --machines traced.toml",
    ],
)
def test_named_pipe_is_rejected(oddlot: Oddlot, command: str) -> None:
    """A named pipe is rejected, because reading it would wait forever."""
    os.mkfifo("pipe.toml")
    Path("traced.toml").write_text(
        '[[machines]]\nname = "a"\nseconds_per_sample = 1\ndelay = { kind = "trace", file = "pipe.toml" }\n'
    )
    oddlot.rejects("not_a_file", *command.split(), path="traced.toml" if "traced" in command else "pipe.toml")
