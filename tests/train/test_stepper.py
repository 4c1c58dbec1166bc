"""The passes of a step: mixed precision with loss scaling, and compiled models."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import SGD, Job, Local, LocalSGD, Machine, Simulated, Synchronous, fit
from oddlot.core.commands import Start, Step
from oddlot.train.stepper import DTYPES, FIRST_SCALE, GROWTH_STEPS, _LossScale
from tests.train.test_parity import BATCH, a_job, net, rows

ONE = Simulated([Machine("m0", 0.001)])


# --- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", [Synchronous, LocalSGD])
def test_mixed_precision_trains(precision: str, strategy: Any) -> None:
    seen = set()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.add(outputs.dtype)
        return cross_entropy(outputs, targets)

    job = replace(a_job(optimizer=SGD(0.1, 0.9), precision=precision, eval_data=rows()), loss=loss)
    run = fit(job, strategy(), ONE, until="epochs>=20", quiet=True)
    assert seen == {DTYPES[precision]}
    assert run.loss is not None
    assert run.loss < 0.7
    assert run.summary["samples_wasted"] == 0


class Steep(nn.Module):
    """A model with gradients that overflow in fp16 at the initial loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(7), nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Any:
        return self.linear(self.norm(inputs)) * 100.0


def test_overflow_of_fp16_loses_no_sample() -> None:
    """The minibatch is computed again with a smaller scale. No update is rejected."""
    job = Job(
        Steep, rows(), cross_entropy, batch_size=BATCH, device="cpu", precision="fp16", optimizer=SGD(1e-3)
    )
    run = fit(job, Synchronous(), ONE, until="epochs>=2", quiet=True)
    steps = [action for record in run.records for action in record.actions if isinstance(action, Step)]
    tasks = [action for record in run.records for action in record.actions if isinstance(action, Start)]
    assert len(steps) == 14
    assert run.model.state_dict()["norm.num_batches_tracked"] == 14, "buffers count each minibatch once"
    assert len(tasks) <= 15
    assert run.summary["samples_wasted"] == 0


def test_loss_scale_halves_at_an_overflow_and_grows_again() -> None:
    """A gradient that is not finite at any scale does not change it."""
    scale, overflow = _LossScale(), torch.tensor([inf])
    assert not scale.unscale([overflow])
    for _ in range(GROWTH_STEPS):
        assert scale.scale == FIRST_SCALE / 2
        gradient = torch.tensor([scale.scale])
        assert scale.unscale([gradient])
        assert gradient == 1
    assert scale.scale == FIRST_SCALE
    assert sum(not scale.unscale([torch.tensor([nan])]) for _ in range(17)) == 16
    assert scale.scale == FIRST_SCALE


# --- compiled models -----------------------------------------------------------------------------


def compiled() -> nn.Module:
    model: Any = torch.compile(net(), backend="eager")
    return model  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
def test_compiled_model_has_the_names_of_the_model() -> None:
    job = Job(compiled, rows(), cross_entropy, batch_size=BATCH, device="cpu")
    run = fit(job, Synchronous(), Local(workers=1), until="epochs>=1", quiet=True)
    assert run.model.state_dict().keys() == net().state_dict().keys()


@pytest.mark.filterwarnings("ignore")
def test_compiled_model_computes_the_gradients() -> None:
    calls = list[int]()

    def counted_net() -> nn.Module:
        model: Any = torch.compile(net(), backend=counting)
        return model  # type: ignore[no-any-return]

    def counting(graph: Any, _: Any) -> Any:
        def compute(*inputs: Any) -> Any:
            calls.append(len(inputs))
            return graph.forward(*inputs)

        return compute

    job = replace(a_job(), model=counted_net)
    fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)
    assert len(calls) >= 7
