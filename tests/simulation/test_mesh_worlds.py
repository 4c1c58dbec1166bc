"""Tests of mesh runs with many random faults. The runs are killed and resumed on other machines.

The model has one weight for each sample. It shows whether the sample is included. The seed determines the trace.
"""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oddlot import SGD, AdaptiveGossip, EventGrad, Gossip, Job, JobError, Machine, Simulated, Strategy, fit
from oddlot.checkpoint.format import saved
from oddlot.faults import Chaos, Fault
from oddlot.history.replay import replay
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.machines import Link
from oddlot.report.run_report import RunReport
from oddlot.strategies.support.peer_averaging import Mode
from oddlot.strategies.support.topologies import Topology
from tests.run.test_mesh_proof import ROWS, Rows, grow

SEEDS, LONG = [*range(8), 51, 326], 500
"""Seed 51: the last peer detects the loss of the lead when no message is in transit. Seed 326: a newcomer knows only
lost peers."""
MODES: list[Mode] = ["pull", "push", "push_pull"]
TOPOLOGIES: list[Topology] = ["random", "ring", "exponential"]
STEP_SECONDS = 0.01
SECONDS = 0.3
"""Duration of fault injection in seconds: longer than a run without faults."""


def strategy_of(chance: Random, count: int) -> Strategy:
    """Return a random strategy for any number of peers."""
    mode = chance.choice(MODES)
    overlap = mode != "push" and chance.random() < 0.3
    topology = chance.choice(TOPOLOGIES)
    return chance.choice(
        [
            Gossip(mode=mode, topology=topology, overlap=overlap, period=chance.randint(1, 3)),
            Gossip(probability=0.5),
            AdaptiveGossip(threshold=chance.choice([0.05, 0.5]), mode=mode, overlap=overlap),
            EventGrad(warmup_steps=chance.choice([0, 30])),
        ]
    )


def machines_of(chance: Random, count: int) -> Simulated:
    """Return a fleet of `count` machines with random speeds."""
    link = Link(
        megabits_per_second=chance.choice([0.3, 1.0, 10.0]), latency_milliseconds=chance.choice([0.1, 2.0])
    )
    returns = chance.choice([None, 0.01, 0.1])
    noticed = chance.choice([0.0, 0.02, 1.0])
    return Simulated(
        [
            Machine(
                f"m{place}",
                STEP_SECONDS * chance.choice([1.0, 1.0, 3.0]) / 2,
                link=link,
                seconds_to_return=returns,
                noticed_after_seconds=noticed,
            )
            for place in range(count)
        ],
        seed=chance.randrange(100),
    )


def fault_of(chance: Random, count: int) -> Fault:
    """Return a random fault of any kind."""
    kind = chance.choice(["kill", "kill", "leave", "freeze", "slow", "partition", "drop", "delay", "corrupt"])
    settings: dict[str, Any] = {"at_seconds": (chance.uniform(0.0, SECONDS),)}
    if kind != "partition":
        settings["machine"] = f"m{chance.randrange(count)}"
    if kind in ("freeze", "slow", "partition"):
        settings["for_seconds"] = chance.uniform(0.05, 0.5)
    if kind == "slow":
        settings["factor"] = 3.0
    if kind == "delay":
        settings["delay_seconds"] = chance.uniform(0.01, 0.2)
    return Fault(kind, **settings)


def live(seed: int, folder: Path) -> RunReport:
    """Run one epoch, perhaps with kills of all peers and resumes on other machines. Return its report."""
    chance = Random(seed)
    count = chance.randint(2, 6)
    strategy = strategy_of(chance, count)
    rows = torch.utils.data.TensorDataset(torch.arange(ROWS))
    job = Job(Rows, rows, training_step=grow, optimizer=SGD(1.0), batch_size=2)
    chaos = Chaos(tuple(fault_of(chance, count) for _ in range(chance.randint(0, 5))), seed=seed)
    settings = {
        "until": "epochs>=1",
        "out": folder,
        "checkpoint_every": "4 versions",
        "keep_checkpoints": 100,
    }
    life, lives = 0, chance.randint(1, 3)
    while life < lives:
        try:
            fit(
                job,
                strategy,
                machines_of(chance, count),
                resume="auto",
                chaos=chaos if chaos.faults and not life else None,
                quiet=True,
                **settings,  # type: ignore[arg-type]
            )
        except JobError as error:
            if error.code != "stalled":  # all machines are lost
                raise
            lives = max(lives, life + 2)
        life += 1
        if life < lives:
            kill(folder, chance)
            count = chance.choice([count, chance.randint(2, 6)])
    return RunReport.read(folder)


def kill(folder: Path, chance: Random) -> None:
    """Reduce the run folder to its state after a simultaneous kill of all peers, at a random checkpoint."""
    there = saved(RunFolder(folder).storage)
    for name in there[chance.randint(1, max(1, len(there))) :]:
        shutil.rmtree(folder / "checkpoints" / name)
    for name in (SUMMARY, "model.safetensors"):
        (folder / name).unlink(missing_ok=True)


def check(seed: int, folder: Path) -> None:
    """Check the report and the logs against the model."""
    try:
        figures = live(seed, folder)
        weights = load_file(RunFolder(folder).model)["first"]
        codes = {fault.code for fault in figures.proof.faults}
        assert codes <= {"merged_in_part", "not_merged"}, figures.proof.faults
        assert ("not_merged" in codes) <= (figures.proof.left_out > 0)
        if "merged_in_part" not in codes:
            assert figures.proof.left_out == int((weights.abs() < 1e-12).sum())
            assert figures.summary["samples_merged"] == ROWS - figures.proof.left_out
        assert figures.plain()["exactly_once"] == (not figures.proof.left_out and not codes)
        assert replay(folder).difference is None
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_model_has_the_samples_of_the_report(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(LONG))
def test_model_has_the_samples_of_the_report_for_many_seeds(seed: int, tmp_path: Path) -> None:
    check(8 + seed, tmp_path)
