"""The computation of tasks: gradients and local steps are pure functions of weights, task and seed."""

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset, Dataset, Subset

from oddlot.core.optimizers import SGD
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.tasks import Kind, Task
from oddlot.data.batches import order
from oddlot.data.seeding import generators_of, seed_of
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.train.devices import choose_device
from oddlot.train.job import Job
from oddlot.train.learner import Learner
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.train.lr_schedules import Linear, MultiStep
from tests.transcripts import raises, warns

torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(40, 3), torch.randint(2, (40,))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def a_job(model: Callable[[], nn.Module] = net, **changes: Any) -> Job:
    job = Job(model, (INPUTS, TARGETS), cross_entropy, batch_size=8, optimizer=SGD(0.1), device="cpu")
    return replace(job, **changes)


class Bench:
    """A learner with the hub's weights."""

    def __init__(self, job: Job, **options: Any) -> None:
        self.model = job.model()
        self.layout = Layout.from_module(self.model, job.as_buffers)
        self.weights = FlatBuffer.empty(self.layout)
        self.weights.gather(self.model)
        learns = {name: options.pop(name) for name in ("device", "clock") if name in options}
        constants = self.layout.constants(self.model)
        inputs = LearnerInputs(job=job, layout=self.layout, constants=constants, **options)
        self.learner = Learner(inputs, **learns)

    def compute(
        self,
        *spans: tuple[int, int],
        kind: Kind = "gradient",
        stop: Callable[[], bool] = lambda: False,
        merged: int | None = None,
    ) -> tuple[Any, dict[str, Tensor]]:
        task = Task("w1:1", "w1", tuple(Span(0, a, b) for a, b in spans), 0, kind, merged=merged)
        out = FlatBuffer.empty(self.layout)
        out.memory.fill_(0x55)
        self.learner.load(0, self.weights)
        work = self.learner.step(self.weights, task, out, stop)
        return work, {name: view.clone() for name, view in out.views()}


def plain_gradient(model: nn.Module, rows: Any) -> dict[str, Tensor]:
    cross_entropy(model(INPUTS[rows]), TARGETS[rows]).backward()  # type: ignore[no-untyped-call]
    return {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


def deep() -> nn.Module:
    """Return a model with several BatchNorm layers. The statistics of all of them are in one block."""
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(3, 2))


@pytest.mark.parametrize("make", [net, deep])
def test_gradient_task_returns_mean_gradient_and_buffers(
    make: Callable[[], nn.Module],
) -> None:
    work, found = Bench(a_job(make)).compute((8, 16))
    rows, model = order(0, 0, 40)[8:16], make()
    assert same(found, plain_gradient(model, rows) | dict(model.named_buffers()))
    assert found["1.num_batches_tracked"] == 1, "an integer buffer tells its increment"
    loss = cross_entropy(make()(INPUTS[rows]), TARGETS[rows])
    assert (work.samples, work.loss) == (8, pytest.approx(loss.item()))


def test_minibatches_of_unequal_size_equal_one_large_batch() -> None:
    job = a_job(lambda: nn.Linear(3, 2))
    bench = Bench(job)
    work, found = bench.compute((0, 10), (20, 29))
    rows = [*order(0, 0, 40)[0:10], *order(0, 0, 40)[20:29]]
    model = nn.Linear(3, 2)
    bench.weights.scatter(model)
    assert work.samples == 19
    assert same(found, plain_gradient(model, rows))
    large = Bench(replace(job, batch_size=19))
    large.weights.copy_(bench.weights)
    assert same(large.compute((0, 10), (20, 29))[1], found)


def groups(parameters: Any) -> torch.optim.Optimizer:
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": rest}], 0.1, 0.9)


@pytest.mark.parametrize("kind", ["delta", "weights"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_local_steps_equal_pytorch_and_return_delta_or_weights(kind: Kind, scheduled: bool) -> None:
    """Clipped steps of a local optimizer, with a schedule that starts at the merged samples, equal PyTorch's."""
    model, job, schedule = net(), a_job(optimizer=SGD(0.1, momentum=0.9)), Linear(1.5)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    if scheduled:
        job = replace(job, lr_schedule=schedule, max_grad_norm=0.5, local_optimizer=groups)
        optimizer = groups(model.parameters())
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    factor = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule((24 + 8 * step) / 40) if scheduled else 1.0
    )
    for at in (8, 16):
        optimizer.zero_grad()
        plain_gradient(model, order(0, 0, 40)[at : at + 8])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5 if scheduled else 1e9)
        optimizer.step()
        factor.step()
    end: dict[str, Tensor] = dict(model.named_parameters())
    expected = end if kind == "weights" else {name: start[name] - end[name] for name in end}
    buffers = dict(model.named_buffers()) | {"1.num_batches_tracked": torch.tensor(2)}
    merged = 24 if scheduled else None
    assert same(Bench(job).compute((8, 24), kind=kind, merged=merged)[1], expected | buffers)


def test_clipping_above_the_norm_changes_no_bit() -> None:
    plain, clipped = (Bench(a_job(max_grad_norm=most)).compute((0, 8))[1] for most in (None, 1e6))
    assert all(torch.equal(plain[name], clipped[name]) for name in plain)


def test_clipping_keeps_nan_in_its_tensor() -> None:
    """Clipping keeps NaN in its tensor. All other tensors remain finite."""

    def step(model: Any, batch: Any) -> Tensor:
        bad: Tensor = model.weight.sum() * torch.nan
        return bad + cross_entropy(batch[0] @ model.other.T, batch[1])

    def model() -> nn.Module:
        linear = nn.Linear(3, 2, bias=False)
        linear.other = nn.Parameter(torch.ones(2, 3))
        return linear

    for spans in ([(0, 8)], [(0, 20)]):
        found = Bench(a_job(model, loss=None, training_step=step, max_grad_norm=0.1)).compute(*spans)[1]
        assert found["weight"].isnan().all()
        assert found["other"].isfinite().all()


def test_optimizer_without_lr_rejects_a_schedule() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

    with raises(JobError, "optimizer_without_rate", optimizer="Own"):
        Bench(a_job(lr_schedule=MultiStep((1,)), local_optimizer=Own)).compute((0, 8), kind="delta", merged=0)


@pytest.mark.parametrize("kind", ["gradient", "delta"])
def test_task_is_a_pure_function(kind: Kind) -> None:
    """Dropout and random augmentations are the same on every learner, independent of earlier tasks."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0] + torch.rand(3)), batch[1])

    job = a_job(lambda: nn.Sequential(net(), nn.Dropout(0.5)), loss=None, training_step=step)
    first = Bench(job)
    _, once = first.compute((8, 16), kind=kind)
    first.compute((16, 24), kind="weights")
    _, again = first.compute((8, 16), kind=kind)
    _, elsewhere = Bench(job).compute((8, 16), kind=kind)
    _, other_seed = Bench(job, seed=1).compute((8, 16), kind=kind)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert all(torch.equal(once[name], elsewhere[name]) for name in once)
    assert not torch.equal(once["0.0.weight"], other_seed["0.0.weight"])


def test_stopped_task_returns_the_mean_of_finished_minibatches() -> None:
    answers = iter([False, False, True])
    bench = Bench(a_job(lambda: nn.Linear(3, 2)))
    work, found = bench.compute((0, 40), stop=lambda: next(answers))
    assert work.samples == 16
    assert same(found, bench.compute((0, 16))[1])
    assert bench.compute((0, 8), stop=lambda: True)[0] is None


class Ties(nn.Module):
    """A model with tied weights, a sparse and a frozen embedding, an unused parameter, and one of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(10, 4, sparse=True)
        self.fixed = nn.Embedding(10, 4).requires_grad_(False)
        self.inner = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner.weight
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.last = nn.Parameter(torch.ones(4))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x) + self.fixed(x)
        result: Tensor = self.tied(self.inner(hidden).relu()) * self.scale.float() + self.last
        return result


@pytest.mark.parametrize("max_grad_norm", [None, 1e6])
@pytest.mark.parametrize("batch", [8, 3])
def test_sparse_tied_frozen_and_unused_parameters_equal_pytorch(
    batch: int, max_grad_norm: float | None
) -> None:
    rows, targets = torch.arange(10), torch.arange(10) % 4
    job = Job(
        Ties, (rows, targets), cross_entropy, batch_size=batch, max_grad_norm=max_grad_norm, device="cpu"
    )
    bench = Bench(job)
    _, found = bench.compute((0, 8))
    model, chosen = Ties(), order(0, 0, 10)[:8]
    cross_entropy(model(rows[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
    expected = {
        name: parameter.grad.to_dense() if parameter.grad is not None else torch.zeros_like(parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert found.keys() == expected.keys()
    assert found["scale"].dtype == torch.float64
    assert same(found, expected)
    assert expected["words.weight"].count_nonzero() > 0


class Running(nn.Module):
    """A model with a buffer that each forward pass replaces, by `self.mean = ...`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + x.mean(dim=0)
        result: Tensor = self.linear(x - self.mean)
        return result


def test_replaced_buffer_is_returned() -> None:
    bench = Bench(a_job(Running))
    _, found = bench.compute((0, 8))
    mean = INPUTS[order(0, 0, 40)[0:8]].mean(dim=0)
    assert torch.allclose(found["mean"], mean)
    bench.weights.view("mean").copy_(torch.ones(3))
    _, found = bench.compute((0, 8))
    assert torch.allclose(found["mean"], 0.9 + mean), "the next task starts from the hub's value"


REPLACED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "grow": ("parameter_replaced", lambda model: setattr(model.weight, "data", torch.zeros(4, 3))),
    "renew": ("parameter_replaced", lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(2, 3)))),
    "move away": ("parameter_replaced", lambda model: setattr(model.weight, "data", torch.zeros(2, 3))),
    "cut": ("parameter_replaced", lambda model: setattr(model.weight, "data", model.weight.data[:1])),
    "freeze": ("requires_grad_changed", lambda model: model.weight.requires_grad_(False)),
}


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("name", REPLACED)
def test_replaced_or_frozen_parameters_raise(name: str, first: bool) -> None:
    """Parameters that are replaced or frozen before or after the forward pass raise an error."""
    code, change = REPLACED[name]

    def step(model: nn.Module, batch: Any) -> Tensor:
        if first:
            change(model)
        loss = cross_entropy(model(batch[0]), batch[1])
        change(model)
        return loss

    with raises(JobError, code, parameter="weight"):
        Bench(a_job(lambda: nn.Linear(3, 2), loss=None, training_step=step)).compute((0, 8))


class Teacher(nn.Module):
    """A model with a student, a frozen teacher, and buffers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
        self.register_buffer("phase", torch.tensor([1j]))
        self.register_buffer("count", torch.tensor([1]))
        self.register_buffer("late", None)
        self.register_buffer("mean", torch.zeros(2), persistent=False)
        self.register_buffer("cache", torch.zeros(2), persistent=False)


def follow(model: Any) -> None:
    model.teacher.weight.lerp_(model.student.weight, 0.5)


BESIDE: list[tuple[str, str, Callable[[Any], object]]] = [
    ("constant_changed", "teacher.weight", follow),
    ("constant_changed", "teacher.weight", lambda m: m.teacher.weight.copy_(m.teacher.weight.flip(0))),
    ("constant_changed", "teacher.bias", lambda m: setattr(m.teacher.bias, "data", m.teacher.bias + 1)),
    (
        "constant_changed",
        "teacher.bias",
        lambda m: setattr(m.teacher, "bias", nn.Parameter(torch.ones(2), requires_grad=False)),
    ),
    ("constant_changed", "phase", lambda m: m.phase.mul_(1j)),
    ("constant_changed", "phase", lambda m: setattr(m, "phase", m.phase * 1j)),
    ("constant_changed", "late", lambda m: setattr(m, "late", torch.ones(2))),
    ("constant_changed", "mean", lambda m: m.mean.add_(1)),
    ("constant_changed", "mean", lambda m: setattr(m, "mean", m.mean + 1)),
    ("buffer_reshaped", "count", lambda m: setattr(m, "count", m.count + 0.5)),
    ("requires_grad_changed", "teacher.weight", lambda m: m.teacher.weight.requires_grad_(True)),
    ("weights_changed", "student.bias", lambda m: m.student.bias.add_(1)),
    ("weights_changed", "student.weight", lambda m: m.student.weight.copy_(m.student.weight.flip(0))),
]


def acting(act: Callable[[Any], object]) -> Callable[[Any, Any], Tensor]:
    """Return a training step that also calls `act`."""

    def step(model: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            act(model)
        return cross_entropy(model.student(batch[0]), batch[1])

    return step


@pytest.mark.parametrize("kind", ["gradient", "delta"])
@pytest.mark.parametrize("number", range(len(BESIDE)), ids=[f"{code} {name}" for code, name, _ in BESIDE])
def test_changes_outside_the_optimizer_are_rejected(kind: Kind, number: int) -> None:
    code, name, act = BESIDE[number]
    with raises(JobError, code, **{"buffer" if code == "buffer_reshaped" else "parameter": name}):
        Bench(a_job(Teacher, loss=None, training_step=acting(act))).compute((0, 8), kind=kind)


def test_training_step_with_its_own_optimizer_is_rejected() -> None:
    def step(model: Any, batch: Any) -> Tensor:
        loss = cross_entropy(model.student(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(model.student.parameters(), 0.1).step()
        return loss

    with raises(JobError, "weights_changed", parameter="student.weight"):
        Bench(a_job(Teacher, loss=None, training_step=step)).compute((0, 8))


def test_embedding_with_max_norm_works_with_local_steps_only() -> None:
    """The embedding changes its weights in each forward pass. A delta includes this change, but a gradient does not."""
    rows = torch.arange(10), torch.arange(10) % 4
    job = Job(lambda: nn.Embedding(10, 4, max_norm=0.5), rows, cross_entropy, batch_size=8, device="cpu")
    Bench(job).compute((0, 8), kind="delta")
    with raises(JobError, "weights_changed", parameter="weight"):
        Bench(job).compute((0, 8), kind="gradient")


def test_weights_are_checked_in_the_first_and_every_101st_task() -> None:
    """The other tasks have no overhead. A change in one of them is detected later."""
    on = [False]
    step = acting(lambda model: follow(model) if on[0] else None)
    bench = Bench(a_job(Teacher, loss=None, training_step=step))
    for task in range(101):
        on[0] = task > 10
        bench.compute((0, 8))
    with raises(JobError, "constant_changed", parameter="teacher.weight"):
        bench.compute((0, 8))


def grow(model: Any) -> None:
    """Create buffers, as rotary embeddings do for longer sequences, or lazily created masks."""
    model.cache = torch.ones(3)
    model.register_buffer("mask", torch.ones(3), persistent=False)


def test_resized_non_persistent_buffers_are_allowed() -> None:
    bench = Bench(a_job(Teacher, loss=None, training_step=acting(grow)))
    for _ in range(2):
        bench.compute((0, 8))


def test_non_persistent_buffers_in_as_buffers_are_merged() -> None:
    step = acting(lambda model: model.mean.add_(0.5))
    bench = Bench(a_job(Teacher, loss=None, training_step=step, as_buffers=["mean"]))
    for _ in range(2):
        assert bench.compute((0, 8))[1]["mean"].tolist() == [0.5] * 2, "from the hub's value"


SCRIPTED = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)


@SCRIPTED
@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_torchscript_models_give_the_same_updates(traced: bool) -> None:
    """Statistics and parameters of TorchScript models are also views of the block."""

    def make() -> nn.Module:
        trace: Any = torch.jit.trace
        made: nn.Module = trace(net(), INPUTS[:8]) if traced else torch.jit.script(net())
        made.load_state_dict(net().state_dict())  # tracing has changed the statistics
        return made

    for kind in ("gradient", "delta"):
        _, found = Bench(a_job(make)).compute((0, 16), kind=kind)
        assert same(found, Bench(a_job(net)).compute((0, 16), kind=kind)[1])


@SCRIPTED
def test_scripted_model_may_replace_its_buffers() -> None:
    bench = Bench(a_job(lambda: torch.jit.script(Running())))
    assert same(
        {"mean": bench.compute((0, 8))[1]["mean"]}, {"mean": INPUTS[order(0, 0, 40)[0:8]].mean(dim=0)}
    )


@pytest.mark.parametrize(
    "act",
    [follow, lambda m: setattr(m.teacher.weight, "data", (m.teacher.weight + m.student.weight) / 2)],
    ids=["in place", "replaced"],
)
def test_frozen_parameters_in_as_buffers_are_merged(act: Callable[[Any], object]) -> None:
    job = a_job(Teacher, loss=None, training_step=acting(act), as_buffers=["teacher.w*"])
    bench = Bench(job)
    start = {name: view.clone() for name, view in bench.weights.views()}
    _, found = bench.compute((0, 8))
    middle = (start["teacher.weight"] + start["student.weight"]) / 2
    assert torch.allclose(found["teacher.weight"], middle, atol=1e-6)
    bench.compute((8, 16))
    assert torch.allclose(bench.compute((0, 8))[1]["teacher.weight"], middle, atol=1e-6), "again the hub's"


@pytest.mark.parametrize(("kind", "missing"), [("gradient", 1), ("delta", 1), ("weights", 0)])
@pytest.mark.parametrize("batch", [8, 3])
def test_task_reports_parameters_without_a_gradient(kind: Kind, missing: int, batch: int) -> None:
    """A task has one minibatch or several. In updates of kind `weights`, all parameters count."""
    job = Job(Ties, (torch.arange(10), torch.arange(10) % 4), cross_entropy, batch_size=batch, device="cpu")
    bench = Bench(job)
    out = FlatBuffer.empty(bench.layout)
    bench.learner.load(0, bench.weights)
    bench.learner.step(bench.weights, Task("w1:1", "w1", (Span(0, 0, 8),), 0, kind), out)
    names = [entry.name for entry in bench.layout.trainable_entries]
    assert out.without_gradient.tolist() == [missing * (name == "unused") for name in names]


GENERATORS: list[Callable[[], Any]] = [
    lambda: np.random.default_rng(3),
    lambda: np.random.RandomState(3),
    lambda: random.Random(3),
    lambda: torch.Generator().manual_seed(3),
]


class Noisy(Dataset[tuple[Tensor, int]]):
    """A dataset with its own random generator."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        match self.rng:
            case torch.Generator():
                noise = torch.rand(3, generator=self.rng)
            case _:
                noise = torch.tensor([self.rng.random() for _ in range(3)]).float()
        return noise, index % 2


@pytest.mark.parametrize("parts", [3, np.arange(3), None])
def test_other_attributes_of_a_dataset_are_ignored(parts: Any) -> None:
    data = Noisy(np.random.default_rng(3))
    data.datasets, data.dataset = parts, data  # type: ignore[attr-defined]
    assert generators_of(data) == [data.rng]


@pytest.mark.parametrize(("rng", "kind"), [(42, "int"), (np.random, "module"), ([random.Random(3)], "list")])
def test_rng_attribute_that_cannot_be_seeded_warns(rng: Any, kind: str) -> None:
    with warns("rng_not_seeded", type=kind):
        a_job(train_data=Subset(ConcatDataset([Noisy(rng)]), range(40)))


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(ConcatDataset([data]), range(40))])
@pytest.mark.parametrize("make", GENERATORS)
def test_dataset_generator_is_seeded_for_each_task(make: Callable[[], Any], wrap: Any) -> None:
    one, other = (Bench(a_job(lambda: nn.Linear(3, 2), train_data=wrap(Noisy(make())))) for _ in range(2))
    other.weights.copy_(one.weights)
    first, second = one.compute((0, 8))[1], one.compute((8, 16))[1]
    assert same(other.compute((8, 16))[1], second), "whatever was drawn before"
    assert not same(first, second)


def test_buffer_that_changes_its_shape_raises() -> None:
    class Growing(Running):
        def forward(self, x: Tensor) -> Tensor:
            self.mean = torch.zeros(len(x))
            result: Tensor = self.linear(x)
            return result

    with raises(JobError, "buffer_reshaped", buffer="mean", before="float32 [3]", after="float32 [8]"):
        Bench(a_job(Growing)).compute((0, 8))


@pytest.mark.parametrize(
    ("changes", "code", "fields"),
    [
        ({"loss": lambda y, t: cross_entropy(y, t, reduction="none")}, "loss_not_scalar", {"shape": (8,)}),
        ({"loss": lambda y, t: 0.5}, "loss_without_tensor", {"given": 0.5}),
        ({"loss": lambda y, t: None}, "loss_without_tensor", {"given": None}),
        ({"loss": lambda y, t: cross_entropy(y.detach(), t)}, "loss_without_gradient", {}),
        ({"collate": list, "train_data": [1] * 40}, "batch_without_targets", {"type": "list"}),
    ],
    ids=["shape", "number", "none", "detached", "batch"],
)
def test_invalid_batch_or_loss_raises(changes: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    with raises(JobError, code, **fields):
        Bench(a_job(**changes)).compute((0, 8))


@pytest.mark.parametrize(
    ("setting", "given", "code"),
    [
        ("model", nn.Linear(3, 2), "not_a_function"),
        ("loss", None, "missing_loss"),
        ("loss", 0.5, "invalid_value"),
        ("loss", nn.MSELoss, "class_given"),
        ("batch_size", 0, "invalid_value"),
        ("batch_size", "32", "invalid_value"),
        ("batch_size", True, "invalid_value"),
        ("metrics", [nn.functional.mse_loss], "invalid_value"),
        ("metrics", {"a b": len}, "invalid_metric_name"),
        ("metrics.a", 3, "invalid_value"),
        ("metrics.a", nn.L1Loss, "class_given"),
        ("optimizer", torch.optim.SGD, "torch_object_given"),
        ("until", 3, "invalid_value"),
        ("max_grad_norm", 0, "invalid_value"),
        ("max_grad_norm", "1", "invalid_value"),
        ("lr_schedule", 0.5, "invalid_value"),
        ("lr_schedule", MultiStep, "class_given"),
    ],
)
def test_invalid_job_settings_are_rejected(setting: str, given: Any, code: str) -> None:
    name, _, metric = setting.partition(".")
    changes: dict[str, Any] = {name: {metric: given} if metric else given}
    with raises(UsageError, code) as caught:
        a_job(**changes)
    assert caught.value.key == setting


def test_every_task_has_its_own_seed() -> None:
    tasks = [Task("a:1", "a", (Span(epoch, at, at + 4),), 0) for epoch in range(3) for at in (0, 4, 8)]
    assert len({seed_of(seed, task) for seed in (0, 1) for task in tasks}) == 18


def test_workers_use_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [choose_device("auto", worker).index for worker in range(5)] == [0, 1, 2, 0, 1]


def test_named_device_is_used_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("meta") == torch.device("meta")
    with raises(UsageError, "unknown_device", given="gpu"):
        choose_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises(UsageError, "missing_device", given="cuda:1", type="cuda"):
        choose_device("cuda:1")


def test_minibatches_are_weighted_with_the_returned_number() -> None:
    def by_tokens(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        count = int((batch[1] == 1).sum())
        return cross_entropy(model(batch[0]), batch[1].where(batch[1] == 1, -100), reduction="sum") / max(
            count, 1
        ), count

    def flat() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(3, 2)

    (one, whole), (several, parts) = (
        Bench(a_job(flat, training_step=by_tokens, batch_size=size)).compute((0, 24)) for size in (24, 8)
    )
    assert (one.samples, several.samples) == (24, 24)
    assert several.loss == pytest.approx(one.loss)
    assert same(parts, whole)


@pytest.mark.parametrize("kind", ["gradient", "delta"])
def test_minibatches_of_weight_0_are_skipped(kind: Kind) -> None:
    """Minibatches of weight 0 are skipped, because the mean over zero tokens would be NaN."""

    def first_only(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        used = batch[1] == 1 if next(answers) else batch[1] > 9
        return cross_entropy(model(batch[0])[used], batch[1][used]), used.sum()

    def flat() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(3, 2)

    answers = iter([False, True, False, False, True])
    bench = Bench(a_job(flat, training_step=first_only))
    mixed, update = bench.compute((0, 24), kind=kind)
    empty, nothing = bench.compute((0, 8), kind=kind)
    alone, expected = bench.compute((8, 16), kind=kind)
    assert (mixed.samples, empty.samples, empty.loss) == (24, 8, None)
    assert mixed.loss == pytest.approx(alone.loss)
    assert same(update, expected)
    assert not any(part.any() for part in nothing.values())


@pytest.mark.parametrize(
    "number",
    [-1, 2.0, True, None, torch.tensor(0.1, requires_grad=True), torch.tensor(2.0), torch.tensor([1, 2])],
)
def test_invalid_loss_weights_are_rejected(number: Any) -> None:
    with raises(JobError, "invalid_loss_weight", given=number):
        Bench(a_job(loss=lambda y, t: (cross_entropy(y, t), number))).compute((0, 8))


def test_constant_losses_change_nothing() -> None:
    job = a_job(training_step=lambda model, batch: torch.zeros((), requires_grad=True))
    work, update = Bench(job).compute((0, 24))
    assert work.samples == 24
    assert not update["0.weight"].any()


class Modes(torch.optim.SGD):
    calls: tuple[str, ...] = ()

    def train(self) -> None:
        self.calls += ("train",)

    def eval(self) -> None:
        self.calls += ("eval",)


def test_optimizer_modes_follow_local_steps() -> None:
    made: list[Modes] = []

    def make(parameters: Any) -> Modes:
        made.append(Modes(parameters, lr=0.1))
        return made[-1]

    bench = Bench(a_job(local_optimizer=make, keep_optimizer=True))
    for _ in range(2):
        bench.compute((0, 16), kind="delta")
    assert [one.calls for one in made] == [("train", "eval", "train", "eval")]


def test_data_with_another_length_than_on_the_hub_are_rejected() -> None:
    """The length is checked when a worker joins and at each task. An example is a folder with new files."""
    samples = [(row, target) for row, target in zip(INPUTS, TARGETS, strict=True)]
    size = len(samples)
    bench = Bench(a_job(train_data=samples), samples=size)
    bench.compute((0, 8))
    samples.append(samples[0])
    with raises(JobError, "data_changed", found=size + 1, expected=size):
        bench.compute((8, 16))
    with raises(JobError, "data_changed", found=size + 1, expected=size):
        Bench(a_job(train_data=samples), samples=size)


class Arc(nn.Module):
    """A loss module with weights and a running mean."""

    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        self.weight, self.moves = nn.Parameter(torch.ones(2, 2)), moves
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.moves:
            self.mean.lerp_(outputs.detach().mean(dim=0), 0.1)
        return cross_entropy(outputs @ self.weight, targets)

    def step(self, model: Any, batch: Any) -> Tensor:
        return self(model(batch[0]), batch[1])  # type: ignore[no-any-return]


HIDDEN = [nn.Linear(3, 3)]


@pytest.mark.parametrize("kind", ["gradient", "delta"])
@pytest.mark.parametrize(
    ("changes", "name", "shape"),
    [
        ({"loss": Arc()}, "job.loss.weight", (2, 2)),
        ({"training_step": Arc().step}, "job.training_step.weight", (2, 2)),
        ({"loss": lambda y, t: cross_entropy(y, t) + HIDDEN[0].bias.sum()}, "", (3,)),
    ],
    ids=["loss", "method", "global"],
)
def test_trainable_parameters_outside_of_the_model_are_rejected(
    kind: Kind, changes: dict[str, Any], name: str, shape: tuple[int, ...]
) -> None:
    with raises(JobError, "parameter_outside_model", parameter=name, shape=shape):
        Bench(a_job(**changes)).compute((0, 8), kind=kind)


def test_buffers_of_the_loss_must_not_change() -> None:
    Bench(a_job(loss=Arc().requires_grad_(False))).compute((0, 8))
    with raises(JobError, "constant_changed", parameter="job.loss.mean"):
        Bench(a_job(loss=Arc(moves=True).requires_grad_(False))).compute((0, 8))


def anneal(owner: Any) -> None:
    owner.tau *= 0.9


def count(owner: Any) -> None:
    owner.tau += 1


def remember(owner: Any) -> None:
    """Set a random number, like a cache or the loss of the last batch."""
    owner.tau = torch.rand(()).item()


class Counted(Dataset[Any]):
    tau = 5.0

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change, self.queue = change, torch.zeros(2)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.change(self)
        return INPUTS[index], TARGETS[index]


def fill(owner: Any) -> None:
    owner.queue[0] += 1.0


class Annealed(nn.Linear):
    tau = 5.0

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__(3, 2)
        self.change, self.queue = change, torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.change(self)
        return super().forward(x)


@pytest.mark.parametrize("change", [anneal, count, remember, fill])
def test_attributes_that_training_changes_steadily_warn_once(change: Any) -> None:
    """Attributes of the dataset and of modules of the model cause the warning. Other numbers are caches."""
    job = a_job(lambda: nn.Sequential(Annealed(change)), train_data=Subset(Counted(change), range(40)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bench = Bench(job)
        for _ in range(7):
            bench.compute((0, 40))
    found = [str(each.message.fields["attribute"]) for each in caught]  # type: ignore[union-attr]
    expected = {remember: [], fill: ["model.0.queue"]}
    assert sorted(found) == expected.get(change, ["job.train_data.tau", "model.0.tau"])
