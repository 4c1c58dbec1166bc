"""Local steps equal PyTorch's bit for bit, and do not import its compiler: the import takes seconds."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.parity.plain_loop import torch_optimizer
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.support.errors import JobError
from oddlot.train.local_optimizer import LocalOptimizer, local_optimizer, made
from tests.transcripts import raises

RULES = [
    SGD(0.1),
    SGD(0.1, weight_decay=0.1),
    SGD(0.1, 0.9, weight_decay=0.1),
    SGD(0.1, 0.9, nesterov=True),
    Adam(0.1),
    Adam(0.1, (0.5, 0.6), 1e-3, 0.1),
    AdamW(0.1, (0.8, 0.9)),
]


def parameters(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(4, 3, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_bitwise_equal_to_pytorch(rule: Optimizer, dtype: torch.dtype) -> None:
    """The second parameter has no gradient at first, and the third never has one. The learning rate changes."""
    ours, theirs = parameters(dtype), parameters(dtype)
    one, other = local_optimizer([(rule, list(ours))]), torch_optimizer(rule, theirs)
    assert isinstance(one, LocalOptimizer)
    for number in range(20):
        gradients = [torch.randn(4, 3, dtype=dtype) for _ in range(1 if number < 5 else 2)]
        for tensors in (ours, theirs):
            for tensor, gradient in zip(tensors, gradients, strict=False):
                tensor.grad = gradient.clone()
        for optimizer in (one, other):
            for group in optimizer.param_groups:
                group["lr"] = rule.lr / (1 + number // 10)
            optimizer.step()
    for tensor, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
    assert not torch.equal(ours[1], parameters(dtype)[1])


def test_sgd_accepts_sparse_gradients() -> None:
    found = list[Tensor]()
    for make in (lambda *group: local_optimizer([group]), torch_optimizer):
        table = torch.nn.Embedding(5, 3, sparse=True, _weight=torch.ones(5, 3))
        table(torch.tensor([1, 1, 3])).sum().backward()
        make(SGD(0.5), list(table.parameters())).step()
        found.append(table.weight.detach())
    assert torch.equal(*found)
    assert found[0][1, 0] == 0.0


@pytest.mark.parametrize(
    "rule", [Adam(weight_decay=0.1), AdamW(), SGD(weight_decay=0.1)], ids=["adam", "adamw", "sgd"]
)
def test_unsupported_sparse_gradient_raises(rule: Optimizer) -> None:
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    with raises(JobError, "sparse_gradients", rule=type(rule).__name__):
        local_optimizer([(rule, list(table.parameters()))]).step()


@pytest.mark.parametrize(
    ("make", "code", "fields"),
    [
        (torch.optim.LBFGS, "optimizer_needs_closure", {"optimizer": "LBFGS"}),
        (lambda _: None, "not_an_optimizer", {"type": "NoneType"}),
        (lambda _: torch.optim.SGD, "not_an_optimizer", {"type": "type"}),
    ],
    ids=["closure", "none", "class"],
)
def test_unusable_optimizer_raises(make: Any, code: str, fields: dict[str, str]) -> None:
    with raises(JobError, code, **fields):
        made(make, parameters(torch.float32))


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_step_count_is_independent_of_the_default_dtype(default: torch.dtype) -> None:
    """A count in bfloat16 would stop at 256."""
    ours, theirs = parameters(torch.float32)[:1], parameters(torch.float32)[:1]
    torch.set_default_dtype(default)
    try:
        one, other = local_optimizer([(Adam(0.1), list(ours))]), torch_optimizer(Adam(0.1), theirs)
        for _ in range(300):
            for tensor, optimizer in ((ours[0], one), (theirs[0], other)):
                tensor.grad = tensor.detach() * 0.5
                optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(ours[0], theirs[0])


def test_negative_momentum_follows_the_formula() -> None:
    """A negative momentum follows the formula. torch.optim does not accept it."""
    (one, *_), momentum = parameters(torch.float32), torch.zeros(4, 3)
    weights, optimizer = (
        one.detach().clone(),
        local_optimizer([(SGD(0.1, -0.8, weight_decay=0.1), [one])]),
    )
    for _ in range(20):
        one.grad = torch.randn(4, 3)
        momentum = -0.8 * momentum + one.grad + 0.1 * weights
        weights = weights - 0.1 * momentum
        optimizer.step()
    torch.testing.assert_close(one.detach(), weights)


@dataclass(frozen=True)
class OnlyAtTheHub(Optimizer):
    lr: float = 0.1


def test_custom_optimizer_without_local_steps_raises() -> None:
    with raises(JobError, "no_local_optimizer", optimizer="OnlyAtTheHub"):
        local_optimizer([(OnlyAtTheHub(), list(parameters(torch.float32)))])


def test_parameter_without_a_gradient_is_unchanged() -> None:
    (one, *_) = parameters(torch.float32)
    LocalOptimizer([(SGD(0.5), [one])]).step()
    assert torch.equal(one, parameters(torch.float32)[0])


def test_torch_compiler_is_not_imported() -> None:
    """The import would take a second or more during a worker's first task."""
    program = """
import sys, torch
from oddlot.core.support.errors import JobError
from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.train.local_optimizer import local_optimizer
for rule in (SGD(0.1, 0.9), Adam(0.1), AdamW(0.1)):
    one = torch.zeros(2, requires_grad=True)
    one.grad = torch.ones(2)
    local_optimizer([(rule, list([one]))]).step()
    assert one[0] < 0
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
