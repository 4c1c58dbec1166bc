"""A log fed to fresh books: alike, or the first difference with its history. `fits.trained` replays every run."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Synchronous
from oddlot.core.errors import CheckpointError, UsageError
from oddlot.core.strategy import View
from oddlot.core.words import Command, Event
from oddlot.report.replay import replay
from oddlot.run_folder import RunFolder
from tests.fits import a_job, fleet, trained


@dataclass
class Cautious(Synchronous):
    """A strategy of the user's, with a state of its own."""

    seen: list[int] = field(default_factory=list)

    def on(self, event: Event, view: View) -> list[Command]:
        self.seen = [*self.seen[-3:], view.version]
        return list(super().on(event, view))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trained(a_job(), Synchronous(), fleet(2), folder=RunFolder(tmp_path))
    return tmp_path


def rewrite(run: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the log's lines, the first of which is its header."""
    log = run / "records.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    change(lines)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_is_decided_the_same_again(run: Path) -> None:
    found = replay(run)
    assert found.difference is None
    assert found.records == len((run / "records.jsonl").read_text().splitlines()) - 1
    assert found.conductor.done


def test_a_strategy_of_the_user_s_is_found_where_it_is_defined(tmp_path: Path) -> None:
    oddlot.fit(a_job(), Cautious(), fleet(2), until="epochs>=2", out=tmp_path)
    found = replay(tmp_path)
    assert found.difference is None
    assert isinstance(found.conductor.strategy, Cautious)
    assert found.conductor.strategy.seen[-1] == found.conductor.version


def test_the_first_difference_is_shown_with_its_history(run: Path) -> None:
    steps: list[int] = []

    def double(lines: list[dict[str, Any]]) -> None:
        for number, line in enumerate(lines[1:], 2):
            for action in line["actions"]:
                if action["is"] == "Step":
                    steps.append(number)
                    action["shares"] = {update: 2 * share for update, share in action["shares"].items()}

    rewrite(run, double)
    found = replay(run)
    assert found.difference
    assert found.difference.line == steps[0]
    assert found.records == steps[0] - 2
    told = str(found.difference).splitlines()
    assert told[0].startswith(f"line {steps[0]} of the log differs")
    assert "Joined(node='m0'" in told[1]
    assert "log:  Step(shares={'m0:" in told[-2]
    assert ": 1.0, " in told[-2]
    assert "now:  " in told[-1]
    assert ": 0.5, " in told[-1]


def test_a_remark_counts_and_so_does_what_is_impossible(run: Path) -> None:
    def remark(lines: list[dict[str, Any]]) -> None:
        lines[5]["remark"] = "echo"

    rewrite(run, remark)
    found = replay(run)
    assert found.difference
    assert found.difference.line == 6

    def join_twice(lines: list[dict[str, Any]]) -> None:
        lines[2] = lines[1]

    rewrite(run, join_twice)
    found = replay(run)
    assert found.difference
    assert found.difference.line == 3
    assert "ProtocolError: m0 joined twice" in found.difference.now


def test_a_damaged_log_is_told_with_its_line(run: Path) -> None:
    log = run / "records.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"is":"Arrived"', b'"is":"Arr\xffved"', 1))
    with pytest.raises(CheckpointError, match=r"records\.jsonl:\d+ is damaged"):
        replay(run)
    rewrite_header = log.read_bytes().partition(b"\n")[2]
    log.write_bytes(b"{}\n" + rewrite_header)
    with pytest.raises(CheckpointError, match=r"records\.jsonl:1 is damaged"):
        replay(run)
    log.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"records\.jsonl:1 is damaged"):
        replay(run)


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run in"):
        replay(tmp_path)


@pytest.mark.parametrize(
    "place", ["__main__:Mine", "no.such.module:Mine", "tests.report.test_replay:Nobody", "", ":", "sys"]
)
def test_a_strategy_that_is_not_there_is_told(run: Path, place: str) -> None:
    rewrite(run, lambda lines: lines[0].update(strategy=place))
    with pytest.raises(UsageError, match=r"cannot be imported .* call oddlot\.replay\(folder, TheStrategy\)"):
        replay(run)
    assert replay(run, Synchronous).difference is None


def test_another_strategy_s_books_are_told(run: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no books of a Strange"):
        replay(run, Strange)


@dataclass
class Strange(Synchronous):
    """It needs what the log does not have."""

    key: dict[str, int] = field(kw_only=True)


def test_replaying_needs_no_tensors(run: Path) -> None:
    """It is for desks on which the job's code and data are not."""
    program = "import sys, oddlot.report.replay as r; r.replay(sys.argv[1]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program, run], check=False).returncode == 0
