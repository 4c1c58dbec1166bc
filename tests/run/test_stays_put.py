"""Shards that stay on their machines: bytes of data sent to each worker, on both engines."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from oddlot import VCASGD, JobError, Machine, Shards, Simulated, Synchronous, UsageError, fit
from oddlot.core.commands import Start
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Lifetime, Link
from oddlot.run.result import Run
from tests.fits import SAMPLES, Place, a_job, everything, fleet, local, rows, trained
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS = 6
BYTES = SAMPLES * (2 * 4 + 8)
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


CUTS = [0, 5, 16, 24, 32, 41, SAMPLES]


def parts(folder: Path) -> Shards:
    """Return shards with a file for each."""
    x, y = rows()
    for number, (a, b) in enumerate(pairwise(CUTS)):
        np.savez(folder / f"{number}.npz", x=x[a:b].numpy(), y=y[a:b].numpy())
    return Shards([folder / f"{number}.npz" for number in range(SHARDS)])


def opened(run: Run) -> dict[str, set[int]]:
    """Return the shards of the tasks of each worker."""
    found: dict[str, set[int]] = {}
    for record in run.records:
        for action in record.actions:
            if isinstance(action, Start):
                number = int(np.searchsorted(CUTS, action.task.spans[0].start, side="right")) - 1
                found.setdefault(action.task.node, set()).add(number)
    return found


@BOTH
def test_machine_keeps_downloaded_shards(tmp_path: Path, on: Place) -> None:
    """Each shard is sent about once in all epochs. Without `keep_shards`, it is sent once per epoch."""
    job = replace(a_job(), train_data=parts(tmp_path))

    def run(keep_shards: bool) -> Run:
        strategy, folder = VCASGD(alpha=0.8), tmp_path / str(keep_shards)
        folder.mkdir()
        run, state = trained(job, strategy, on, "epochs>=5", RunFolder(folder), keep_shards=keep_shards)
        assert sorted(state.merged) == everything(SAMPLES, 5)
        return run

    kept = run(keep_shards=True)
    sizes = [b - a for a, b in pairwise(CUTS)]
    brought = sum(sizes[number] for numbers in opened(kept).values() for number in numbers)
    assert kept.summary["bytes_data"] == brought * BYTES // SAMPLES
    assert kept.summary["bytes_data"] <= 2 * BYTES
    assert run(keep_shards=False).summary["bytes_data"] == 5 * BYTES


def test_simulator_counts_shard_bytes_of_arrays() -> None:
    """With shards, each machine is sent its rows. Without shards, no data is sent."""
    run = fit(a_job(), VCASGD(), fleet(2), until="epochs>=4", shards=SHARDS)
    assert BYTES <= run.summary["bytes_data"] <= 2 * BYTES
    assert fit(a_job(), Synchronous(), fleet(2), until="epochs>=4").summary["bytes_data"] == 0
    life = Machine("m", 0.01, lifetime=Lifetime(0.5), seconds_to_return=0.0)
    run = fit(a_job(), VCASGD(), Simulated([life], seed=3), until="epochs>=6", shards=SHARDS)
    lives = run.summary["workers_lost"] + 1
    assert lives > 3
    assert BYTES < run.summary["bytes_data"] <= lives * BYTES, "a new machine has nothing"


def test_shard_download_takes_link_time() -> None:
    """768 bytes of data take one second on the link, in addition to the time for the model."""

    def seconds(keep_shards: bool) -> float:
        link = Link(megabits_per_second=768 * 8 / 1e6)
        on = Simulated([Machine("m", 0.01, link=link)])
        run = fit(a_job(), VCASGD(), on, until="epochs>=3", shards=2, keep_shards=keep_shards)
        return float(run.summary["seconds"])

    assert seconds(False) - seconds(True) == pytest.approx(2 * BYTES / 768)


def test_missing_shard_file_and_wrong_shard_count_raise(tmp_path: Path) -> None:
    job = replace(a_job(), train_data=parts(tmp_path))
    with raises(UsageError, "shards_beside_parts", shards=4, parts=6):
        fit(job, VCASGD(), fleet(2), until="epochs>=1", shards=4)
    (tmp_path / "3.npz").unlink()
    with raises(JobError, "unreadable_file", path=str(tmp_path / "3.npz")):
        fit(job, VCASGD(), local(2), until="epochs>=1")
