"""Runs that end early and are resumed."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import AdaptiveK, Asynchronous, Callback, Job, LocalSGD, Machine, Simulated, Strategy, Synchronous
from oddlot.checkpoint import format as checkpoint
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.checkpoint.format import Snapshot
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Changed, Joined, Resumed
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError, JobError, UsageError
from oddlot.history.callback import RunProgress
from oddlot.history.log import read_log, surviving
from oddlot.history.metrics import tally_of
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import FAILED, in_short
from oddlot.run.result import Run
from tests.fits import (
    BATCH,
    SAMPLES,
    Place,
    a_job,
    distance,
    everything,
    fleet,
    in_batches,
    local,
    merges,
    plain_loop,
    rows,
    trained,
)
from tests.processes import descendants, program, says
from tests.toys import Timed
from tests.transcripts import raises, warns

pytestmark = pytest.mark.usefixtures("fork_server", "warm_start")


def begun(folder: Path, until: str = "epochs>=2", job: Job | None = None, **options: Any) -> Run:
    """Run a job with one worker, and save a checkpoint after each version."""
    options = {"checkpoint_every": "1 versions", "out": folder, **options}
    return oddlot.fit(job or a_job(), Asynchronous(), fleet(1), until=until, **options)


@contextmanager
def saved_at_once() -> Iterator[None]:
    """Wait for each checkpoint when it is saved."""
    really = BackgroundWriter.save

    def save(saver: BackgroundWriter, snapshot: Snapshot) -> bool:
        begun = really(saver, snapshot)
        saver.wait()
        return begun

    with patch.object(BackgroundWriter, "save", save):
        yield


def goes_on(
    folder: Path,
    until: str = "epochs>=4",
    on: Place | None = None,
    strategy: Strategy | None = None,
    **settings: Any,
) -> Run:
    strategy, on = strategy or Asynchronous(), on or fleet()
    return trained(a_job(), strategy, on, until, RunFolder(folder), resume=True, **settings)[0]


def merged(folder: Path) -> list[tuple[int, int]]:
    """Return all (epoch, position) pairs that were merged, without lost work, from the log alone."""
    records = surviving(read_log(folder / "records.jsonl"))
    spans = [span for merge in merges(records) for span in merge]
    return sorted((epoch, position) for epoch, start, stop in spans for position in range(start, stop))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


ENDLESS = """
import sys
from pathlib import Path

import oddlot
from tests.fits import a_job, local, rows

folder = Path(sys.argv[1])


def watch(record):
    if any(path.name >= "00000010" for path in (folder / "checkpoints").glob("0*")):
        print("saved", flush=True)


try:
    oddlot.fit(
        a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy}), oddlot.Asynchronous(), local(2),
        until="epochs>=1e6", out=folder, checkpoint_every="1 versions", callbacks=[watch], quiet=True,
    )
except oddlot.Interrupted as stopped:
    print("stopped", stopped.run.summary["versions"], stopped.run.ended, flush=True)
"""


def test_resume_of_an_unfinished_adaptive_round_is_logged(tmp_path: Path) -> None:
    """A resumed round with updates steps at once, because the workers that it waited for no longer exist."""
    on = Simulated([Machine(f"m{number}", pace) for number, pace in enumerate((0.01, 0.01, 1.0, 1.0))])
    trained(a_job(), AdaptiveK(k=3, most=4), on, "seconds>=0.3", RunFolder(tmp_path))
    goes_on(tmp_path, "seconds>=0.4", on, AdaptiveK(k=3, most=4))
    strategy, seen = AdaptiveK(k=3, most=4), list[Record]()
    oddlot.fit(
        a_job(), strategy, on, until="seconds>=0.5", out=tmp_path, resume="latest", callbacks=[seen.append]
    )
    asked = [before.event for before, record in pairwise(seen) if isinstance(record.event, Changed)]
    assert [type(event) for event in asked] == [Resumed, Resumed]
    assert seen == surviving(read_log(tmp_path / "records.jsonl"))


def test_killed_run_is_released_and_resumes(tmp_path: Path) -> None:
    """A second process reports the id of the first process, and changes no file. `kill -9` releases the run at once."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    with program("-c", ENDLESS, run) as process:
        says(process, "saved")
        how: Any
        for how in ({}, {"resume": "latest"}, {"force": True}):
            with raises(UsageError, "folder_in_use", path=str(run)) as caught:
                begun(run, **how)
            assert str(process.pid) in caught.fields["holder"].split()
        held = checkpoint.newest(Storage(run / "checkpoints")).version
        says(process, "saved")
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert checkpoint.newest(Storage(run / "checkpoints")).version >= held, "the first one went on"
    shutil.copytree(run, copy)
    for folder, on in ((run, local(1)), (copy, fleet(3))):
        _goes_on_with_exact_books(folder, on)


def _goes_on_with_exact_books(folder: Path, on: Place) -> None:
    state_then = checkpoint.newest(Storage(folder / "checkpoints")).load().hosts[""].conductor["ledger"]
    # Epochs overlap. The newest started epoch counts.
    reached = max(cursor["epoch"] for cursor in state_then["cursors"]) + 1
    job = a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy})
    run, state = trained(job, Asynchronous(), on, f"epochs>={reached + 3}", RunFolder(folder), resume=True)
    assert sorted(state.merged) == merged(folder) == everything(SAMPLES, reached + 3)
    assert run.accuracy is not None
    assert run.accuracy >= 0.9
    records = list(read_log(folder / "records.jsonl"))
    assert sum(isinstance(record.event, Resumed) for record in records) == 1
    joined = [record.event.node for record in records if isinstance(record.event, Joined)]
    assert len(joined) == len(set(joined)) >= 2, "names are never used again"
    again = tally_of(records, SAMPLES).summary()
    samples = "samples_assigned", "samples_merged", "samples_wasted"
    for figure in ("versions", *samples, "bytes_up", "updates", "metrics"):
        assert run.summary[figure] == again[figure], figure
    assert run.records == surviving(records)


def test_run_in_use_by_its_own_process_is_rejected(tmp_path: Path) -> None:
    holders = set[str]()

    def again(_: Record) -> None:
        with raises(UsageError, "folder_in_use", path=str(tmp_path)) as caught:
            begun(tmp_path, resume="latest")
        holders.update(caught.fields["holder"].split())

    begun(tmp_path, until="versions>=1", callbacks=[again])
    assert str(os.getpid()) in holders
    begun(tmp_path, resume="latest")


@pytest.mark.parametrize("on", [local(1), fleet(1)], ids=["local", "simulated"])
def test_resumed_run_reaches_the_same_model(tmp_path: Path, on: Place) -> None:
    """With one worker, the order of samples is deterministic. The optimizer's momentum is resumed, too."""
    begun(tmp_path, "epochs>=1.5")
    run = goes_on(tmp_path, "epochs>=4", on)
    assert run.summary["versions"] == 24
    assert distance(run.model, plain_loop(a_job(), in_batches(SAMPLES, BATCH, 4))) == 0
    assert goes_on(tmp_path, "epochs>=3").ended == "epochs>=3"
    assert merged(tmp_path) == everything(SAMPLES, 4), "it was further already"


def test_unrestored_local_optimizers_warn(tmp_path: Path) -> None:
    job, folder = a_job(keep_optimizer=True), RunFolder(tmp_path)
    trained(job, LocalSGD(), fleet(1), "epochs>=1", folder)
    with warns("optimizer_not_resumed"):
        trained(job, LocalSGD(), fleet(1), "epochs>=2", folder, resume=True)


def test_resume_completes_the_requested_epochs(tmp_path: Path) -> None:
    """One machine has a batch of the first epoch while the other machine is far into the second epoch."""
    on, folder = Simulated([Machine("quick", 0.001), Machine("slow", 1.0)]), RunFolder(tmp_path)
    trained(a_job(), Asynchronous(), on, f"samples>={SAMPLES + 2 * BATCH}", folder)
    assert not set(everything(SAMPLES, 1)) <= set(merged(tmp_path)) < set(everything(SAMPLES, 2))
    run, state = trained(a_job(), Asynchronous(), on, "epochs>=1", folder, resume=True)
    assert set(everything(SAMPLES, 1)) <= set(merged(tmp_path)) == set(state.merged)
    assert run.ended == "epochs>=1"


def test_queued_updates_are_merged_after_resume(tmp_path: Path) -> None:
    """Queued updates are merged even if the next engine has fewer workers than updates."""
    job = a_job(count=128)
    oddlot.fit(job, Synchronous(), fleet(16), until="seconds>=0.36", out=tmp_path)
    assert len(checkpoint.newest(Storage(tmp_path / "checkpoints")).load().hosts[""].conductor["inbox"]) == 15
    _, state = trained(job, Synchronous(), local(1), "epochs>=2", RunFolder(tmp_path), resume=True)
    assert sorted(state.merged) == everything(128, 2)


@pytest.mark.parametrize("strategy", [Synchronous(), LocalSGD(steps=2)])
def test_unfinished_round_is_closed_after_resume(tmp_path: Path, strategy: Strategy) -> None:
    oddlot.fit(a_job(), strategy, fleet(3), until="loss<=1000", out=tmp_path)
    goes_on(tmp_path, "epochs>=2", strategy=strategy)
    assert merged(tmp_path) == everything(SAMPLES, 2)


class Breaks:
    """A loss that fails at its n-th call."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls == 0:
            raise OSError("the shared disk is away")
        return nn.functional.cross_entropy(outputs, targets)


def test_failed_run_saves_its_progress(tmp_path: Path) -> None:
    """A failed run saves its progress, although it had only the initial checkpoint before."""
    with raises(JobError, "user_code_failed", where="m0") as caught:
        begun(tmp_path, "epochs>=4", a_job(loss=Breaks(10)), checkpoint_every="9 epochs")
    assert checkpoint.newest(Storage(tmp_path / "checkpoints")).version == 9
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ended"] == f"{FAILED}{in_short(caught.value)}"
    run = goes_on(tmp_path)
    assert run.summary["wasted"].keys() <= {"resumed"}
    assert run.summary["samples_wasted"] <= 2 * BATCH
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_state_of_a_failed_event_is_not_saved(tmp_path: Path) -> None:
    """The third rejection of a sample ends a run while an event is handled."""
    points, sides = rows()
    points[5] = torch.nan
    job = a_job(train_data=(points, sides))
    with raises(JobError, "bad_samples"):
        oddlot.fit(job, Asynchronous(), fleet(1), until="epochs>=1", out=tmp_path)
    assert checkpoint.newest(Storage(tmp_path / "checkpoints")).version == 0


@pytest.mark.parametrize(
    ("left", "code"),
    [
        ("nothing", "unreadable_file"),
        ("a header", "no_complete_checkpoint"),
        ("half a checkpoint", "no_complete_checkpoint"),
    ],
)
def test_run_killed_before_its_first_checkpoint_restarts(tmp_path: Path, left: str, code: str) -> None:
    """A loop that always resumes needs no different command for the first start."""
    begun(tmp_path)
    log, places = tmp_path / "records.jsonl", tmp_path / "checkpoints"
    *older, newest = sorted(places.iterdir())
    (newest / "manifest.json").unlink()
    newest.rename(places / "00000000-0-abcdef")
    for path in older if left == "half a checkpoint" else [places]:
        shutil.rmtree(path)
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    if left == "nothing":
        log.unlink()
    (tmp_path / "summary.json").unlink()
    with raises(CheckpointError, code):  # the model shows that the run had more than this
        goes_on(tmp_path, "epochs>=2")
    (tmp_path / "model.safetensors").unlink()
    goes_on(tmp_path, "epochs>=2")
    assert merged(tmp_path) == everything(SAMPLES, 2)


def test_restarted_run_keeps_its_checkpoint_location(tmp_path: Path) -> None:
    """Without the location, the run would write no more checkpoints for another machine."""
    place, run = tmp_path / "place", tmp_path / "run"
    begun(run, checkpoints=place, about={"by": "me"})
    shutil.rmtree(place)
    for name in ("records.jsonl", "model.safetensors", "summary.json"):
        (run / name).unlink()
    begun(run, resume="latest")
    settings = json.loads((run / "run.json").read_text())
    assert (settings["checkpoints"], settings["about"]) == (str(place), {"by": "me"})
    assert checkpoint.newest(Storage(place)).version > 0


def test_old_model_stays_until_a_newer_checkpoint(tmp_path: Path) -> None:
    begun(tmp_path)
    model = tmp_path / "model.safetensors"
    with raises(JobError, "user_code_failed", where="m0.2"):
        begun(tmp_path, "epochs>=9", a_job(loss=Breaks(1)), resume="latest")
    assert model.exists()

    def kill_when_it_is_gone(_: Record) -> None:
        if not model.exists():
            raise Killed

    with pytest.raises(Killed):  # checkpoints are written in the background for an unknown time
        begun(tmp_path, "epochs>=20000", resume="latest", callbacks=[kill_when_it_is_gone])
    goes_on(tmp_path, "versions>=1")
    assert model.exists()


# --- settings that a resumed run takes over, and others --------------------------------------------


def test_versions_kept_by_a_strategy_are_restored(tmp_path: Path) -> None:
    strategy = Timed(seconds=0.1)
    job = a_job(eval_data=rows(20))
    trained(job, strategy, fleet(2), "epochs>=2", RunFolder(tmp_path))
    assert checkpoint.newest(Storage(tmp_path / "checkpoints")).load().hosts[""].conductor["kept"]
    _, state = trained(job, strategy, fleet(2), "epochs>=4", RunFolder(tmp_path), resume=True)
    assert sorted(state.merged) == everything(SAMPLES, 4)


def test_resume_can_add_an_epoch_barrier(tmp_path: Path) -> None:
    on, folder = Simulated([Machine("quick", 0.001), Machine("slow", 0.02)]), RunFolder(tmp_path)
    trained(a_job(), Asynchronous(), on, "epochs>=1", folder)
    trained(a_job(), Asynchronous(), on, "epochs>=4", folder, resume=True, epoch_barrier=True)
    merged_epochs = [span.epoch for merge in merges(list(read_log(folder.log))) for span in merge]
    assert merged_epochs == sorted(merged_epochs)


class Killed(BaseException):
    """Exception of a callback that ends a run without saving or printing."""


@dataclass
class KillAt(Callback):
    """A callback that kills the run at a given time of its clock."""

    seconds: float

    def on_record(self, run: RunProgress, record: Record) -> None:
        if record.now >= self.seconds:
            raise Killed


def test_lost_work_costs_time_and_money(tmp_path: Path) -> None:
    """A run that is killed repeatedly does not exceed its budget."""
    on = Simulated([Machine("m", 0.01, dollars_per_hour=3600.0)])
    options: dict[str, Any] = {"until": "epochs>=12", "out": tmp_path, "checkpoint_every": "20 versions"}
    for killed_at in (2.0, 3.0, 4.0):
        resume: Any = "latest" if killed_at > 2.0 else None
        with pytest.raises(Killed):
            oddlot.fit(a_job(), Asynchronous(), on, resume=resume, callbacks=[KillAt(killed_at)], **options)
    run = oddlot.fit(a_job(), Asynchronous(), on, resume="latest", **options)
    needed = 12 * SAMPLES * 0.01
    assert run.summary["seconds"] > needed + 1.0, "the clock went on where it had stopped"
    assert run.dollars == pytest.approx(run.summary["seconds"], abs=0.3), (
        "a dollar a second, whatever came of it"
    )
    lost = [r.event for r in read_log(tmp_path / "records.jsonl") if isinstance(r.event, Resumed)]
    assert len(lost) == 3
    assert all(event.dollars_lost > 0 for event in lost)
