"""The weights themselves count the samples, as evidence that does not depend on the log."""

import signal
from pathlib import Path

import pytest
import torch

import oddlot
from oddlot import Asynchronous, Machine, Simulated
from oddlot.faults import Chaos, Fault
from tests.fits import counting_job
from tests.processes import program

SAMPLES, EPOCHS = 480, 8
WORKER_FAULTS = [
    Fault("kill", at_versions=(30, 150, 300, 400)),
    Fault("leave", at_versions=(100,)),
    Fault("freeze", at_versions=(200,), for_seconds=0.3),
    Fault("corrupt", at_versions=(120, 280)),
    Fault("drop", at_versions=(180,)),
    Fault("delay", at_versions=(220,), delay_seconds=0.2),
]
RUN = """
import sys

import torch

import oddlot
from tests.fits import counting_job, local
from tests.run.test_counted_samples import EPOCHS, SAMPLES, WORKER_FAULTS

chaos = oddlot.faults.Chaos([*WORKER_FAULTS, oddlot.faults.Fault("kill_hub", at_versions=(60, 250))])
run = oddlot.fit(
    counting_job(SAMPLES), oddlot.Asynchronous(damping=0.0), local(3, in_flight=2), until=f"epochs>={EPOCHS}",
    out=sys.argv[1], resume="auto", checkpoint_every="7 versions", chaos=chaos,
)
torch.save(-run.model.get_parameter("weight").detach(), sys.argv[2])
"""


def test_weights_count_each_sample_once_per_epoch_on_processes(tmp_path: Path) -> None:
    """The hub is killed twice, and the same command resumes the run."""
    kills, counts = 0, tmp_path / "counts.pt"
    while not counts.exists():
        with program("-c", RUN, tmp_path / "run", counts) as process:
            code = process.wait()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
    assert kills == 2
    assert torch.load(counts).tolist() == pytest.approx([EPOCHS] * SAMPLES)


def test_weights_count_each_sample_once_per_epoch_in_the_simulator() -> None:
    machines = [Machine(f"w{i + 1}", 0.001 * (1 + i), seconds_to_return=0.1) for i in range(3)]
    run = oddlot.fit(
        counting_job(SAMPLES),
        Asynchronous(damping=0.0),
        Simulated(machines, in_flight=2),
        until=f"epochs>={EPOCHS}",
        chaos=Chaos(WORKER_FAULTS),
    )
    assert run.summary["workers_lost"] == 4
    assert (-run.model.get_parameter("weight")).tolist() == pytest.approx([EPOCHS] * SAMPLES)
