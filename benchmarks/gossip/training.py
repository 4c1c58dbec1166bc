"""Runs of the calibration on simulated machines: a mesh of peers, LocalSGD with a hub, one peer alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from benchmarks.report import Size
from benchmarks.stragglers.networks import Small
from oddlot import SGD, Job, LocalSGD, Machine, Simulated, Strategy, Synchronous, fit
from oddlot.core.events import Averaged
from oddlot.lr_schedules import Cosine
from oddlot.machines import Link
from oddlot.run.config import RunConfig
from oddlot.run.intervals import Every
from oddlot.run.mesh import prepared_mesh
from oddlot.run.mesh_simulation import MeshSimulation
from oddlot.run.spec import Recipe
from oddlot.workloads.cifar10 import cifar10
from oddlot.workloads.mnist import fashion_mnist

PEERS, STEP_SECONDS, BATCH, EPOCHS = 8, 1.0, 64, 20
PICTURES = {"fashion_mnist": (1, 28, 73, 90), "cifar10": (3, 32, 121, 64)}
"""Channels, side, mean and deviation of the pictures. The network is small: the clock does not see what it costs."""
IMAGES = {"fashion_mnist": 10_000, "cifar10": 25_000}
"""Training images that are used, a part of each dataset. On Fashion-MNIST, --quick measures what a full run does."""
PULL_STEPS = 1.3
"""Steps that a pull over idle links takes."""
FINAL_SECONDS = (PEERS - 1) * PULL_STEPS * STEP_SECONDS
"""Time of the final average: the first peer pulls the models of all others, which the clock of a mesh leaves out."""
RING = 2 * (PEERS - 1) / PEERS
"""Models that a peer receives in an all-reduce on a ring."""


@dataclass(frozen=True)
class Asked:
    """A run. `strategy` None: one peer alone, with as many steps as a peer of the mesh."""

    data: str
    size: Size
    strategy: Strategy | None
    lr: float
    seed: int
    evaluates: bool = False
    """Whether all models are averaged and evaluated after each epoch. The clock leaves that out."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to, its final average included."""

    seconds: float
    """Virtual time."""
    bytes: float
    """Bytes that all peers have received."""
    exchanges_per_step: float
    accuracy: float
    """Accuracy of the averaged model."""
    single: float
    """Mean accuracy of the models of single peers before the final average."""
    disagreements: tuple[float, ...]
    """Relative distance of the peers' models from their average, at each evaluation and at the end."""


@cache
def job_of(data: str, size: Size) -> Job:
    """Return the job, without optimizer. A part of the images has all classes: every n-th one."""
    job = cifar10() if data == "cifar10" else fashion_mnist()
    count = len(job.train_data[0])
    every = max(1, count // size.pick(400, IMAGES[data], IMAGES[data]))
    return replace(
        job,
        model=partial(Small, *PICTURES[data]),
        train_data=tuple(part[::every] for part in job.train_data),
        batch_size=BATCH,
    )


def outcome(asked: Asked) -> Outcome:
    """Return what a run came to."""
    epochs = float(asked.size.pick(2, EPOCHS, EPOCHS))
    if asked.strategy is None:
        epochs /= PEERS
    job = replace(
        job_of(asked.data, asked.size),
        optimizer=SGD(lr=asked.lr, momentum=0.9),
        lr_schedule=Cosine(epochs),
    )
    until = f"epochs>={epochs}"
    match asked.strategy:
        case None:
            return _alone(job, asked.seed, until)
        case LocalSGD():
            return _rounds(job, asked.strategy, asked.seed, until)
        case strategy:
            return _gossip(job, strategy, asked, until)


def model_bytes(job: Job) -> int:
    """Return the bytes of a model."""
    return sum(one.numel() for one in job.model().parameters()) * 4


def _machines(count: int, link: Link | None = None) -> Sequence[Machine]:
    return [Machine(f"m{peer}", STEP_SECONDS / BATCH, link=link or Link()) for peer in range(count)]


def _gossip(job: Job, strategy: Strategy, asked: Asked, until: str) -> Outcome:
    link = Link(megabits_per_second=model_bytes(job) * 8 / (PULL_STEPS * STEP_SECONDS) / 1e6)
    every = Every(1 if asked.evaluates else 1_000_000, "epochs")
    config = RunConfig(until=until, seed=asked.seed, evaluate_every=every)
    recipe = Recipe(job, strategy, Simulated(_machines(PEERS, link), seed=asked.seed), config)
    with prepared_mesh(recipe) as mesh:
        assert isinstance(mesh, MeshSimulation)
        run = mesh.run()
        computation = mesh.mesh.computation
        singles = [computation.evaluate(peer.store.weights)["accuracy"] for peer in mesh.runs.values()]
    averages = [record for record in run.records if isinstance(record.event, Averaged)]
    events = [record.event for record in averages if isinstance(record.event, Averaged)]
    assert run.accuracy is not None
    return Outcome(
        averages[-1].now + FINAL_SECONDS,
        run.summary["bytes_exchanged"] + events[-1].bytes,
        run.summary["exchanges"] / run.summary["updates"],
        run.accuracy,
        sum(singles) / len(singles),
        tuple(one.disagreement for one in events),
    )


def _rounds(job: Job, strategy: LocalSGD, seed: int, until: str) -> Outcome:
    """Train without a network; its time and bytes are those of an all-reduce on a ring after each round."""
    run = _on_hub(job, strategy, PEERS, seed, until)
    rounds = run.summary["seconds"] / STEP_SECONDS / strategy.steps
    return Outcome(
        run.summary["seconds"] + rounds * RING * PULL_STEPS * STEP_SECONDS,
        rounds * PEERS * RING * model_bytes(job),
        RING / strategy.steps,
        *(2 * (run.accuracy,)),
        (0.0,),
    )


def _alone(job: Job, seed: int, until: str) -> Outcome:
    run = _on_hub(job, Synchronous(), 1, seed, until)
    return Outcome(run.summary["seconds"], 0.0, 0.0, *(2 * (run.accuracy,)), (0.0,))


def _on_hub(job: Job, strategy: Strategy, workers: int, seed: int, until: str) -> Any:
    on = Simulated(_machines(workers), seed=seed)
    return fit(job, strategy, on, until=until, seed=seed, evaluate_every="1000000 epochs", quiet=True)
