"""The loss and metrics of a version."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from oddlot.core.support.errors import JobError, UsageError
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.train.evaluation import evaluate
from oddlot.train.job import Job
from oddlot.train.learner import Learner
from oddlot.train.learner_inputs import LearnerInputs
from tests.transcripts import raises

ROWS = torch.arange(10.0).reshape(10, 1)


class Net(nn.Module):
    """A model that doubles its input and changes its running statistics in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.linear = nn.Linear(1, 1)
        self.frozen = nn.BatchNorm1d(1).eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x) * (2 if self.training else 1)
        return result


class MeanError:
    """A metric with the interface of torchmetrics, updated batch by batch."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = [torch.full((1,), 99.0)]

    def reset(self) -> None:
        self.batches.clear()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.batches.append((outputs - targets).abs())

    def compute(self) -> Tensor:
        return torch.cat(self.batches).mean()


def measured(weight: float = 1.0, **changes: Any) -> dict[str, float]:
    options: dict[str, Any] = {"loss": mse_loss, "eval_data": (ROWS, ROWS), **changes}
    job = Job(Net, (ROWS, ROWS), device="cpu", **options)
    model = Net()
    layout = Layout.from_module(model, job.as_buffers)
    weights = FlatBuffer.empty(layout)
    weights.gather(model)
    weights.view("linear.weight").fill_(weight)
    weights.view("linear.bias").fill_(0)
    learner = Learner(LearnerInputs(job=job, layout=layout, constants=layout.constants(model)))
    modes = [part.training for part in learner.model.modules()]
    metrics = evaluate(job, learner, weights)
    assert [part.training for part in learner.model.modules()] == modes
    assert modes[-1] is False
    assert torch.equal(learner.weights.view("norm.running_mean"), torch.zeros(1))
    return metrics


def test_loss_and_both_kinds_of_metrics_are_evaluated() -> None:
    """Batches of unequal size are weighted by their number of samples."""
    error, sizes = MeanError(), []

    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(outputs))
        return outputs.max()

    metrics = measured(2.0, metrics={"error": error, "largest": largest}, eval_batch_size=4)
    assert metrics == {"loss": pytest.approx(28.5), "error": pytest.approx(4.5), "largest": 18.0}
    assert list(metrics) == ["loss", "error", "largest"]
    assert len(error.batches) == 3
    assert sizes == [10]


def test_training_step_gives_the_loss_and_predict_the_outputs() -> None:
    data = [{"x": row, "y": row} for row in ROWS]

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return mse_loss(model(batch["x"]), batch["y"])

    def predict(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return model(batch["x"]), batch["y"]

    changes = {"training_step": step, "loss": None, "eval_data": data}
    assert measured(2.0, **changes) == {"loss": pytest.approx(28.5)}
    named = {"metrics": {"largest": lambda outputs, _: outputs.max()}, "predict": predict}
    assert measured(2.0, **changes, **named)["largest"] == 18.0


def test_non_finite_metrics_are_left_out() -> None:
    assert measured(float("inf"), metrics={"one": lambda *_: 1.0, "bad": lambda *_: float("nan")}) == {
        "one": 1.0
    }


@pytest.mark.parametrize("value", [torch.zeros(2), "high", None], ids=["tensor", "text", "none"])
def test_metric_without_a_number_raises(value: Any) -> None:
    metric = MeanError()
    metric.compute = lambda: value  # type: ignore[method-assign]
    for metrics in ({"score": lambda *_: value}, {"score": metric}):
        with raises(JobError, "metric_without_number", metric="score", type=type(value).__name__):
            measured(metrics=metrics)


def test_missing_eval_data_raises_no_evaluation_set() -> None:
    with raises(UsageError, "no_evaluation_set"):
        measured(eval_data=None)


def test_evaluation_ignores_model_changes_by_the_training_step() -> None:
    """A change by the training step, such as an update of a momentum teacher, does not affect evaluations."""

    def move(model: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            model.frozen.bias.add_(1)
        return mse_loss(model(batch[0]), batch[1])

    def bias(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.max()

    options: dict[str, Any] = {"loss": None, "training_step": move, "eval_batch_size": 2}
    found = measured(
        **options,
        as_buffers=["frozen.*"],
        metrics={"bias": bias},
        predict=lambda model, batch: (model.frozen.bias.detach().clone(), batch[1]),
    )
    assert found["bias"] == 0


def whole(model: nn.Module, batch: Any) -> Any:
    return mse_loss(model(batch[0]), batch[1])


def penalised(model: nn.Module, batch: Any) -> Any:
    """Return a loss with a gradient with respect to the inputs."""
    inputs = batch[0].clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return slope.square().mean()


def step_when_training(model: nn.Module, batch: Any) -> Any:
    """Return a loss only in training mode, as object detectors do."""
    return whole(model, batch) if model.training else model(batch[0])


STEPS: dict[str, tuple[Any, str]] = {
    "gradients": (penalised, "user_code_failed"),
    "mode": (step_when_training, "loss_not_scalar"),
}


@pytest.mark.parametrize("step", STEPS)
def test_training_step_that_fails_in_evaluation_mode_gives_a_hint(step: str) -> None:
    """The error also suggests Job(loss=...), because evaluation uses it instead."""
    function, code = STEPS[step]
    with raises(JobError, code, hint="evaluation_mode"):
        measured(loss=None, training_step=function)
    assert measured(2.0, training_step=function) == {"loss": pytest.approx(28.5)}


def test_errors_in_evaluation_name_the_rows() -> None:
    with raises(JobError, "user_code_failed", where="the evaluator", rows=[4, 5, 6, 7]) as caught:
        measured(loss=lambda y, t: 1 / 0 if t.min() == 4 else mse_loss(y, t), eval_batch_size=4)
    assert "hint" not in caught.fields


@pytest.mark.parametrize(
    ("predict", "code", "fields"),
    [
        (lambda _, batch: ({"logits": batch[0]}, batch[1]), "no_tensor_for_metrics", {"what": "outputs"}),
        (lambda _, batch: (batch[0], [*batch[1]]), "no_tensor_for_metrics", {"found": ["list"]}),
        (lambda _, batch: (batch[0].mean(), batch[1]), "no_tensor_for_metrics", {"found": ["tensors []"]}),
        (
            lambda _, batch: (torch.zeros(4, int(batch[0][0])), batch[1]),
            "no_tensor_for_metrics",
            {"found": ["tensors [4, 0]", "tensors [4, 4]", "tensors [4, 8]"]},
        ),
        (lambda _, batch: batch[0], "predict_without_pair", {"type": "Tensor"}),
    ],
    ids=["dict", "list", "scalar", "shapes", "no pair"],
)
def test_outputs_that_are_not_one_tensor_are_rejected(
    predict: Any, code: str, fields: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"loss": lambda *_: torch.zeros(()), "eval_batch_size": 4}
    with raises(JobError, code, **fields):
        measured(metrics={"one": lambda *_: 1.0}, predict=predict, **options)


def test_evaluation_weighs_batches_with_the_returned_number() -> None:
    def by_tokens(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        count = int((targets >= 0).sum())
        return nn.functional.cross_entropy(outputs, targets, reduction="sum") / max(count, 1), count

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, 3, generator=generator), torch.tensor([0, 1, -100, -100, -100, 1, 0, 1, 1, -100])
    found = []
    for rows in (10, 3):
        job = Job(lambda: nn.Linear(3, 2), (x, y), by_tokens, eval_data=(x, y), eval_batch_size=rows)
        torch.manual_seed(0)
        model = job.model()
        layout = Layout.from_module(model)
        weights = FlatBuffer.empty(layout)
        weights.gather(model)
        learner = Learner(LearnerInputs(job=job, layout=layout, constants={}))
        found.append(evaluate(job, learner, weights)["loss"])
    assert found[0] == pytest.approx(found[1])
    assert "loss" not in measured(loss=lambda y, t: (mse_loss(y, t), 0)), "there is no token"
