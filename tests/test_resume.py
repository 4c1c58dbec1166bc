"""Runs that end in the middle and go on; folders and disks that are not as they should be."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import oddlot
from oddlot import (
    Asynchronous,
    CheckpointError,
    JobError,
    LocalSGD,
    Machine,
    Simulated,
    Strategy,
    Synchronous,
    UsageError,
)
from oddlot.core import words as w
from oddlot.observe import Log, read_log, surviving, tally_of
from oddlot.run import Run
from oddlot.run_folder import RunFolder
from oddlot.train import checkpoint
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
    one_fork_server,
    plain_loop,
    rows,
    trained,
)
from tests.processes import descendants, program, says
from tests.toys import Timed


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    with one_fork_server():
        yield


def begun(folder: Path, until: str = "epochs>=2", **options: Any) -> Run:
    """A run of one worker in the folder, with a checkpoint after each version."""
    return oddlot.fit(
        a_job(), Asynchronous(), fleet(1), until=until, out=folder, checkpoint_every="1 versions", **options
    )


def goes_on(
    folder: Path,
    until: str = "epochs>=4",
    on: Place | None = None,
    strategy: Strategy | None = None,
    **settings: Any,
) -> Run:
    run, _ = trained(
        a_job(), strategy or Asynchronous(), on or fleet(), until, RunFolder(folder), resume=True, **settings
    )
    return run


def merged(folder: Path) -> list[tuple[int, int]]:
    """What has reached the model in the history that survives, from the log alone."""
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
        a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy}), oddlot.Asynchronous(), local(2),
        until="epochs>=1e6", out=folder, checkpoint_every="1 versions", observers=[watch],
    )
except oddlot.Interrupted as stopped:
    print("stopped", stopped.run.summary["versions"], stopped.run.ended, flush=True)
"""


@pytest.mark.parametrize("on", [local(1), fleet(3)], ids=["local", "simulated"])
def test_after_kill_9_of_everything_a_run_goes_on_with_exact_books(tmp_path: Path, on: Place) -> None:
    with program("-c", ENDLESS, tmp_path) as process:
        says(process, "saved")
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    books_then = checkpoint.newest(tmp_path / "checkpoints").load().conductor["ledger"]
    reached = (
        max(lane["epoch"] for lane in books_then["lanes"]) + 1
    )  # epochs overlap: the newest one begun counts
    job = a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy})
    until = f"epochs>={reached + 3}"
    run, books = trained(job, Asynchronous(), on, until, RunFolder(tmp_path), resume=True)
    assert sorted(books.merged) == everything(SAMPLES, reached + 3)
    assert merged(tmp_path) == everything(SAMPLES, reached + 3)
    assert run.accuracy is not None
    assert run.accuracy >= 0.9
    records = list(read_log(tmp_path / "records.jsonl"))
    assert sum(isinstance(record.event, w.Resumed) for record in records) == 1
    joined = [record.event.node for record in records if isinstance(record.event, w.Joined)]
    assert len(joined) == len(set(joined)) >= 2, "names are never used again"
    again = tally_of(records, SAMPLES).summary()
    for figure in ("versions", "samples_merged", "samples_wasted", "bytes_up", "updates", "metrics"):
        assert run.summary[figure] == again[figure], figure
    assert run.records == surviving(records)


@pytest.mark.parametrize("on", [local(1), fleet(1)], ids=["local", "simulated"])
def test_a_resumed_run_comes_to_the_same_model(tmp_path: Path, on: Place) -> None:
    """With one worker the order of samples is always the same; the rule's momentum goes on too."""
    begun(tmp_path, "epochs>=1.5")
    run = goes_on(tmp_path, "epochs>=4", on)
    assert run.summary["versions"] == 24
    assert distance(run.model, plain_loop(a_job(), in_batches(SAMPLES, BATCH, 4))) == 0
    assert goes_on(tmp_path, "epochs>=3").ended == "epochs>=3"
    assert merged(tmp_path) == everything(SAMPLES, 4), "it was further already"


def test_a_run_that_has_begun_too_much_goes_on_until_what_is_asked_for_is_whole(tmp_path: Path) -> None:
    """One machine sits on a batch of the first epoch while the other is deep in the second."""
    on, folder = Simulated([Machine("quick", 0.001), Machine("slow", 1.0)]), RunFolder(tmp_path)
    trained(a_job(), Asynchronous(), on, f"samples>={SAMPLES + 2 * BATCH}", folder)
    assert not set(everything(SAMPLES, 1)) <= set(merged(tmp_path)) < set(everything(SAMPLES, 2))
    run, books = trained(a_job(), Asynchronous(), on, "epochs>=1", folder, resume=True)
    assert set(everything(SAMPLES, 1)) <= set(merged(tmp_path)) == set(books.merged)
    assert run.ended == "epochs>=1"


def test_updates_that_waited_in_the_inbox_are_merged_later(tmp_path: Path) -> None:
    """More of them than the next engine has workers."""
    job = a_job(count=256)
    oddlot.fit(job, Synchronous(), fleet(16), until="seconds>=0.36", out=tmp_path)
    assert len(checkpoint.newest(tmp_path / "checkpoints").load().conductor["inbox"]) == 15
    _, books = trained(job, Synchronous(), local(1), "epochs>=2", RunFolder(tmp_path), resume=True)
    assert sorted(books.merged) == everything(256, 2)


@pytest.mark.parametrize("strategy", [Synchronous(), LocalSGD(steps=2)])
def test_a_round_that_was_under_way_is_closed(tmp_path: Path, strategy: Strategy) -> None:
    oddlot.fit(a_job(), strategy, fleet(3), until="loss<=1000", out=tmp_path)
    goes_on(tmp_path, "epochs>=2", strategy=strategy)
    assert merged(tmp_path) == everything(SAMPLES, 2)


# --- damage --------------------------------------------------------------------------------------


def flip(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    os.truncate(folder / "conductor.json", 100)


def lose(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize("damage", [flip, truncate, lose])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: Any) -> None:
    begun(tmp_path)
    *_, before, newest = sorted((tmp_path / "checkpoints").iterdir())
    damage(newest)
    with pytest.warns(UserWarning, match=f"{newest} is damaged"):
        run = goes_on(tmp_path)
    resumed = next(
        record for record in read_log(tmp_path / "records.jsonl") if isinstance(record.event, w.Resumed)
    )
    assert isinstance(resumed.event, w.Resumed)
    versions = sum(
        1 for _ in merges(list(read_log(tmp_path / "records.jsonl"))[: resumed.event.after_record])
    )
    assert versions == int(before.name)
    assert merged(tmp_path) == everything(SAMPLES, 4)
    assert run.summary["samples_wasted"] > 0


def test_without_a_whole_checkpoint_every_damage_is_told(tmp_path: Path) -> None:
    begun(tmp_path)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    for folder in saved:
        lose(folder)
    with pytest.raises(CheckpointError, match="no whole checkpoint") as error:
        goes_on(tmp_path)
    assert all(str(folder) in str(error.value) for folder in saved)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2))


@pytest.mark.parametrize(
    ("changes", "strategy", "told"),
    [
        ({"batch": 4}, Asynchronous(), ["batch: 8 in the run, 4 now"]),
        ({"model": wide}, Asynchronous(), ["'0.weight': [5, 2]", "'0.weight': [7, 2]"]),
        (
            {},
            Synchronous(),
            ["strategy: Asynchronous(samples=None, ", "in the run, Synchronous(samples=None) now"],
        ),
        (
            {"optimizer": oddlot.Adam()},
            Asynchronous(),
            ["optimizer: SGD(lr=0.1, ", "in the run, Adam(lr=0.001, "],
        ),
    ],
)
def test_the_run_of_another_job_is_told_with_the_difference(
    tmp_path: Path, changes: dict[str, Any], strategy: Strategy, told: list[str]
) -> None:
    begun(tmp_path)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match="is the run of another job") as error:
        oddlot.fit(a_job(**changes), strategy, fleet(), until="epochs>=4", out=tmp_path, resume=True)
    assert all(part in str(error.value) for part in told), error.value
    assert content(tmp_path) == before


def test_a_log_with_an_unfinished_last_line_is_read_up_to_it(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    log.write_bytes(log.read_bytes() + b'{"is":"Record","now":')
    goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_log_that_is_damaged_behind_the_newest_checkpoint_is_cut_there(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x00\xff nonsense\r\n" + whole.splitlines(keepends=True)[-1])
    with pytest.warns(UserWarning, match=r"records.jsonl:\d+ is damaged; going on from 000000"):
        goes_on(tmp_path)
    assert log.read_bytes().startswith(whole + b'{"is":"Record"')
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_checkpoint_that_counts_on_records_which_the_log_has_lost_is_passed_over(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))
    with pytest.warns(
        UserWarning, match=r"was made after \d+ records, the log has \d+; going on from 000000"
    ):
        goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)
    log.write_text("".join(lines[:1]))
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*\n.*the log has 0"):
        goes_on(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("run.json", "{", "run.json is damaged: restore it from a copy, or begin anew"),
        ("records.jsonl", "{}\n", "records.jsonl:1 is damaged: restore"),
        (
            "records.jsonl",
            None,
            r"cannot read the log .*No such file.* restore it from a copy, or begin anew",
        ),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    begun(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=told):
        goes_on(tmp_path)


# --- folders -------------------------------------------------------------------------------------


def test_a_run_is_never_overwritten_unasked(tmp_path: Path) -> None:
    begun(tmp_path)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"is not empty: resume=True .*force=True"):
        begun(tmp_path)
    with pytest.raises(UsageError, match="no figure"):
        begun(tmp_path, "acuracy>=1", force=True)  # a mistake that has nothing to do with the folder
    assert content(tmp_path) == before


def test_force_throws_away_the_run_and_nothing_else(tmp_path: Path) -> None:
    begun(tmp_path, "epochs>=4")
    (tmp_path / "notes.txt").write_text("mine")
    begun(tmp_path, "epochs>=1", force=True)
    assert merged(tmp_path) == everything(SAMPLES, 1)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert checkpoint.newest(tmp_path / "checkpoints").version == 6, "an older run's are gone"


def test_force_touches_no_folder_that_holds_no_run(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="holds no run, so it is not thrown away"):
        begun(tmp_path, force=True)
    assert content(tmp_path) == {str(tmp_path / "records.jsonl"): b"mine"}


def test_a_run_that_could_not_begin_leaves_the_folder_free(tmp_path: Path) -> None:
    def broken() -> nn.Module:
        raise RuntimeError("no model today")

    with pytest.raises(JobError, match="no model today"):
        oddlot.fit(a_job(broken), Asynchronous(), fleet(), until="epochs>=1", out=tmp_path / "run")
    begun(tmp_path / "run")


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            UsageError, match=r"cannot use .*file.* as the run's folder: (File exists|Not a directory)"
        ):
            begun(place)
    with pytest.raises(CheckpointError, match="there is no run to resume"):
        begun(tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot write into"):
        begun(tmp_path / "new")


# --- a full disk ---------------------------------------------------------------------------------


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class ShortLog(Log):
    """Of a run whose disk is full after a while."""

    def flush(self) -> None:
        if self.records > 10:
            with self._disk():
                full()
        super().flush()


def test_a_disk_that_fills_up_under_the_log_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oddlot.training.Log", ShortLog)
    with pytest.raises(JobError, match=r"cannot write the log .*No space left on device.*resume"):
        begun(tmp_path)
    monkeypatch.undo()
    goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_checkpoint_that_finds_no_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_sync", full)
    with pytest.warns(UserWarning, match=r"checkpoint could not be written .*No space left.*the run goes on"):
        run = begun(tmp_path)
    assert run.ended == "epochs>=2"
    assert (tmp_path / "model.safetensors").exists()


def test_a_model_that_finds_no_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.run_folder.save_model", full)
    with pytest.raises(JobError, match=r"cannot write .*model.safetensors .*No space left.*resume"):
        begun(tmp_path)
    monkeypatch.undo()
    assert goes_on(tmp_path, "epochs>=2").summary["epochs"] == 2


# --- what a continuation takes over, and what not ------------------------------------------------


def test_versions_that_a_strategy_keeps_are_there_again(tmp_path: Path) -> None:
    strategy = Timed(seconds=0.1)
    job = a_job(evaluation=rows(20))
    trained(job, strategy, fleet(2), "epochs>=2", RunFolder(tmp_path))
    assert checkpoint.newest(tmp_path / "checkpoints").load().conductor["kept"]
    _, books = trained(job, strategy, fleet(2), "epochs>=4", RunFolder(tmp_path), resume=True)
    assert sorted(books.merged) == everything(SAMPLES, 4)


def test_a_continuation_may_close_its_epochs(tmp_path: Path) -> None:
    on, folder = Simulated([Machine("quick", 0.001), Machine("slow", 0.02)]), RunFolder(tmp_path)
    trained(a_job(), Asynchronous(), on, "epochs>=1", folder)
    trained(a_job(), Asynchronous(), on, "epochs>=4", folder, resume=True, epoch_barrier=True)
    merged_epochs = [span.epoch for merge in merges(list(read_log(folder.log))) for span in merge]
    assert merged_epochs == sorted(merged_epochs)
