"""`oddlot report` and `oddlot replay` of a run folder."""

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from oddlot import Asynchronous, Synchronous, fit
from oddlot.history.replay import replay
from oddlot.report.live_log import KILLED
from oddlot.report.run_report import RunReport
from tests.command import Oddlot
from tests.fits import a_job, equals
from tests.sealed import reseal
from tests.transcripts import check, transcribe

LOG, SUMMARY = Path("run/records.jsonl"), Path("run/summary.json")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of six merges, with checkpoints in another location."""
    folder = tmp_path_factory.mktemp("ended")
    saved = folder / "saved"
    fit(a_job(), Synchronous(), equals(1), until="epochs>=1", out=folder / "run", checkpoints=saved)
    return folder


@pytest.fixture
def lines(ended: Path, oddlot: Oddlot) -> list[str]:
    """Copy the run to the folder `run`, and return the lines of its log."""
    shutil.copytree(ended / "run", "run")
    return LOG.read_text().splitlines(keepends=True)


def test_run_is_reported_and_replayed(oddlot: Oddlot) -> None:
    ended = oddlot.json(
        "simulate", "digits", "--machines", "fleet.toml", "--until", "epochs>=1", "--out", "run"
    )
    message = oddlot("report", "run")
    assert message.code == 0
    transcribe(message.out, number=r"(?<=accuracy )[\d.]+|(?<=loss )[\d.]+|[\d.]+(?= a point)")
    figures = json.loads(oddlot("report", "run", "--json").out)
    assert {name: figures[name] for name in ended} == ended, "every figure is a function of the log"
    assert RunReport.read("run").virtual
    assert (figures["exactly_once"], figures["complete_epochs"], figures["audit_errors"]) == (True, 1, [])
    again = oddlot("replay", "run")
    assert again.code == 0
    assert replay("run").records == len(LOG.read_text().splitlines()) - 1
    transcribe(again.out)


def test_invalid_and_too_large_updates_are_counted_separately(oddlot: Oddlot) -> None:
    calls = count(1)

    def step(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss * {40: 1e6, 50: float("nan"), 60: float("nan")}.get(next(calls), 1.0)

    fit(a_job(loss=None, training_step=step), Asynchronous(), equals(1), until="epochs>=10", out="run")
    figures = json.loads(oddlot("report", "run", "--json").out)
    assert (figures["updates_invalid"], figures["updates_rejected"]) == (2, 1)
    assert figures["wasted"] == {"invalid": 16, "rejected": 8}
    assert "2 invalid, 1 too large" in oddlot("report", "run").out
    oddlot("report", "run", "--html", "page.html")
    assert "2 invalid, 1 too large" in Path("page.html").read_text()


def test_replay_of_a_custom_strategy_needs_import(oddlot: Oddlot, lines: list[str]) -> None:
    Path("my_strategy.py").write_text("from oddlot import Synchronous\n\nclass Mine(Synchronous): pass\n")
    LOG.write_text("".join(lines).replace("oddlot.strategies.synchronous:Synchronous", "my_strategy:Mine"))
    reseal(LOG)
    oddlot.rejects("import_not_allowed", "replay", "run", strategy="my_strategy:Mine")
    assert oddlot("replay", "run", "--import").code == 0


def test_replay_difference_and_double_merge_exit_with_1(oddlot: Oddlot, lines: list[str]) -> None:
    steps = [number for number, line in enumerate(lines) if '"is":"Step"' in line]
    doubled = [*lines[: steps[0] + 1], lines[steps[0]], *lines[steps[0] + 1 :]]
    del doubled[steps[-1] + 1]  # keeps the number of versions
    LOG.write_text("".join(doubled))
    reseal(LOG)
    answer = oddlot("replay", "run")
    assert answer.code == 1
    difference = replay("run").difference
    assert difference
    assert difference.line == steps[0] + 2
    assert str(difference) in answer.err
    answer = oddlot("report", "run", "--json")
    assert (answer.code, json.loads(answer.out)["exactly_once"]) == (1, False)
    check(RunReport.read("run").proof.faults[0], "merged_twice", first=0, last=7, updates=("m0:1", "m0:1"))


def test_missing_samples_in_a_complete_epoch_exit_with_1(oddlot: Oddlot, lines: list[str]) -> None:
    head, _, tail = "".join(lines).rpartition('{"is":"Step"')
    name = tail[tail.index("m0:") :].partition('"')[0]
    LOG.write_text(f'{head}{{"is":"Drop","update":"{name}"}}' + tail[tail.index("}") + 1 :].partition("}")[2])
    reseal(LOG)
    assert oddlot("report", "run").code == 1
    (fault,) = RunReport.read("run").proof.faults
    check(fault, "not_merged", epoch=0, count=8)


def test_incomplete_log_is_rejected(oddlot: Oddlot, lines: list[str]) -> None:
    LOG.write_text("".join(lines[:5]))
    for command in ("report", "replay"):
        oddlot.rejects("incomplete_log", command, "run", records=4, wanted=len(lines) - 1)


def no_history(lines: list[str]) -> list[str]:
    lines[[number for number, line in enumerate(lines) if '"is":"Start"' in line][3]] = lines[-1]
    return lines


@pytest.mark.parametrize(
    ("spoil", "code", "line"),
    [
        (no_history, "damaged_file", None),
        (lambda lines: [lines[0].replace('"size":48', '"size":"a"'), *lines[1:]], "damaged_file", 1),
        (lambda lines: [lines[0].replace('"format":4', '"format":9'), *lines[1:]], "other_format", None),
    ],
    ids=["no history", "no size", "format"],
)
def test_damaged_log_is_rejected(
    oddlot: Oddlot, lines: list[str], spoil: Callable[[list[str]], list[str]], code: str, line: int | None
) -> None:
    LOG.write_text("".join(spoil(lines)))
    reseal(LOG)
    answer = oddlot.rejects(code, "report", "run", path=str(LOG))
    assert answer.error
    assert answer.error.fields.get("line") == line


@pytest.mark.usefixtures("lines")
def test_damaged_or_different_summary_is_rejected(oddlot: Oddlot) -> None:
    SUMMARY.write_text(SUMMARY.read_text().replace('"samples_merged": 48', '"samples_merged": 49'))
    oddlot.rejects("summary_differs", "report", "run", figure="samples_merged", given=49, counted=48)
    for seconds in ('"abc"', "Infinity", "9" * 400, "[" * 200_000):
        SUMMARY.write_text(f'{{"ended":"","ended_version":1,"records":1,"seconds":{seconds}}}')
        oddlot.rejects("damaged_file", "report", "run", path=str(SUMMARY))


def test_folder_without_a_run_is_rejected(oddlot: Oddlot, ended: Path) -> None:
    for command in ("report", "replay", "watch"):
        oddlot.rejects("no_run", command, "nothing")
        oddlot.rejects("folder_of_checkpoints", command, str(ended / "saved"))


@pytest.mark.usefixtures("lines")
def test_running_run_is_reported_without_missing_files(oddlot: Oddlot) -> None:
    for name in ("summary.json", "model.safetensors"):
        Path("run", name).unlink()
    answer = oddlot("report", "run")
    assert answer.code == 0
    transcribe(answer.out, loss=r"(?<=loss )[\d.]+", accuracy=r"(?<=accuracy )[\d.]+")
    found = RunReport.read("run")
    assert (found.files[:-1], found.summary["ended"]) == ([LOG.name], KILLED)
