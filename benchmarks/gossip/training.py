"""Calibration runs on simulated machines: a mesh of peers, LocalSGD with a hub, a single peer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from benchmarks.report import Size
from benchmarks.stragglers.networks import Small
from oddlot import SGD, Job, LocalSGD, Machine, Simulated, Strategy, Synchronous, fit
from oddlot.core.events import Averaged
from oddlot.history.goals import Every
from oddlot.lr_schedules import Cosine
from oddlot.machines import Link
from oddlot.run.config import RunConfig
from oddlot.run.hosts_simulated import SimulatedHosts
from oddlot.run.mesh import prepared_mesh
from oddlot.run.recipe import Recipe
from oddlot.workloads.cifar10 import cifar10
from oddlot.workloads.mnist import fashion_mnist

PEERS, STEP_SECONDS, BATCH, EPOCHS = 8, 1.0, 64, 20
PICTURES = {"fashion_mnist": (1, 28, 73, 90), "cifar10": (3, 32, 121, 64)}
"""Channels, side, mean and standard deviation of the images."""
IMAGES = {"fashion_mnist": 10_000, "cifar10": 25_000}
"""Number of training images that are used, by dataset. On Fashion-MNIST, --quick and a full run are equal."""
PULL_STEPS = 1.3
"""Steps that a pull over idle links takes."""
FINAL_SECONDS = (PEERS - 1) * PULL_STEPS * STEP_SECONDS
"""Seconds of the final average: the first peer pulls all other models. The clock of a mesh does not count them."""
RING = 2 * (PEERS - 1) / PEERS
"""Models that a peer receives in a ring all-reduce."""


@dataclass(frozen=True)
class Asked:
    """A run. If `strategy` is None, a single peer trains the number of steps of a peer of the mesh."""

    data: str
    size: Size
    strategy: Strategy | None
    lr: float
    seed: int
    evaluates: bool = False
    """True to average and evaluate the models after each epoch. This takes no virtual time."""


@dataclass(frozen=True)
class Outcome:
    """Results of a run, including its final average."""

    seconds: float
    """Virtual seconds."""
    bytes: float
    """Bytes received by all peers."""
    exchanges_per_step: float
    accuracy: float
    """Accuracy of the averaged model."""
    single: float
    """Mean accuracy of the peers' models before the final average."""
    disagreements: tuple[float, ...]
    """Relative distance of the peers' models from their average, at each evaluation and at the end."""


@cache
def job_of(data: str, size: Size) -> Job:
    """Return the job without an optimizer. It takes every n-th image, so that all classes are included."""
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
    """Run `asked` and return its results."""
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
    """Return the number of bytes of a model."""
    return sum(one.numel() for one in job.model().parameters()) * 4


def _machines(count: int, link: Link | None = None) -> Sequence[Machine]:
    return [Machine(f"m{peer}", STEP_SECONDS / BATCH, link=link or Link()) for peer in range(count)]


def _gossip(job: Job, strategy: Strategy, asked: Asked, until: str) -> Outcome:
    link = Link(megabits_per_second=model_bytes(job) * 8 / (PULL_STEPS * STEP_SECONDS) / 1e6)
    every = Every(1 if asked.evaluates else 1_000_000, "epochs")
    config = RunConfig(until=until, seed=asked.seed, evaluate_every=every)
    recipe = Recipe(job, strategy, Simulated(_machines(PEERS, link), seed=asked.seed), config)
    with prepared_mesh(recipe) as mesh:
        assert isinstance(mesh, SimulatedHosts)
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
    """Train without a network, then add the time and bytes of a ring all-reduce after each round."""
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
