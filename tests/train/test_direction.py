"""Jobs with a direction: updates that are not the gradient of a loss."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import SGD, Asynchronous, Job, Local, LocalSGD, Simulated, Strategy, Synchronous
from oddlot.core.support.errors import JobError, UsageError
from oddlot.train.job import accuracy
from tests.fits import SAMPLES, a_job, equals, in_batches, local, net, plain_loop, rows
from tests.transcripts import raises


def gradient(model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the gradient of the cross-entropy as a direction, and the loss."""
    assert not torch.is_grad_enabled()
    with torch.enable_grad():
        loss = cross_entropy(model(batch[0]), batch[1])
        names, parameters = zip(*model.named_parameters(), strict=True)
        found = torch.autograd.grad(loss, parameters)
    return dict(zip(names, found, strict=True)), {"loss": loss, "twice": 2 * loss}


def bits(run: oddlot.Run) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in run.model.state_dict().values()]


def fit(job: Job, strategy: Strategy, engine: Simulated | Local, **settings: Any) -> oddlot.Run:
    return oddlot.fit(job, strategy, engine, quiet=True, **{"until": "epochs>=3", **settings})


@pytest.mark.parametrize(
    ("strategy", "engine", "settings"),
    [
        (Synchronous(), equals(1), {}),
        (Synchronous(), equals(3), {"max_grad_norm": 0.1, "micro_batch_size": 4}),
        (Asynchronous(), equals(2), {"precision": "bf16"}),
        (LocalSGD(steps=2), equals(2), {"keep_optimizer": True, "micro_batch_size": 2, "max_grad_norm": 0.1}),
        (Synchronous(), local(1), {}),
    ],
)
@pytest.mark.usefixtures("fork_server", "warm_start")
def test_gradient_as_direction_trains_the_same_bits(
    strategy: Strategy, engine: Simulated | Local, settings: dict[str, Any]
) -> None:
    """Parts of a minibatch are halves or quarters, so dividing the loss or its gradient gives the same numbers."""
    job = a_job(eval_data=rows(20), metrics={"accuracy": accuracy}, **settings)
    ours = fit(replace(job, direction=gradient), strategy, engine)
    theirs = fit(job, strategy, engine)
    assert bits(ours) == bits(theirs)
    assert [(one["loss"], one["accuracy"]) for one in ours.history] == [
        (one["loss"], one["accuracy"]) for one in theirs.history
    ]


def test_logged_losses_are_means_over_the_parts() -> None:
    job = a_job(micro_batch_size=4)
    logged = []
    for one in (replace(job, direction=gradient, loss=None), job):
        run = fit(one, Asynchronous(), equals(1))
        logged.append([record.event.update for record in run.records if hasattr(record.event, "update")])
    for ours, theirs in zip(*logged, strict=True):
        assert ours.loss == theirs.loss
        assert ours.losses["twice"] == pytest.approx(2 * ours.loss)


def last_layer(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"2.bias": torch.ones_like(model.get_parameter("2.bias"))}


def test_unnamed_parameters_keep_their_values() -> None:
    """Neither weight decay nor momentum moves them."""
    job = a_job(direction=last_layer, loss=None, optimizer=SGD(0.5, momentum=0.9, weight_decay=0.1))
    run = fit(job, Synchronous(), equals(2), until="versions>=1")
    torch.manual_seed(0)
    start = net().state_dict()
    for name, now in run.model.state_dict().items():
        expected = start[name] - 0.5 * (1 + 0.1 * start[name]) if name == "2.bias" else start[name]
        assert torch.allclose(now, expected, atol=1e-7), name
        assert torch.equal(now, start[name]) == (name != "2.bias")


def test_direction_may_return_the_models_own_tensors() -> None:
    """Clipping does not write into them: a step along W, clipped to the norm 0.1, shortens W by 0.1."""
    job = a_job(
        direction=lambda model, batch: dict(model.named_parameters()),
        loss=None,
        optimizer=SGD(1.0, momentum=0.0),
        max_grad_norm=0.1,
    )
    run = fit(job, LocalSGD(steps=1), equals(1), until="versions>=1")
    torch.manual_seed(0)
    norms = [nn.utils.parameters_to_vector(model.parameters()).norm().item() for model in (net(), run.model)]
    assert norms[0] - norms[1] == pytest.approx(0.1, abs=1e-5)


def test_evaluation_without_a_loss_has_the_metrics() -> None:
    job = a_job(direction=gradient, loss=None, eval_data=rows(20), metrics={"accuracy": accuracy})
    run = fit(job, Synchronous(), equals(1), until="epochs>=1")
    assert run.history[-1].keys() & {"accuracy", "loss"} == {"accuracy"}


def test_frozen_parameter_is_left_out_until_its_epoch() -> None:
    def model() -> nn.Module:
        made = net()
        made.get_parameter("2.bias").requires_grad_(False)
        return made

    job = a_job(model, direction=last_layer, loss=None, unfreeze_at={"2.bias": 1})
    ends = {}
    for epochs in (1, 2):
        ends[epochs] = fit(job, Synchronous(), equals(1), until=f"epochs>={epochs}").model.state_dict()[
            "2.bias"
        ]
    torch.manual_seed(0)
    assert torch.equal(ends[1], net().state_dict()["2.bias"])
    assert not torch.equal(ends[2], ends[1])


# --- rejected ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "code", "fields"),
    [
        (
            lambda model, _: {"2.biass": torch.zeros(2)},
            "direction_of_unknown_parameter",
            {"parameter": "2.biass"},
        ),
        (lambda model, _: {"2.bias": torch.zeros(3)}, "invalid_direction", {"parameter": "2.bias"}),
        (lambda model, _: {"2.bias": torch.zeros(2).double()}, "invalid_direction", {"parameter": "2.bias"}),
        (
            lambda model, _: {"2.bias": torch.zeros(2).to_sparse()},
            "invalid_direction",
            {"parameter": "2.bias"},
        ),
        (lambda model, _: {"2.bias": 0.5}, "invalid_direction", {"given": "of type float"}),
        (lambda model, _: {}, "empty_direction", {}),
        (lambda model, _: torch.zeros(2), "direction_without_mapping", {"part": "direction"}),
        (lambda model, _: None, "direction_without_mapping", {"part": "direction", "given": None}),
        (lambda model, _: ({"2.bias": torch.zeros(2)}, 0.5), "direction_without_mapping", {"part": "losses"}),
    ],
)
def test_invalid_direction_is_a_job_error(
    direction: Callable[[nn.Module, Any], Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(JobError, code, **fields):
        fit(a_job(direction=direction, loss=None), Synchronous(), equals(1))


def test_direction_that_is_not_finite_is_rejected_by_the_gates() -> None:
    def direction(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        found, _ = gradient(model, batch)
        bad = batch[0].shape[0] < 8
        return {name: one * torch.nan if bad else one for name, one in found.items()}

    job = a_job(count=SAMPLES + 2, direction=direction, loss=None)
    run = fit(job, Synchronous(), equals(1), until="epochs>=1", skip_bad=True)
    assert run.summary["samples_skipped"] == 2


@pytest.mark.parametrize(
    ("settings", "code", "key"),
    [
        ({"loss": None}, "missing_loss", "loss"),
        ({"training_step": lambda model, batch: None, "direction": gradient}, "two_steps", "direction"),
        ({"direction": gradient, "precision": "fp16"}, "fp16_with_direction", "precision"),
        ({"direction": 3}, "invalid_value", "direction"),
    ],
)
def test_job_has_one_function_that_makes_a_step(settings: dict[str, Any], code: str, key: str) -> None:
    with raises(UsageError, code) as caught:
        a_job(**settings)
    assert caught.value.key == key


def test_evaluation_needs_a_loss_or_metrics() -> None:
    job = a_job(direction=gradient, loss=None, eval_data=rows(20))
    with raises(UsageError, "nothing_to_evaluate"):
        fit(job, Synchronous(), equals(1))
    job = replace(job, metrics={"accuracy": accuracy})
    with raises(UsageError, "goal_without_loss", figure="loss"):
        fit(job, Synchronous(), equals(1), until="loss<=0.1")


def test_plain_loop_gives_the_same_weights() -> None:
    """The hub steps along the direction as torch.optim steps along a gradient."""
    job = a_job(direction=gradient)
    run = fit(job, Asynchronous(), equals(1), until="epochs>=1")
    model = plain_loop(a_job(), in_batches(SAMPLES, 8, 1))
    assert all(map(torch.equal, run.model.state_dict().values(), model.state_dict().values()))
