"""What scripts do beyond a loop: schedulers that follow a metric, parameters unfrozen later, mixed precision."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.parity.plain_loop import largest_difference
from oddlot import (
    SGD,
    Gossip,
    Job,
    LocalSGD,
    Machine,
    Simulated,
    Strategy,
    Synchronous,
    accuracy,
    fit,
    load,
    model_loss,
)
from oddlot.core.events import Arrived
from oddlot.core.support.errors import JobError, UsageError
from oddlot.train.learning_rates import SchedulerRates
from tests.train.test_parity import BATCH, SAMPLES, a_job, net, rows
from tests.transcripts import raises, warns

ONE = Simulated([Machine("m0", 0.001)])


def plateau(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)


# --- schedulers ----------------------------------------------------------------------------------


def test_plateau_scheduler_follows_its_metric() -> None:
    rates = SchedulerRates(a_job(optimizer=SGD(0.4), lr_scheduler=plateau), 53)
    found = []
    for interval, loss in enumerate((1.0, 0.5, 0.6, 0.7, 0.4), 1):
        rates.evaluated({"loss": loss}, interval)
        found.append(rates(0, 0)[0])
    rates.evaluated({}, 6)
    assert [*found, rates(0, 0)[0]] == [0.4, 0.4, 0.2, 0.1, 0.1, 0.1]


def test_run_lowers_the_rate_of_a_metric_that_does_not_improve() -> None:
    """The metric gets worse, so each epoch has half the rate of the one before: no step is longer."""
    worse = iter(range(1000))
    job = a_job(
        optimizer=SGD(0.1),
        lr_scheduler=plateau,
        lr_scheduler_metric="worse",
        eval_data=rows(),
        metrics={"worse": lambda *_: float(next(worse))},
    )
    run = fit(job, Synchronous(), ONE, until="epochs>=8", quiet=True)
    constant = fit(a_job(optimizer=SGD(0.1)), Synchronous(), ONE, until="epochs>=8", quiet=True)
    start = fit(a_job(optimizer=SGD(0.0)), Synchronous(), ONE, until="epochs>=1", quiet=True)
    assert 0 < moved(start.model, run.model) < 0.7 * moved(start.model, constant.model)


@pytest.mark.parametrize("versions", [7, 10], ids=["end_of_an_epoch", "within_an_epoch"])
def test_resumed_run_steps_a_plateau_scheduler_once_per_epoch(versions: int, tmp_path: Path) -> None:
    """The end of a run and a resume evaluate too: an equal loss would halve the rate."""
    job = a_job(optimizer=SGD(0.1), lr_scheduler=plateau, eval_data=rows())
    whole = fit(job, Synchronous(), ONE, until="epochs>=4", quiet=True)
    fit(job, Synchronous(), ONE, until=f"versions>={versions}", out=tmp_path, quiet=True)
    run = fit(job, Synchronous(), ONE, until="epochs>=4", out=tmp_path, resume="latest", quiet=True)
    assert moved(run.model, whole.model) == 0


def moved(one: nn.Module, other: nn.Module) -> float:
    """Return the distance of the parameters of two models."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    parts = [float((a.detach() - b.detach()).norm()) for a, b in pairs]
    return float(torch.tensor(parts).norm())


def test_plateau_without_its_metric_is_rejected() -> None:
    with raises(UsageError, "scheduler_without_metric", metric="loss"):
        fit(a_job(lr_scheduler=plateau), Synchronous(), ONE, until="epochs>=1", quiet=True)


def test_plateau_with_local_steps_is_rejected() -> None:
    job = a_job(lr_scheduler=plateau, eval_data=rows())
    with raises(UsageError, "scheduler_of_local_steps"):
        fit(job, LocalSGD(), ONE, until="epochs>=1", quiet=True)


def test_scheduler_of_momentum_is_rejected() -> None:
    with raises(UsageError, "scheduler_changes_momentum", type="OneCycleLR"):
        fit(
            a_job(optimizer=SGD(0.1, 0.9), lr_scheduler=cycle),
            Synchronous(),
            ONE,
            until="epochs>=1",
            quiet=True,
        )


def test_two_optimizers_are_rejected() -> None:
    def two(model: nn.Module) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in model if [*part.parameters()]]  # type: ignore[attr-defined]

    with raises(UsageError, "several_optimizers", count=3):
        fit(a_job(optimizer=two), Synchronous(), ONE, until="epochs>=1", quiet=True)


# --- unfreezing ----------------------------------------------------------------------------------


def test_parameters_are_unfrozen_at_their_epoch() -> None:
    job = a_job(optimizer=SGD(0.1), unfreeze_at={"0.*": 2})
    frozen, later = (fit(job, Synchronous(), ONE, until=f"epochs>={n}", quiet=True).model for n in (2, 3))
    start = fit(a_job(optimizer=SGD(0.0)), Synchronous(), ONE, until="epochs>=1", quiet=True).model
    first = start.state_dict()["0.weight"]
    assert torch.equal(frozen.state_dict()["0.weight"], first)
    assert not torch.equal(later.state_dict()["0.weight"], first)
    assert not torch.equal(frozen.state_dict()["4.weight"], start.state_dict()["4.weight"])


def test_unfreezing_an_unknown_name_is_rejected() -> None:
    with raises(UsageError, "no_such_parameter", given="9.*"):
        fit(a_job(unfreeze_at={"9.*": 2}), Synchronous(), ONE, until="epochs>=1", quiet=True)


# --- optimizer functions --------------------------------------------------------------------------


def test_optimizer_of_another_model_is_rejected() -> None:
    def foreign(_: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net().parameters(), lr=0.1)

    with raises(UsageError, "foreign_parameter"):
        fit(a_job(optimizer=foreign), Synchronous(), ONE, until="epochs>=1", quiet=True)


def test_parameter_that_would_step_twice_is_rejected() -> None:
    def twice(model: nn.Module) -> torch.optim.Optimizer:
        with warnings.catch_warnings(action="ignore"):  # PyTorch's
            return torch.optim.SGD([*model.parameters(), next(model.parameters())], lr=0.1)

    with raises(UsageError, "parameter_twice", names=["0.weight"]):
        fit(a_job(optimizer=twice), Synchronous(), ONE, until="epochs>=1", quiet=True)


def test_backward_in_training_step_is_rejected() -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # PyTorch's
        return loss

    job = Job(net, rows(), training_step=step, batch_size=BATCH, device="cpu")
    with raises(JobError, "backward_in_step"):
        fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)


def one_cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule of eight steps."""
    return OneCycleLR(optimizer, 0.1, total_steps=8, cycle_momentum=False)


def test_one_cycle_keeps_its_last_rate() -> None:
    """On unreliable machines, a run may have more versions than planned."""
    job = a_job(lr_scheduler=one_cycle, lr_scheduler_every="version")
    run = fit(job, Synchronous(), ONE, until="epochs>=4", quiet=True)
    assert run.summary["versions"] > 8
    rates = SchedulerRates(job, SAMPLES)
    assert rates(0, 7) == rates(0, 100)
    assert rates(0, 6)[0] > rates(0, 7)[0]


def test_schedule_of_many_steps_per_epoch_warns() -> None:
    with warns("scheduler_steps_per_epoch", planned=8, epochs=2):
        fit(a_job(lr_scheduler=one_cycle), Synchronous(), ONE, until="epochs>=2", quiet=True)


def test_failing_optimizer_function_is_reported() -> None:
    with raises(JobError, "user_code_failed", where="optimizer"):
        fit(a_job(optimizer=lambda model: 1 / 0), Synchronous(), ONE, until="epochs>=1", quiet=True)


# --- moving averages -----------------------------------------------------------------------------


def test_average_is_evaluated_and_continues_after_a_resume(tmp_path: Path) -> None:
    """The result of a run in two parts equals the result of one run. Metrics are of the average."""
    job = a_job(optimizer=SGD(0.1, 0.9), ema_decay=0.9, eval_data=rows())
    one = fit(job, Synchronous(), ONE, until="epochs>=4", quiet=True)
    fit(job, Synchronous(), ONE, until="versions>=9", out=tmp_path / "run", quiet=True)
    run = fit(job, Synchronous(), ONE, until="epochs>=4", out=tmp_path / "run", resume="latest", quiet=True)
    assert largest_difference(run.model, one.model) == 0
    loss = cross_entropy(one.model(rows()[0]), rows()[1]).item()
    assert one.loss == pytest.approx(loss, rel=1e-5)
    plain = fit(replace(job, ema_decay=None), Synchronous(), ONE, until="epochs>=4", quiet=True)
    assert largest_difference(plain.model, one.model) > 1e-3


@pytest.mark.parametrize(
    ("name", "value"), [("ema_decay", 0.9), ("lr_scheduler", plateau), ("unfreeze_at", {"0.*": 1})]
)
def test_setting_of_a_hub_is_rejected_on_a_mesh(name: str, value: Any) -> None:
    with raises(UsageError, "setting_without_hub", name=name):
        fit(
            a_job(**{name: value}),
            Gossip(),
            Simulated([Machine(f"m{i}", 0.001) for i in range(3)]),
            until="epochs>=1",
        )


# --- losses --------------------------------------------------------------------------------------

TOKENS, WORDS = 5, 6


def texts() -> tuple[Tensor, Tensor]:
    """Return 16 texts of 1 to 5 words, padded with the label -100. The last two are all padding."""
    seeded = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (16, TOKENS), generator=seeded)
    lengths = torch.tensor([1, 5, 2, 5, 3, 1, 4, 1, 5, 2, 1, 3, 5, 4, 0, 0])
    return words, words.roll(1, 1).masked_fill(torch.arange(TOKENS) >= lengths[:, None], -100)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)

    def forward(self, words: Tensor) -> Any:
        return self.head(self.table(words))


def per_token(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over the tokens, and their number."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100), (targets >= 0).sum()


@pytest.mark.parametrize("strategy", [Synchronous(), LocalSGD(steps=1)])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_mean_over_tokens_is_exact_with_several_workers(workers: int, strategy: Strategy) -> None:
    """The first step is that of a batch with all texts, however they are divided. Padding is no NaN."""
    job = Job(Tagger, texts(), per_token, batch_size=16 // workers, optimizer=SGD(1.0), device="cpu")
    machines = Simulated([Machine(f"m{i}", 0.001) for i in range(workers)])
    run = fit(job, strategy, machines, until="versions>=1", quiet=True)
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    per_token(model(texts()[0]), texts()[1])[0].backward()  # type: ignore[no-untyped-call]  # PyTorch's
    optimizer.step()
    assert largest_difference(run.model, model) < 1e-6


def test_further_losses_are_logged() -> None:
    def both(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        entropy, size = cross_entropy(outputs, targets), outputs.square().mean()
        return {"loss": entropy + 0.1 * size, "entropy": entropy, "size": size}

    job = replace(a_job(eval_data=rows(), micro_batch_size=3), loss=both)
    run = fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)
    last = run.history[-1]
    assert last["loss"] == pytest.approx(last["entropy"] + 0.1 * last["size"])
    arrived: Any = next(record.event for record in run.records if isinstance(record.event, Arrived))
    assert arrived.update.loss == pytest.approx(
        arrived.update.losses["entropy"] + 0.1 * arrived.update.losses["size"]
    )


@dataclass
class Outputs:
    """Outputs as those of Hugging Face's models."""

    loss: Tensor
    logits: Tensor


class Classifier(nn.Module):
    """A model that computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 3)

    def forward(self, inputs: Tensor, labels: Tensor) -> Outputs:
        logits = self.linear(inputs)
        return Outputs(cross_entropy(logits, labels), logits)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return len(rows()[1])

    def __getitem__(self, index: int) -> Any:
        points, labels = rows()
        return {"inputs": points[index], "labels": labels[index]}


def test_model_with_its_own_loss_trains() -> None:
    data = Rows()
    job = Job(
        Classifier,
        data,
        training_step=model_loss,
        eval_data=data,
        metrics={"accuracy": accuracy},
        batch_size=BATCH,
        optimizer=SGD(0.5),
        device="cpu",
    )
    run = fit(job, Synchronous(), ONE, until="epochs>=10", quiet=True)
    assert run.accuracy is not None
    assert run.accuracy > 0.8


def test_model_without_a_loss_is_reported() -> None:
    with raises(JobError, "outputs_without_loss", type="Tensor"):
        model_loss(nn.Linear(7, 3), [rows()[0]])


def test_losses_without_the_one_to_minimize_are_rejected() -> None:
    job = replace(a_job(), loss=lambda outputs, targets: {"entropy": cross_entropy(outputs, targets)})
    with raises(JobError, "losses_without_loss", found=["entropy"]):
        fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)


# --- settings that are assigned to a job -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "code", "fields"),
    [
        ("max_grad_norm", -1.0, "invalid_value", {"given": -1.0}),
        (
            "lr_scheduler",
            cycle(torch.optim.SGD([torch.zeros(1)], 0.1)),
            "torch_object_given",
            {"type": "OneCycleLR"},
        ),
        ("lr_sheduler", plateau, "unknown_name", {"given": "lr_sheduler", "nearest": "lr_scheduler"}),
        ("lr", 0.1, "unknown_name", {"given": "lr", "nearest": "optimizer"}),
    ],
    ids=["range", "type", "unknown", "of_optimizer"],
)
def test_setting_assigned_later_is_checked(name: str, value: Any, code: str, fields: dict[str, Any]) -> None:
    job = a_job()
    setattr(job, name, value)
    with raises(UsageError, code, **fields):
        fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)


@pytest.mark.parametrize(
    ("name", "value", "code", "fields"),
    [
        ("gradient_accumulation_steps", 4, "unknown_name", {"nearest": "micro_batch_size"}),
        ("max_grad_nrom", 1.0, "unknown_name", {"nearest": "max_grad_norm"}),
        ("precision", "16-mixed", "invalid_value", {"given": "16-mixed"}),
        ("lr_scheduler_every", "step", "invalid_value", {"given": "step"}),
    ],
    ids=["trainer", "misspelled", "precision", "every"],
)
def test_invalid_setting_of_a_job_is_rejected(
    name: str, value: Any, code: str, fields: dict[str, Any]
) -> None:
    with raises(UsageError, code, **fields):
        a_job(**{name: value})


def test_loader_assigned_later_is_taken_over() -> None:
    job = a_job()
    job.train_data = DataLoader(TensorDataset(*rows()), batch_size=3, shuffle=True)
    run = fit(job, Synchronous(), ONE, until="epochs>=1", quiet=True)
    assert (job.batch_size, run.summary["versions"]) == (3, 18)


def test_best_weights_are_the_average_that_was_evaluated(tmp_path: Path) -> None:
    job = a_job(optimizer=SGD(0.1, 0.9), ema_decay=0.9, eval_data=rows())
    run = fit(job, Synchronous(), ONE, until="epochs>=4", out=tmp_path / "run", keep_best="loss", quiet=True)
    best = load(run, "best", into=job).eval()
    loss = cross_entropy(best(rows()[0]), rows()[1]).item()
    assert loss == pytest.approx(min(row["loss"] for row in run.history), rel=1e-5)
