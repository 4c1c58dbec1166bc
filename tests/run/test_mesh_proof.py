"""Compare the audit of a mesh with its model.

The model has a weight for each sample. It shows whether the model includes the sample.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oddlot import SGD, AdaptiveGossip, EventGrad, Gossip, Job, Machine, Simulated, Strategy, fit
from oddlot.core.commands import Command, Send, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.peers import Drift
from oddlot.core.strategy import View, assign_idle
from oddlot.faults import Chaos, Fault
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Link
from oddlot.report.run_report import RunReport

ROWS = 96
LINK = Link(megabits_per_second=1.0, latency_milliseconds=1.0)


class Rows(nn.Module):
    """A model with a weight for every sample in each of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(ROWS)), nn.Parameter(torch.zeros(ROWS))


def grow(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    """Return a loss that increases the weights of the batch's samples."""
    return -torch.stack([weights[batch[0]] for weights in model.parameters()]).mean()


@dataclass
class SendBeforeStep(Gossip):
    """Gossip that sends the model before the step, to hide the transfer time."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        if not isinstance(event, Arrived) or not view.peers:
            yield from super().on(event, view)
            return
        yield Send(next(iter(view.peers)))
        yield Step({event.update.id: 1.0})
        yield from assign_idle(view, view.batch)


class OneLayer(EventGrad):
    """EventGraD that sends its two layers in turn, so that the layers of a copy come from different steps."""

    def _changed_layers(self, drift: Drift, send_all: bool) -> list[int]:
        return [0, 1] if send_all else [self.steps % 2]


def meshed(
    out: Path,
    strategy: Strategy,
    *faults: Fault,
    returns: float | None = 0.1,
    until: str = "epochs>=1",
    batch: int = 8,
    link: Link = LINK,
    **machine: Any,
) -> RunReport:
    """Run four peers and return the report. A step of 8 samples takes 10 ms."""
    job = Job(
        model=Rows,
        train_data=torch.utils.data.TensorDataset(torch.arange(ROWS)),
        training_step=grow,
        optimizer=SGD(1.0),
        batch_size=batch,
    )
    machines = [Machine(f"m{i}", 0.00125, link=link, seconds_to_return=returns, **machine) for i in range(4)]
    fit(
        job,
        strategy,
        Simulated(machines),
        until=until,
        out=out,
        chaos=Chaos(faults) if faults else None,
        quiet=True,
    )
    return RunReport.read(out)


STRATEGIES = [
    Gossip(),
    Gossip(share=0.999),
    Gossip(mode="push"),
    Gossip(mode="push_pull", share=0.9),
    Gossip(mixing="loss"),
    Gossip(mixing="clock"),
    SendBeforeStep(),
    AdaptiveGossip(threshold=0.5),
    EventGrad(),
]


@pytest.mark.filterwarnings("ignore:the saved model lacks")
@pytest.mark.parametrize("at", [0.012, 0.025])
@pytest.mark.parametrize("returns", [None, 0.1], ids=["lost", "replaced"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_proof_counts_the_samples_that_the_model_lacks(
    strategy: Strategy, returns: float | None, at: float, tmp_path: Path
) -> None:
    kill = Fault("kill", machine="m1", at_seconds=(at,))
    figures = meshed(tmp_path, strategy, kill, returns=returns)
    weights = load_file(RunFolder(tmp_path).model)["first"]
    assert figures.proof.left_out == int((weights.abs() < 1e-12).sum())
    assert figures.summary["samples_merged"] == ROWS - figures.proof.left_out
    assert figures.plain()["exactly_once"] == (not figures.proof.left_out)


def test_model_of_a_replaced_peer_is_not_averaged(tmp_path: Path) -> None:
    """The replacement reads the logs before its neighbors average the model, and processes the samples again."""
    kill = Fault("kill", machine="m1", at_seconds=(0.012,))
    figures = meshed(tmp_path, EventGrad(), kill, returns=0.001, link=Link(), noticed_after_seconds=0.1)
    assert figures.plain()["exactly_once"], figures.proof.faults


def test_samples_in_some_layers_are_reported_as_partly_merged(tmp_path: Path) -> None:
    """Other peers have averaged layers of the lost peer, and its replacement processes the samples again."""
    kill = Fault("kill", machine="m1", at_seconds=(0.025,))
    figures = meshed(tmp_path, OneLayer(warmup_steps=0), kill, until="epochs>=2")
    assert [fault.code for fault in figures.proof.faults] == ["merged_in_part"]
    assert not figures.plain()["exactly_once"]


@pytest.mark.filterwarnings("ignore:the saved model lacks")
@pytest.mark.parametrize("at", [0.0085, 0.011])
def test_proof_counts_samples_included_in_all_layers(at: float, tmp_path: Path) -> None:
    kill = Fault("kill", machine="m1", at_seconds=(at,))
    figures = meshed(tmp_path, OneLayer(warmup_steps=0), kill, returns=None, batch=2, link=Link())
    weights = load_file(RunFolder(tmp_path).model)
    has = [weights[layer].abs() > 1e-12 for layer in ("first", "second")]
    assert figures.proof.left_out == int((~(has[0] & has[1])).sum()) > int((~(has[0] | has[1])).sum())


def test_common_goal_waits_for_replacements(tmp_path: Path) -> None:
    kill = Fault("kill", machine="m1", at_seconds=(0.28,))
    figures = meshed(tmp_path, Gossip(), kill, returns=3.0, until="samples>=960")
    assert figures.summary["ended"] == "samples>=960"
    assert figures.summary["samples_merged"] >= 960
