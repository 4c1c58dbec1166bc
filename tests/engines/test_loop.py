"""The main loop: updates and alarms wait while an evaluation must be finished first."""

import time
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from benchmarks.parity.plain_loop import PlainLoop, largest_difference
from oddlot import Job, Synchronous, fit
from oddlot.core.events import Evaluated, Ticked
from oddlot.core.tasks import Facts
from oddlot.engines.host import ReceivedUpdate
from oddlot.engines.loop import drive
from tests.fits import local, rows


@dataclass
class Course:
    """A host and a mailbox. Updates are held from the first message to the evaluation."""

    messages: list[Any]
    passed: list[str] = field(default_factory=list)
    now = 0.0
    alarm = 0.0
    is_spent = False

    def next(self, until: float) -> Any:
        if not self.messages:
            return None
        assert until == inf or not self.is_held(), "no alarm rings meanwhile"
        return self.messages.pop(0)

    def receive(self, message: Any, now: float) -> None:
        self.passed.append(
            message.facts.id if isinstance(message, ReceivedUpdate) else type(message).__name__
        )

    def ring(self, now: float) -> None:
        self.passed.append("alarm")

    def is_held(self) -> bool:
        return "Evaluated" not in self.passed

    def ended(self) -> str:
        return "alarm" if "alarm" in self.passed else ""


def test_updates_and_alarms_wait_for_the_evaluation() -> None:
    updates = [ReceivedUpdate(Facts(name, "w1", 0, 8), None) for name in ("w1:1", "w1:2", "w1:3")]
    course = Course([updates[0], Ticked(), updates[1], Evaluated(1, {}), updates[2]])
    assert drive(course, course, course.ended, holds=course.is_held) == "alarm"
    assert course.passed == ["Ticked", "Evaluated", "w1:1", "w1:2", "w1:3", "alarm"]


def slow(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 0 after longer than an epoch takes."""
    began = time.process_time()
    while time.process_time() - began < 0.05:
        torch.relu(outputs)
    return torch.zeros(())


def falling(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.5)


@pytest.mark.usefixtures("fork_server", "warm_start")
def test_every_epoch_is_evaluated_in_time_for_the_scheduler() -> None:
    job = Job(
        lambda: nn.Linear(2, 2),
        rows(),
        cross_entropy,
        eval_data=rows(),
        metrics={"slow": slow},
        batch_size=8,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        lr_scheduler=falling,
        device="cpu",
    )
    run = fit(job, Synchronous(), local(1), until="epochs>=4", max_update_ratio=None, quiet=True)
    evaluated = [record.event.version for record in run.records if isinstance(record.event, Evaluated)]
    assert evaluated == [6, 12, 18, 24]
    assert largest_difference(run.model, PlainLoop.of(job).follow(run)) == 0
