"""The strip of a training, from the log of a run."""

from pathlib import Path

import pytest

from oddlot import Machine, Run, Simulated, Synchronous, fit
from oddlot.core.commands import Step
from oddlot.core.events import Resumed
from oddlot.core.records import Record
from oddlot.demo.training_strip import COLUMNS, MAX_LANES, MAX_LOST, training_strip
from oddlot.faults import Chaos, Fault
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.history.segments import segments_of
from oddlot.report.run_report import RunReport
from tests.fits import a_job


def test_strip_counts_every_sample(digits_run: Path) -> None:
    """The lanes add up to the merged and the lost samples of the report."""
    report = RunReport.read(digits_run)
    strip = training_strip(report.records, "title")
    merged, wasted = report.tally.samples.merged, report.tally.samples.wasted.total()
    assert (strip["merged_samples"], strip["lost_samples"]) == (merged, wasted) == (144, wasted)
    assert sum(lane["samples"] for lane in strip["lanes"]) == merged
    assert abs(sum(sum(lane["merged"]) for lane in strip["lanes"]) - merged) < COLUMNS
    assert {len(lane[row]) for lane in strip["lanes"] for row in ("merged", "lost")} == {COLUMNS}
    assert strip["seconds"] == round(report.records[-1].now, 2)


def test_strip_names_the_workers_that_repeat_a_lost_part(digits_run: Path) -> None:
    strip = training_strip(RunReport.read(digits_run).records, "title")
    (lost,) = strip["lost"]
    assert (lost["worker"], lost["reason"], lost["samples"], strip["lost_tasks"]) == ("b", "lost", 4, 1)
    assert lost["again"]
    (end,) = (end for lane in strip["lanes"] for end in lane["ends"])
    assert (end["worker"], end["as"]) == ("b", "lost")
    (lane,) = (lane for lane in strip["lanes"] if lane["ends"])
    column = int(end["seconds"] / strip["seconds"] * COLUMNS)
    assert sum(lane["lost"][: column + 1]) > 0
    assert sum(lane["lost"][column + 1 :]) == 0


def test_strip_of_many_machines_is_short(tmp_path: Path) -> None:
    """Machines with few samples, and all but the first lost tasks, are only counted."""
    names = [f"m{number}" for number in range(MAX_LANES + 9)]
    machines = [Machine(name, 0.01, seconds_to_return=0.01) for name in names]
    chaos = Chaos([Fault("kill", every_seconds=0.02)])
    on = Simulated(machines, computes=False)
    fit(a_job(count=600), Synchronous(), on, until="epochs>=2", out=tmp_path, chaos=chaos)
    strip = training_strip(read_run_log(RunFolder(tmp_path)), "title")
    assert (len(strip["lanes"]), strip["machines"]) == (MAX_LANES, MAX_LANES + 9)
    assert len(strip["lost"]) == MAX_LOST < strip["lost_tasks"]
    shown = [int(lane["machine"].removeprefix("m")) for lane in strip["lanes"]]
    assert shown == sorted(shown), "m2 is before m10"


def test_strip_has_the_start_of_each_stage(autoencoder_run: Run) -> None:
    """A stage in run.json that the log does not have yet is left out. A resume in a stage starts none."""
    report = RunReport.read(str(autoencoder_run.folder))
    segments = segments_of(report.settings)
    records = [Record(0.0, Resumed(0)), *report.records]
    strip = training_strip(records, "title", [*segments, {**segments[-1], "stage": "later"}])
    assert [one["name"] for one in strip["stages"]] == [one["stage"] for one in segments]
    merges = [record for record in report.records if any(isinstance(one, Step) for one in record.actions)]
    times = [0.0, *(merges[one["first_version"] - 1].now for one in segments[1:])]
    assert [one["seconds"] for one in strip["stages"]] == pytest.approx(times, abs=0.02)


def test_strip_of_an_empty_log_is_empty() -> None:
    strip = training_strip([], "title")
    assert (strip["lanes"], strip["lost"], strip["seconds"], strip["merged_samples"]) == ([], [], 0.0, 0)
