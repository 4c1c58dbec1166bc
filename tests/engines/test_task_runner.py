"""Tests of the task runner: the result of a task, and its calls of the control."""

from collections.abc import Callable
from itertools import count

import pytest

from oddlot.core.events import Cancelled
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Facts, Task
from oddlot.engines.task_runner import TaskRunner
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.train.learner import Learner
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.packet import Packet
from tests.fits import BATCH, SAMPLES, a_job

TASK = Task("w1:1", "w1", (Span(0, 0, 3 * BATCH),), 7)


class Scripted:
    """A control that stops at the check number `stop_at`, and may cancel the task. It records all calls."""

    def __init__(self, stop_at: int = 99, cancelled: bool = False) -> None:
        self.stop_at, self.cancelled = stop_at, cancelled
        self.looks = 0
        self.heard: list[str] = []

    def loaded(self, task: Task) -> None:
        self.heard.append("loaded")

    def is_stopped(self, task: Task) -> bool:
        self.looks += 1
        return self.looks >= self.stop_at

    def computed(self, task: Task, samples: int | None) -> None:
        self.heard.append(f"computed {samples}")

    def is_cancelled(self, task: Task) -> bool:
        return self.cancelled

    def deliver(self, packet: Packet) -> int:
        self.heard.append(f"deliver {packet.codec}")
        return 123


def ran(
    control: Scripted, codec: Codec | None = None, clock: Callable[[], float] = lambda: 0.0
) -> Facts | Cancelled:
    """Return the result of the task on a new learner, after checking that an update was written."""
    job = a_job()
    model = job.model()
    layout = Layout.from_module(model)
    weights, out = FlatBuffer.empty(layout), FlatBuffer.empty(layout)
    weights.gather(model)
    for _, part in out.sections():
        part.zero_()
    learner = Learner(LearnerInputs(job=job, layout=layout, constants=layout.constants(model)))
    answer = TaskRunner(learner, codec, clock).run(TASK, weights, out, control)
    if isinstance(answer, Facts):
        assert any(part.any() for _, part in out.sections())
    return answer


def test_complete_task_returns_its_facts() -> None:
    control = Scripted()
    answer = ran(control, clock=count(1.0).__next__)
    assert isinstance(answer, Facts)
    assert (answer.id, answer.sender, answer.based_on, answer.kind) == ("w1:1", "w1", 7, "gradient")
    assert answer.samples == 3 * BATCH <= SAMPLES
    assert answer.bytes_down == answer.bytes_up > 0
    assert answer.loss is not None
    assert answer.seconds["down"] == answer.seconds["up"] == 1.0
    assert control.heard == ["loaded", f"computed {3 * BATCH}"]
    assert control.looks == 3


def test_codec_packet_is_delivered_with_its_size() -> None:
    control = Scripted()
    answer = ran(control, Half("bf16"))
    assert isinstance(answer, Facts)
    assert answer.bytes_up == 123
    assert control.heard[-1].startswith("deliver ")


@pytest.mark.parametrize("cancelled", [False, True])
def test_task_stopped_before_its_first_minibatch_is_cancelled(cancelled: bool) -> None:
    control = Scripted(stop_at=1, cancelled=cancelled)
    answer = ran(control, Half("bf16"))
    assert isinstance(answer, Cancelled)
    assert (answer.task, answer.node, answer.bytes_data) == ("w1:1", "w1", 0)
    assert answer.bytes_down > 0
    assert control.heard == ["loaded", "computed None"]


def test_stopped_task_returns_a_part_unless_cancelled() -> None:
    control = Scripted(stop_at=3)
    answer = ran(control)
    assert isinstance(answer, Facts)
    assert answer.samples == 2 * BATCH
    assert isinstance(ran(Scripted(stop_at=3, cancelled=True)), Cancelled)


def test_task_cancelled_too_late_is_returned_completely() -> None:
    answer = ran(Scripted(cancelled=True))
    assert isinstance(answer, Facts)
    assert answer.samples == 3 * BATCH
