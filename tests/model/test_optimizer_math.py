"""The arithmetic of the hub's optimizers equals PyTorch's, and user-defined optimizers are supported."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.parity.plain_loop import torch_optimizer
from oddlot import Job, LocalSGD, Strategy, Synchronous, fit, replay
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.core.tasks import Facts
from oddlot.model import vector_ops as kernels
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.optimizer_math import (
    Directions,
    GroupOptimizers,
    HubOptimizer,
    Sections,
    hub_optimizer,
    memory,
)
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore
from tests.fits import a_job, fleet
from tests.transcripts import raises

RULES = [
    SGD(0.1),
    SGD(0.1, weight_decay=0.01),
    SGD(0.1, momentum=0.9),
    SGD(0.1, momentum=0.9, nesterov=True),
    SGD(0.1, momentum=0.9, weight_decay=0.01),
    SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    Adam(0.01),
    Adam(0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    AdamW(0.01),
    AdamW(0.01, weight_decay=0.0),
]


def both(
    rule: Optimizer,
    seed: int,
    rows: int = 5,
    columns: int = 17,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> tuple[nn.Linear, torch.optim.Optimizer, WeightStore]:
    """Return a model, PyTorch's optimizer for it, and a store with the same weights."""
    torch.manual_seed(seed)
    model = nn.Linear(columns, rows, bias=False, dtype=dtype)
    initial = FlatBuffer.empty(Layout.from_module(model))
    initial.gather(model)
    return model, torch_optimizer(rule, list(model.parameters())), WeightStore(initial, rule, **options)


def one_step(store: WeightStore, gradient: Tensor, share: float = 1.0, held: bool = False) -> None:
    """Make one step with a gradient. With `held`, each version is written into another block."""
    flat, number = FlatBuffer.empty(store.layout), store.version
    flat.view("weight").copy_(gradient)
    store.receive(Facts(f"w1:{number}", "w1", number, 1), Payload("gradient", flat))
    if held:
        store.acquire(number)
    store.step({f"w1:{number}": share}, merged=number)
    if held:
        store.release(number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("rule", RULES)
def test_optimizer_equals_torch_optim(rule: Optimizer, share: float, held: bool, dtype: torch.dtype) -> None:
    """60 steps with gradients that depend on the weights equal PyTorch's steps."""
    model, optimizer, store = both(rule, 3, dtype=dtype)
    for _ in range(60):
        noise = torch.randn(5, 17, dtype=dtype)
        model.weight.grad = (model.weight.detach() * 0.5 + noise) * share
        one_step(store, store.weights.view("weight") * 0.5 + noise, share, held)
        optimizer.step()
    expected, found = model.weight.detach(), store.weights.view("weight")
    # Rounding of a step is amplified by Adam's division, not by SGD.
    most = {torch.float32: 8, torch.float64: 8, torch.bfloat16: 4}[dtype] * torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=most, atol=most)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_optimizer_with_schedule_equals_torch_optim(rule: Optimizer, held: bool) -> None:
    """Momentum accumulates directions, not steps. Weight decay is multiplied by the learning rate."""

    def factor(step: int) -> float:
        return 1.0 / (1 + step)

    model, optimizer, store = both(rule, 6, rates=lambda merged, _: {0: rule.lr * factor(merged)})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(20):
        model.weight.grad = torch.randn(5, 17)
        one_step(store, model.weight.grad, held=held)
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(store.weights.view("weight"), model.weight.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_one_step_differs_by_at_most_two_ulps(rule: Optimizer) -> None:
    model, optimizer, store = both(rule, 4, 3, 1000)
    gradient, before = torch.randn(3, 1000), model.weight.detach().clone()
    model.weight.grad = gradient.clone()
    optimizer.step()
    one_step(store, gradient)
    after = model.weight.detach()
    largest_term = torch.maximum(before.abs(), (after - before).abs())
    error = (store.weights.view("weight") - after).abs()
    assert (error <= 2 * torch.finfo(torch.float32).eps * largest_term).all()


@pytest.mark.parametrize("rule", RULES)
def test_chunks_and_compilation_do_not_change_the_result(
    rule: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several chunks and an odd remainder, compiled or not, give the same result as one chunk of PyTorch operations."""

    def run() -> Tensor:
        _, _, store = both(rule, 5, 11, 1009)
        for _ in range(4):
            one_step(store, torch.randn(11, 1009))
        return store.weights.view("weight").clone()

    plain = run()
    monkeypatch.setattr(kernels, "CHUNK_NUMBERS", 1000)
    monkeypatch.setattr(kernels, "LARGE_NUMBERS", 1)
    torch.testing.assert_close(run(), plain, rtol=1e-5, atol=1e-6)


def test_optimizer_allocates_only_its_own_state() -> None:
    section = {0: torch.zeros(10)}
    assert not hub_optimizer(SGD(0.1), section).state
    assert set(hub_optimizer(SGD(0.1, momentum=0.5), section).state) == {"momentum/0"}
    assert set(hub_optimizer(Adam(), section).state) == {"mean/0", "square/0"}


def test_state_of_another_optimizer_is_rejected() -> None:
    weights = FlatBuffer.empty(Layout.from_module(nn.Linear(3, 2)))
    with raises(CheckpointError, "other_optimizer", needed=["0/momentum/0"]):
        GroupOptimizers(SGD(0.1, momentum=0.5), weights).load(GroupOptimizers(Adam(), weights).state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_negative_momentum_equals_the_formula(
    decay: float, share: float, held: bool, dtype: torch.dtype
) -> None:
    """torch.optim rejects a negative momentum m. The formula: momentum <- m x momentum + gradient + decay x weights."""
    model, _, store = both(SGD(0.1), 3, dtype=dtype)
    store = WeightStore(store.weights, SGD(0.1, momentum=-0.8, weight_decay=decay))
    weights, momentum = model.weight.detach().clone(), torch.zeros(5, 17, dtype=dtype)
    for _ in range(30):
        gradient = torch.randn(5, 17, dtype=dtype)
        momentum = -0.8 * momentum + share * gradient + decay * weights
        weights = weights - 0.1 * momentum
        one_step(store, gradient, share, held)
    most = {torch.float32: 8, torch.float64: 8, torch.bfloat16: 4}[dtype] * torch.finfo(dtype).eps
    torch.testing.assert_close(store.weights.view("weight"), weights, rtol=most, atol=most)


# --- parameter groups ----------------------------------------------------------------------------


def grouped(model: nn.Module) -> FlatBuffer:
    """Return the model's weights, with its biases in group 1."""
    initial = FlatBuffer.empty(Layout.from_module(model, group_of=lambda name: int(name.endswith("bias"))))
    initial.gather(model)
    return initial


OF_GROUPS: dict[int, Optimizer] = {0: AdamW(0.01, weight_decay=0.5), 1: SGD(0.3, momentum=0.9)}


@pytest.mark.parametrize("held", [False, True])
def test_parameter_groups_step_with_their_own_optimizers(held: bool) -> None:
    """The result equals two PyTorch optimizers with one schedule. A resumed store continues with both states."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    halve: dict[str, Any] = {"rates": lambda merged, version: {0: 0.005, 1: 0.15}}
    store = WeightStore(grouped(model), OF_GROUPS, **halve)
    names = dict(model.named_parameters())
    optimizers = [
        torch_optimizer(rule, [p for n, p in names.items() if n.endswith(ending)])
        for rule, ending in ((AdamW(0.005, weight_decay=0.5), "weight"), (SGD(0.15, momentum=0.9), "bias"))
    ]
    for version in range(8):
        flat = FlatBuffer.empty(store.layout)
        for name, parameter in names.items():
            parameter.grad = torch.randn(parameter.shape)
            flat.view(name).copy_(parameter.grad)
        store.receive(Facts(f"a:{version}", "a", version, 1), Payload("gradient", flat))
        if held:
            store.acquire(version)
        store.step({f"a:{version}": 1.0}, merged=version)
        for optimizer in optimizers:
            optimizer.step()
        if version == 3:
            state = {name: tensor.clone() for name, tensor in store.state_tensors().items()}
            store = WeightStore(FlatBuffer.empty(store.layout), OF_GROUPS, **halve)
            store.load_state(state)
    for name, parameter in names.items():
        torch.testing.assert_close(store.weights.view(name), parameter.data, rtol=1e-5, atol=1e-6)


def test_group_without_optimizer_is_rejected() -> None:
    with raises(UsageError, "group_without_optimizer", groups=[1]):
        WeightStore(grouped(nn.Linear(4, 3)), {0: SGD(0.1)})


# --- a user-defined optimizer --------------------------------------------------------------------


@dataclass(frozen=True)
class SignSGD(Optimizer):
    """An optimizer with steps of equal size against the sign of the momentum."""

    lr: float = 0.01
    momentum: float = 0.9

    def hub_optimizer(self, sections: Sections) -> HubOptimizer:
        return HubSignSGD(self, sections)


class HubSignSGD:
    linear = False

    def __init__(self, optimizer: SignSGD, sections: Sections) -> None:
        self.optimizer, self.lr, self.state = optimizer, optimizer.lr, memory(sections, "momentum")

    def begin(self, factor: float) -> None:
        self.lr = self.optimizer.lr * factor

    def apply(
        self, index: int, span: slice, steps: int, *, direction: Directions, source: Tensor, target: Tensor
    ) -> None:
        momentum = self.state[f"momentum/{index}"][span].lerp_(direction[0][0], 1 - self.optimizer.momentum)
        torch.add(source, momentum.sign(), alpha=-self.lr, out=target)


OWN = [(a_job(optimizer=SignSGD()), Synchronous()), (a_job(), LocalSGD(steps=2, server=SignSGD(0.02)))]


@pytest.mark.parametrize(("job", "strategy"), OWN, ids=["job", "server"])
def test_custom_optimizer_is_trained_saved_and_resumed(job: Job, strategy: Strategy, tmp_path: Path) -> None:
    """The resumed run ends with the same model as an uninterrupted run, and can be replayed."""
    whole = fit(job, deepcopy(strategy), fleet(1), until="epochs>=6")
    fit(job, deepcopy(strategy), fleet(1), until="epochs>=3", out=tmp_path)
    resumed = fit(job, deepcopy(strategy), fleet(1), until="epochs>=6", out=tmp_path, resume="latest")
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert replay(tmp_path).difference is None


class Bare(Optimizer):
    lr = 0.1


@dataclass(frozen=True)
class Silent(Optimizer):
    lr: float = 0.1


@pytest.mark.parametrize(
    ("optimizer", "code"), [(Bare(), "no_dataclass"), (Silent(), "optimizer_without_arithmetic")]
)
def test_unusable_optimizer_is_rejected_before_the_run(optimizer: Optimizer, code: str) -> None:
    with raises(UsageError, code, given=type(optimizer).__name__):
        fit(a_job(optimizer=optimizer), Synchronous(), fleet(), until="epochs>=1")


@pytest.mark.parametrize("measure", [0, 1, 2])
@pytest.mark.parametrize("held", [False, True], ids=["in place", "elsewhere"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_parameter_without_gradient_is_unchanged(rule: Optimizer, held: bool, measure: int) -> None:
    """A parameter takes no step if both updates lack its gradient. If one of them lacks it, it counts as zero there."""
    torch.manual_seed(3)
    model = nn.ModuleList(
        nn.Linear(3, 2, dtype=kind) for kind in (torch.float32, torch.float64, torch.float32)
    )
    initial = FlatBuffer.empty(Layout.from_module(model))
    initial.gather(model)
    parameters = dict(model.named_parameters())
    optimizer, store = torch_optimizer(rule, list(parameters.values())), WeightStore(initial, rule)
    chance = torch.Generator().manual_seed(7)
    for version in range(6):
        optimizer.zero_grad()
        names = [entry.name for entry in store.layout.trainable_entries]
        lacks = torch.rand(2, len(names), generator=chance) < 0.6
        for sender, missing in zip("ab", lacks, strict=True):
            flat = FlatBuffer.empty(store.layout)
            flat.without_gradient.copy_(missing)
            for name, alone in zip(names, missing.tolist(), strict=True):
                if not alone:
                    parameter = parameters[name]
                    gradient = torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
                    flat.view(name).copy_(gradient)
                    parameter.grad = gradient / 2 if parameter.grad is None else parameter.grad + gradient / 2
            store.receive(Facts(f"{sender}:{version}", sender, version, 1), Payload("gradient", flat))
        if held:
            store.acquire(version)
        store.step({f"a:{version}": 0.5, f"b:{version}": 0.5}, measure)
        if held:
            store.release(version)
        if version == 3:  # a resumed run continues the step counts
            state = {name: tensor.clone() for name, tensor in store.state_tensors().items()}
            store = WeightStore(FlatBuffer.empty(store.layout), rule)
            store.load_state(state)
        optimizer.step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(store.weights.view(name), parameter.data, rtol=1e-5, atol=1e-6)
