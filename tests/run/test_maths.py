"""Compare the results of complete runs with plain PyTorch, for many kinds of jobs."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous, FastestK, LocalSGD, Strategy, Synchronous
from oddlot.codecs import Half
from oddlot.core.sample_spans import samples_in
from oddlot.history.goals import Every
from oddlot.history.run_folder import RunFolder
from oddlot.train.learner import Learner
from tests.engines.log import updates
from tests.fits import (
    BATCH,
    SAMPLES,
    Place,
    a_job,
    distance,
    equals,
    everything,
    fleet,
    in_batches,
    local,
    merges,
    net,
    plain_loop,
    rows,
    trained,
)

pytestmark = pytest.mark.usefixtures("fork_server")

STRATEGIES = [Synchronous(), FastestK(k=1), Asynchronous(damping=0.5), LocalSGD(steps=2)]
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])
ONE = pytest.mark.parametrize("on", [local(1), fleet(1)], ids=["local", "simulated"])
EACH = pytest.mark.parametrize(
    ("strategy", "on"),
    [(LocalSGD(steps=2), local(2)), *((strategy, fleet(2)) for strategy in STRATEGIES)],
    ids=lambda part: type(part).__name__,
)


# --- results equal plain PyTorch -------------------------------------------------------------------


def test_synchronous_equals_a_plain_loop_with_large_batches() -> None:
    run, _ = trained(a_job(), Synchronous(), equals(3), "epochs>=3")
    assert distance(run.model, plain_loop(a_job(), in_batches(SAMPLES, 3 * BATCH, 3))) < 1e-5


@ONE
def test_one_asynchronous_worker_equals_a_plain_loop(on: Place) -> None:
    run, _ = trained(a_job(), Asynchronous(), on, "epochs>=3")
    assert distance(run.model, plain_loop(a_job(), in_batches(SAMPLES, BATCH, 3))) == 0


@pytest.mark.parametrize(
    ("strategy", "on"), [(Synchronous(samples=12), local(2)), (FastestK(k=2, samples=7), fleet(2))]
)
def test_tasks_of_unequal_size_are_weighted_by_samples(strategy: Strategy, on: Place) -> None:
    run, _ = trained(a_job(count=45), strategy, on, "epochs>=2")
    steps = list(merges(run.records))
    assert len({samples_in(tuple(spans)) for spans in steps}) > 1
    assert distance(run.model, plain_loop(a_job(count=45), steps)) < 1e-5


def test_partial_task_counts_its_processed_samples() -> None:
    """A task that stops after its first minibatch counts with its processed samples."""
    hub = os.getpid()

    def half_hearted() -> nn.Module:
        if os.getpid() != hub:
            whole = Learner._split
            Learner._split = lambda self, task: whole(self, task)[:1]  # type: ignore[method-assign]
        return net()

    job = a_job(half_hearted, count=45)
    run, state = trained(job, Synchronous(samples=11), local(2))
    assert sorted(state.merged) == everything(45, 2)
    assert max(update.samples for update in updates(run.records)) == 8, "of 11"
    assert distance(run.model, plain_loop(job, list(merges(run.records)))) < 1e-5


@ONE
def test_local_sgd_with_one_worker_equals_plain_steps(on: Place) -> None:
    job = a_job(optimizer=oddlot.SGD(0.1))
    run, _ = trained(job, LocalSGD(steps=3), on, "epochs>=3")
    assert run.summary["versions"] == 6
    assert distance(run.model, plain_loop(job, in_batches(SAMPLES, BATCH, 3))) < 1e-6


def test_local_sgd_averages_the_workers_models() -> None:
    job = a_job(optimizer=oddlot.SGD(0.1))
    run, _ = trained(job, LocalSGD(steps=1), equals(2), "versions>=1")
    ends = [plain_loop(job, [[span]]) for span in next(merges(run.records))]
    mean = net()
    for parameter, *theirs in zip(mean.parameters(), *(end.parameters() for end in ends), strict=True):
        parameter.data = torch.stack(theirs).mean(dim=0)
    assert distance(run.model, mean) < 1e-6


def test_minibatches_of_a_task_equal_one_large_batch() -> None:
    pieces, _ = trained(a_job(batch_size=5), Synchronous(samples=24), equals(1))
    whole, _ = trained(a_job(batch_size=24), Synchronous(samples=24), equals(1))
    assert 0 < distance(pieces.model, net()) > 1e-3
    assert distance(pieces.model, whole.model) < 1e-6


# --- modules -------------------------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


@ONE
def test_batch_norm_statistics_equal_a_plain_loop(on: Place) -> None:
    run, _ = trained(a_job(normed), Asynchronous(), on)
    expected = plain_loop(a_job(normed), in_batches(SAMPLES, BATCH, 2))
    assert run.model.state_dict()["1.num_batches_tracked"] == 12
    assert distance(run.model, expected) < 1e-6


def test_batch_norm_statistics_of_two_workers_are_averaged() -> None:
    run, _ = trained(a_job(normed), Synchronous(), equals(2), "versions>=1")
    ends = [plain_loop(a_job(normed), [[span]]).state_dict() for span in next(merges(run.records))]
    found = run.model.state_dict()
    assert found["1.num_batches_tracked"] == 1
    mean = (ends[0]["1.running_mean"] + ends[1]["1.running_mean"]) / 2
    assert torch.allclose(found["1.running_mean"], mean, atol=1e-6)


def frozen() -> nn.Module:
    """Return a network with a frozen layer: its statistics and weights never change."""
    model = normed()
    model[1].eval().requires_grad_(False)  # type: ignore[index]
    model[1].running_mean.fill_(0.25)  # type: ignore[index]
    return model


@ONE
def test_frozen_batch_norm_is_unchanged(on: Place) -> None:
    run, _ = trained(a_job(frozen), Asynchronous(), on)
    found = run.model.state_dict()
    assert found["1.num_batches_tracked"] == 0
    assert found["1.running_mean"].tolist() == [0.25] * 5
    assert found["1.weight"].tolist() == [1.0] * 5
    assert distance(run.model, plain_loop(a_job(frozen), in_batches(SAMPLES, BATCH, 2))) < 1e-6


class Words(nn.Module):
    """A module with tied weights, embeddings, a frozen and an unused parameter, and three dtypes."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=sparse)
        self.head = nn.Linear(4, 10, bias=False)
        if not sparse:
            self.head.weight = self.words.weight
        self.fixed = nn.Parameter(torch.randn(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.wide = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.flags: Tensor
        self.register_buffer("flags", torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.words(x) + self.fixed) * self.wide.float() * self.narrow.float() * self.flags
        result: Tensor = self.head(hidden)
        return result


def sparse_words() -> nn.Module:
    return Words(sparse=True)


@ONE
@pytest.mark.parametrize("model", [Words, sparse_words])
def test_unusual_modules_train_as_in_a_plain_loop(model: Any, on: Place) -> None:
    data = (torch.arange(SAMPLES) % 10, torch.arange(SAMPLES) % 7)
    job = a_job(model, train_data=data, optimizer=oddlot.SGD(0.1))
    run, _ = trained(job, Asynchronous(), on)
    expected = plain_loop(job, in_batches(SAMPLES, BATCH, 2))
    found: Any = run.model
    assert (found.head.weight is found.words.weight) == (model is Words)
    assert [found.wide.dtype, found.narrow.dtype] == [torch.float64, torch.bfloat16]
    assert found.unused.tolist() == [1, 1, 1]
    assert torch.equal(found.fixed, expected.get_parameter("fixed"))
    assert distance(run.model, expected) < 1e-5


def noisy_step(model: nn.Module, batch: Any) -> Tensor:
    """Compute the loss with noise from Python's, NumPy's and PyTorch's generators."""
    noise = torch.rand(2) + random.random() + np.random.rand()  # noqa: NPY002 - as users draw
    return cross_entropy(model(batch[0] + noise), batch[1])


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))


def test_dropout_and_augmentation_are_the_same_on_both_engines() -> None:
    job = a_job(with_dropout, loss=None, training_step=noisy_step)
    here, _ = trained(job, Asynchronous(), fleet(1))
    there, _ = trained(job, Asynchronous(), local(1))
    other, _ = trained(job, Asynchronous(), fleet(1), seed=1)
    assert distance(here.model, there.model) == 0
    assert distance(here.model, other.model) > 0


# --- data, metrics, codecs -----------------------------------------------------------------------


class Points:
    """A map-style dataset of dicts."""

    def __init__(self) -> None:
        self.points, self.sides = rows()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"point": self.points[index], "side": self.sides[index]}


def dict_step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch["point"]), batch["side"])


def dict_predict(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return model(batch["point"]), batch["side"]


def pairs(samples: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([sample["point"] for sample in samples]), torch.stack([s["side"] for s in samples])


class Hits:
    """A metric with the interface of torchmetrics."""

    def reset(self) -> None:
        self.hits = self.seen = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.hits += int((outputs.argmax(dim=1) == targets).sum())
        self.seen += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.hits / self.seen)


@ONE
def test_datasets_and_batches_of_all_kinds_agree(on: Place) -> None:
    metrics = {"accuracy": oddlot.accuracy, "hits": Hits()}
    shared: dict[str, Any] = {"metrics": metrics, "train_data": Points(), "eval_data": Points()}
    arrays = a_job(eval_data=rows(), metrics=metrics)
    dicts = a_job(loss=None, training_step=dict_step, predict=dict_predict, **shared)
    collated = a_job(collate=pairs, **shared)
    expected, _ = trained(arrays, Asynchronous(), on)
    for job in (dicts, collated):
        run, _ = trained(job, Asynchronous(), on)
        assert distance(run.model, expected.model) == 0
        assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"])
    assert expected.accuracy == pytest.approx(expected.summary["metrics"]["hits"])
    outputs = expected.model(rows()[0])
    assert expected.accuracy == pytest.approx(oddlot.accuracy(outputs, rows()[1]))
    assert expected.loss == pytest.approx(cross_entropy(outputs, rows()[1]).item(), rel=1e-5)


def test_half_precision_is_the_same_on_both_engines() -> None:
    whole, _ = trained(a_job(), Asynchronous(), fleet(1))
    here, _ = trained(a_job(), Asynchronous(), fleet(1), codec=Half("bf16"))
    there, _ = trained(a_job(), Asynchronous(), local(1), codec=Half("bf16"))
    assert distance(here.model, there.model) == 0
    assert 0 < distance(here.model, whole.model) < 0.05
    assert here.summary["bytes_up"] == there.summary["bytes_up"]


@pytest.mark.parametrize("on", [local(1), fleet(3)], ids=["local", "simulated"])
def test_evaluation_does_not_change_the_model(on: Place) -> None:
    """In the simulator, one process alternates between tasks of old versions and evaluations of new versions."""
    runs = [
        trained(a_job(eval_data=data), Asynchronous(), on, evaluate_every=Every(1, "versions"))[0]
        for data in (None, rows(20))
    ]
    assert distance(*(run.model for run in runs)) == 0.0


# --- unusual model factories and datasets ----------------------------------------------------------


class Shuffled(nn.Module):
    """Module with random values besides parameters: an order that is no buffer, and a buffer that is not saved."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(2)
        self.register_buffer("scale", torch.rand(2) + 0.5, persistent=False)
        self.linear = nn.Linear(2, 2)

    def forward(self, points: Tensor) -> Tensor:
        scaled: Tensor = self.linear(points[:, self.order] * self.scale)
        return scaled


@pytest.mark.parametrize(("on", "seed"), [(local(2), 0), *((fleet(2), seed) for seed in range(3))])
def test_factory_random_draws_are_the_same_in_every_process(on: Place, seed: int) -> None:
    """The returned model is the evaluated model, although its factory draws random numbers."""
    job = a_job(Shuffled, eval_data=rows(), metrics={"accuracy": oddlot.accuracy})
    run, _ = trained(job, Synchronous(), on, "epochs>=4", seed=seed)
    points, sides = rows()
    assert run.accuracy == oddlot.accuracy(run.model(points), sides)
    assert run.loss == pytest.approx(cross_entropy(run.model(points), sides).item(), rel=1e-5)


@EACH
def test_batch_norm_accepts_any_number_of_samples(strategy: Strategy, on: Place) -> None:
    """A sample that is left over joins another minibatch."""
    _, state = trained(a_job(normed, 4 * BATCH + 1), strategy, on, "epochs>=2")
    assert len(state.merged) == 2 * (4 * BATCH + 1)


@pytest.mark.parametrize("cv", [0.1, 0.5])
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_staleness_limit_keeps_whole_tasks_on_equal_machines(limit: int, cv: float) -> None:
    machines = [oddlot.Machine(f"m{i}", 0.01, oddlot.machines.Lognormal(cv)) for i in range(4)]
    on = oddlot.Simulated(machines, computes=False)
    run, _ = trained(a_job(count=320), Asynchronous(max_staleness=limit), on, "epochs>=4")
    assert run.summary["versions"] <= 1.2 * 4 * 320 / BATCH


class Masked(nn.Module):
    """A module with a buffer of infinities, as in causal attention."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.linear = nn.Linear(2, 2)

    def forward(self, points: Tensor) -> Tensor:
        attention = self.mask.softmax(dim=1)
        masked: Tensor = self.linear(points) @ attention
        return masked


@EACH
def test_infinite_mask_buffer_is_accepted(strategy: Strategy, on: Place, tmp_path: Path) -> None:
    run, _ = trained(a_job(Masked), strategy, on, "epochs>=2", folder=RunFolder(tmp_path))
    assert torch.equal(run.model.get_buffer("mask"), Masked().mask)


@BOTH
def test_numpy_integers_are_accepted_as_settings(on: Place, tmp_path: Path) -> None:
    eight, one, three = (np.int64(number) for number in (8, 1, 3))
    folder, strategy = RunFolder(tmp_path), FastestK(k=one)  # type: ignore[arg-type]
    run, _ = trained(a_job(batch_size=eight), strategy, on, "epochs>=1", folder, seed=three)
    assert run.summary["samples_merged"] == SAMPLES
