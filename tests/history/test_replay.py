"""Replay of a log: every decision is reproduced, or the first difference is reported with its history.

`fits.trained` replays every run.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Synchronous
from oddlot.core.commands import Command, Step
from oddlot.core.events import Event, Joined
from oddlot.core.records import Record
from oddlot.core.strategy import View
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.history.replay import replay
from oddlot.history.run_folder import RunFolder
from tests.fits import a_job, fleet, trained
from tests.sealed import reseal, rewrite
from tests.transcripts import check, raises, transcribe


@dataclass
class Cautious(Synchronous):
    """A user-defined strategy with its own state."""

    seen: list[int] = field(default_factory=list)

    def on(self, event: Event, view: View) -> list[Command]:
        self.seen = [*self.seen[-3:], view.version]
        return list(super().on(event, view))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trained(a_job(), Synchronous(), fleet(2), folder=RunFolder(tmp_path))
    return tmp_path


def test_replay_reproduces_every_decision(run: Path) -> None:
    found = replay(run)
    assert found.difference is None
    assert found.records == len((run / "records.jsonl").read_text().splitlines()) - 1
    assert found.conductor.done


def test_replay_imports_a_custom_strategy(tmp_path: Path) -> None:
    oddlot.fit(a_job(), Cautious(), fleet(2), until="epochs>=2", out=tmp_path)
    found = replay(tmp_path, import_strategy=True)
    assert found.difference is None
    assert isinstance(found.conductor.strategy, Cautious)
    assert found.conductor.strategy.seen[-1] == found.conductor.version


def test_first_difference_is_reported_with_its_history(run: Path) -> None:
    log = run / "records.jsonl"
    head, step, tail = log.read_text().partition('"is":"Step","shares":')
    log.write_text(head + step + tail.replace("0.5", "1.0"))
    reseal(log)
    line = head.count("\n") + 1
    found = replay(run)
    assert found.difference
    assert (found.difference.line, found.records) == (line, line - 2)
    assert isinstance(found.difference.history[0].event, Joined)
    assert isinstance(found.difference.now, Record)
    steps = [record.actions[0] for record in (found.difference.record, found.difference.now)]
    assert [{*step.shares.values()} for step in steps if isinstance(step, Step)] == [{1.0}, {0.5}]
    transcribe(str(found.difference), number=r"\d\.\d{3,}(e-\d+)?")


def test_changed_remark_or_impossible_event_is_a_difference(run: Path) -> None:
    rewrite(run / "records.jsonl", lambda lines: lines[5].update(remark="echo"))
    remarked = replay(run).difference
    rewrite(run / "records.jsonl", lambda lines: lines[2].update(lines[1]))
    joined_twice = replay(run).difference
    assert remarked
    assert joined_twice
    assert (remarked.line, joined_twice.line) == (6, 3)
    check(joined_twice.now, "node_joined_twice", node="m0")


def test_damaged_log_is_reported_with_its_line(run: Path) -> None:
    log = run / "records.jsonl"
    whole = log.read_bytes()
    damaged = whole.replace(b'"is":"Arrived"', b'"is":"Arr\xffved"', 1)
    arrived = whole[: whole.index(b'"is":"Arrived"')].count(b"\n") + 1
    for content, line in ((damaged, arrived), (b"{}\n" + whole.partition(b"\n")[2], 1), (b"", 1)):
        log.write_bytes(content)
        with raises(CheckpointError, "damaged_file", path=str(log), line=line):
            replay(run)


def test_missing_run_raises_no_run(tmp_path: Path) -> None:
    with raises(CheckpointError, "no_run", path=str(tmp_path)):
        replay(tmp_path)
    with raises(UsageError, "invalid_value", name="folder", given=3):
        replay(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place", ["__main__:Mine", "no.such.module:Mine", "tests.history.test_replay:Nobody", "", ":", "sys"]
)
def test_missing_strategy_raises_strategy_not_importable(run: Path, place: str) -> None:
    rewrite(run / "records.jsonl", lambda lines: lines[0]["conductor"]["strategy"].update({"is": place}))
    with raises(UsageError, "strategy_not_importable", strategy=place):
        replay(run, import_strategy=True)
    assert replay(run, Synchronous).difference is None


@pytest.mark.parametrize(
    ("place", "rejected"),
    [
        ("this:Zen", "this:Zen"),
        ("oddlottery:Mine", "oddlottery:Mine"),
    ],
)
def test_custom_strategy_is_not_imported_by_default(run: Path, place: str, rejected: str) -> None:
    rewrite(run / "records.jsonl", lambda lines: lines[0]["conductor"]["strategy"].update({"is": place}))
    with raises(UsageError, "import_not_allowed", strategy=rejected):
        replay(run)
    assert "this" not in sys.modules


def test_strategies_of_all_segments_are_found(tmp_path: Path) -> None:
    """The given class stands for its own segment. Classes of other packages are not imported by default."""
    for strategy in (Synchronous(), Cautious(), Synchronous()):
        settings: dict[str, Any] = {"resume": "auto", "new_segment": True, "out": tmp_path}
        until = f"versions>={3 * len(list(tmp_path.rglob('0*'))) + 3}"
        oddlot.fit(a_job(), strategy, fleet(2), until=until, **settings)
    assert replay(tmp_path, Cautious).difference is None
    assert replay(tmp_path, import_strategy=True).difference is None

    def rename(lines: list[dict[str, Any]]) -> None:
        segments = [line["event"]["segment"] for line in lines[1:] if "segment" in line["event"]]
        segments[0]["strategy"]["is"] = "this:Zen"

    rewrite(tmp_path / "records.jsonl", rename)
    with raises(UsageError, "import_not_allowed", strategy="this:Zen"):
        replay(tmp_path, Synchronous)


def test_log_of_another_strategy_raises_other_strategy(run: Path) -> None:
    with raises(CheckpointError, "other_strategy", line=1, strategy="Strange"):
        replay(run, Strange)


@dataclass
class Strange(Synchronous):
    """A strategy that needs data which the log does not have."""

    key: dict[str, int] = field(kw_only=True)


def test_replay_imports_no_pytorch(run: Path) -> None:
    """A replay needs no PyTorch, and neither the job's code nor its data."""
    program = (
        "import sys, oddlot.history.replay as r; r.replay(sys.argv[1]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, run], check=False).returncode == 0
