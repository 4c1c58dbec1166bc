"""Updates outside the range of recent ones."""

import math
from dataclasses import replace

import pytest
from torch import nn

from oddlot.core.support.errors import InvalidValue, Rejection
from oddlot.core.tasks import Facts, Kind
from oddlot.model.arrival import Arrival
from oddlot.model.evidence_gate import EvidenceRange
from oddlot.model.flat_buffer import FlatBuffer, Layout
from tests.transcripts import raises

LAYOUT = Layout.from_module(nn.Linear(1, 1, bias=False))


def arrival(value: float = 1.0, samples: int = 8, kind: Kind = "gradient", **losses: float) -> Arrival:
    flat = FlatBuffer.empty(LAYOUT)
    flat.view("weight").fill_(value)
    facts = Facts("w1:1", "w1", 0, samples, kind, loss=losses.pop("loss", None), losses=losses or None)
    return Arrival(facts, kind, flat, FlatBuffer.empty(LAYOUT), FlatBuffer.empty(LAYOUT))


def passes(gate: EvidenceRange, update: Arrival) -> bool:
    try:
        gate.check(update)
    except Rejection as rejection:
        return rejection.code != "update_outside_range"
    return True


def active(of: str = "norm", **options: float) -> EvidenceRange:
    """Return a gate that has seen norms, samples and losses from 10 to 29."""
    gate = EvidenceRange(of, **options)  # type: ignore[arg-type]
    assert all(passes(gate, arrival(v, v, loss=float(v), blocks=float(v))) for v in range(10, 30))
    return gate


@pytest.mark.parametrize("of", ["norm", "samples", "loss", "blocks"])
def test_update_outside_the_widened_percentiles_is_rejected(of: str) -> None:
    """The 5th and the 95th percentile of 10 to 29 are 10.95 and 28.05; the margin is 2."""
    for value, inside in ((5, False), (6, True), (56, True), (57, False)):
        assert passes(active(of), arrival(value, value, loss=float(value), blocks=float(value))) == inside


def test_gate_is_inactive_before_its_least_number() -> None:
    gate = EvidenceRange("blocks", least=2, margin=1)
    for update in (arrival(blocks=1.0), arrival(blocks=1e6)):
        gate.check(update)
    assert not passes(gate, arrival(blocks=2e6))


@pytest.mark.parametrize("update", [arrival(loss=3.0), arrival(blocks=math.nan)])
def test_update_without_the_figure_is_rejected(update: Arrival) -> None:
    """A hostile worker could leave it out, and a misspelt figure would protect from nothing."""
    with raises(Rejection, "update_without_figure", of="blocks"):
        EvidenceRange("blocks").check(update)


def test_norm_of_weights_without_a_base_is_not_compared() -> None:
    update = replace(arrival(kind="weights"), base=None)
    EvidenceRange("norm").check(update)


def test_update_of_weight_0_may_have_no_loss() -> None:
    update = arrival()
    EvidenceRange("loss").check(replace(update, facts=replace(update.facts, weight=0)))


def test_minority_that_is_hostile_from_the_start_does_not_set_the_range() -> None:
    gate = EvidenceRange("norm", least=20)
    warm_up = [arrival(1000.0 if at % 5 == 0 else 10.0 + at % 7) for at in range(20)]
    assert all(passes(gate, update) for update in warm_up)
    assert not passes(gate, arrival(1000.0))
    assert passes(gate, arrival(30.0))


def test_limits_of_negative_figures_move_outwards() -> None:
    gate = EvidenceRange("blocks")
    for value in range(10, 30):
        gate.check(arrival(blocks=-float(value)))
    assert [passes(gate, arrival(blocks=-value)) for value in (5.0, 57.0)] == [False, False]
    assert [passes(gate, arrival(blocks=-value)) for value in (6.0, 56.0)] == [True, True]


def test_kinds_have_ranges_of_their_own() -> None:
    gate = active()
    assert passes(gate, arrival(1e6, kind="delta"))
    assert not passes(gate, arrival(1e6))


def test_rejected_updates_do_not_move_the_range_unless_they_are_the_most() -> None:
    """One of five workers cannot move it. A change of all is accepted when most latest updates were rejected."""
    gate = active(recent=60)
    for _ in range(200):
        assert all(passes(gate, arrival(20.0)) for _ in range(4))
        assert not passes(gate, arrival(1000.0))
    accepted = [passes(gate, arrival(1000.0)) for _ in range(60)]
    assert not any(accepted[:10])
    assert all(accepted[30:])


def test_slow_drift_is_followed() -> None:
    gate, value = active(recent=40), 20.0
    for _ in range(400):
        value *= 0.99
        assert passes(gate, arrival(value))
    assert not passes(gate, arrival(20.0))


@pytest.mark.parametrize(
    "options",
    [
        {"low": 95.0, "high": 5.0},
        {"high": 101.0},
        {"margin": 0.5},
        {"least": 50, "recent": 10},
        {"recent": 0},
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        EvidenceRange("norm", **options)  # type: ignore[arg-type]


def test_norm_of_a_sum_is_that_of_its_mean() -> None:
    gate = active()
    assert passes(gate, arrival(160.0, samples=8, kind="sum"))
    assert all(passes(gate, arrival(160.0, samples=8, kind="sum")) for _ in range(20))
    assert passes(gate, arrival(320.0, samples=16, kind="sum"))
    assert not passes(gate, arrival(320.0, samples=4, kind="sum"))
