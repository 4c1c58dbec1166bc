"""Tests of the Ray engine on a small cluster: a complete run, a lost node, and `check_engine`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from benchmarks.ray.nodes import Nodes, cluster
from oddlot import Job, StopRun, Synchronous
from oddlot.codecs import Half
from oddlot.core.commands import Step
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.history.goals import Every
from oddlot.history.run_folder import RunFolder
from oddlot.merging import Median
from oddlot.run.result import Run
from oddlot.testing import check_engine
from tests.engines.ray.scenes import on_ray, scene, slow_job
from tests.fits import BATCH, SAMPLES, a_job, distance, equals, net, rows, trained

LOST_AFTER_SECONDS = 10.0
"""Seconds without a sign of life until a worker counts as lost."""
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with cluster(workers=1) as made:
        yield made


@pytest.mark.ray
@pytest.mark.usefixtures("nodes")
def test_engine_suite_passes() -> None:
    check_engine(lambda workers: on_ray(workers, in_flight=1, lost_after_seconds=10.0))


@pytest.mark.usefixtures("nodes")
def test_run_merges_every_sample(tmp_path: Path) -> None:
    """Folders of the runtime environment are sent over the program's existing connection."""
    module = tmp_path / "my_module"
    module.mkdir()
    (module / "__init__.py").touch()
    folders = {"working_dir": str(tmp_path), "py_modules": [str(module)]}
    evaluated = torch.randn(8, 2), torch.zeros(8).long()
    on = on_ray(runtime_env=folders)
    run, _ = trained(a_job(eval_data=evaluated), Synchronous(), on, codec=Half("bf16"))
    assert run.summary["samples_merged"] == run.summary["samples_assigned"]
    assert run.loss is not None


@pytest.mark.usefixtures("nodes")
def test_robust_rule_compares_the_updates_of_three_actors() -> None:
    """The actors start one after the other, and wait for each other."""
    run, _ = trained(a_job(), Synchronous(), on_ray(3, in_flight=1), combine=Median())
    figures = run.summary["combined"]
    assert figures["merges"] == run.summary["versions"] > 3
    assert figures["merges_without_change"] <= 1
    assert (
        run.summary["samples_merged"] + sum(run.summary["wasted"].values()) == run.summary["samples_assigned"]
    )


def losses(run: Run) -> list[float]:
    """Return the losses after one and two epochs."""
    by_epochs = {row["epochs"]: row["loss"] for row in run.history}
    return [by_epochs[1.0], by_epochs[2.0]]


@pytest.mark.usefixtures("nodes")
def test_a_resumed_run_with_settings_of_scripts_equals_the_simulator(tmp_path: Path) -> None:
    """Parameter groups, a scheduler, clipping, accumulation, a moving average, and a DataLoader with a sampler."""

    def by_layer(model: nn.Module) -> torch.optim.Optimizer:
        first, _, last = model.children()
        groups: list[Any] = [{"params": first.parameters(), "lr": 0.05}, {"params": last.parameters()}]
        return torch.optim.SGD(groups, lr=0.2, momentum=0.9)

    sampler = WeightedRandomSampler([1.0 + index for index in range(SAMPLES)], SAMPLES)
    job = Job(
        net,
        DataLoader(TensorDataset(*rows()), BATCH, sampler=sampler),
        cross_entropy,
        eval_data=rows(16),
        device="cpu",
        optimizer=by_layer,
        lr_scheduler=lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
        max_grad_norm=0.5,
        micro_batch_size=3,
        ema_decay=0.9,
    )
    expected, _ = trained(job, Synchronous(), equals(1))
    on, folder, every = on_ray(1, in_flight=1), RunFolder(tmp_path), Every(1, "epochs")
    trained(job, Synchronous(), on, "versions>=8", folder, evaluate_every=every)
    run, _ = trained(job, Synchronous(), on, folder=folder, resume=True, evaluate_every=every)
    assert distance(run.model, expected.model) == 0
    assert losses(run) == losses(expected)


@pytest.mark.usefixtures("nodes")
def test_exact_rounds_have_the_bits_of_the_simulator() -> None:
    """The run ends after at least 40 rounds, once two actors have sent gradients: the second may start late."""
    job, senders, rounds = a_job(count=600, batch_size=600), set[str](), 0

    def watch(record: Record) -> None:
        nonlocal rounds
        rounds += sum(isinstance(action, Step) for action in record.actions)
        if isinstance(record.event, Arrived):
            senders.add(record.event.update.sender)
        if rounds >= 40 and len(senders) == 2:
            raise StopRun("two actors have sent gradients")

    on = on_ray(2, in_flight=1)
    run, _ = trained(job, Synchronous(exact=True), on, "epochs>=40000", callbacks=[watch])
    expected, _ = trained(job, Synchronous(exact=True), equals(1), f"versions>={run.summary['versions']}")
    assert distance(run.model, expected.model) == 0


def test_workers_of_a_lost_node_are_replaced(nodes: Nodes) -> None:
    """On a busy machine, a silent worker may already have been replaced on another node."""
    (added,) = nodes.alive
    with scene(slow_job(0.2), on_ray(num_cpus=1, lost_after_seconds=LOST_AFTER_SECONDS)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0)  # the hub's node is used last
        run.work()
        run.until(lambda: len(run.on_node(added.node_id)) > 0)
        lost = run.on_node(added.node_id)
        nodes.kill(added)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.is_back(node))  # type: ignore[misc]  # on another node
        run.finish()
