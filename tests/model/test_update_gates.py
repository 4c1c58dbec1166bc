"""Gates reject updates that are not finite or far larger than others."""

from contextlib import nullcontext
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous, LocalSGD, Strategy
from oddlot.core.events import UpdateRejected
from oddlot.core.support.errors import Rejection
from oddlot.core.tasks import Facts, Kind
from oddlot.model.arrival import Arrival, norm_of
from oddlot.model.combine import Gate
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.payload import Payload
from oddlot.model.update_gates import MIN_UPDATES, Finite, UsualNorm, standard_gates
from oddlot.model.weight_store import WeightStore
from tests.engines.log import events
from tests.fits import a_job, fleet
from tests.transcripts import raises


def trained(
    gate: UsualNorm, norm: float = 2.0, count: int = MIN_UPDATES, kind: Kind = "gradient"
) -> UsualNorm:
    for number in range(count):
        gate.note(f"a:{number}", kind, norm)
    return gate


def test_update_over_1000_times_the_median_norm_is_rejected() -> None:
    gate = trained(UsualNorm())
    with raises(Rejection, "update_too_large", update="a:21", norm=2_001.0, median=2.0):
        gate.note("a:21", "gradient", 2_001.0)
    gate.note("a:20", "gradient", 2_000.0)
    trained(gate, norm=50.0, count=100)
    gate.note("a:22", "gradient", 50_000.0)


def test_large_norms_are_accepted_after_small_or_similar_ones() -> None:
    """The norm of a rare sample is accepted when all others are fitted, and so is the third of three similar norms.

    Similar large norms occur after an increase of the learning rate.
    """
    gate = trained(trained(UsualNorm(), 1.0), 1e-6, count=100)
    gate.note("a:1", "gradient", 9.0)
    gate = trained(UsualNorm())
    for norm in (1e6, 1e30, 5e6, 3e6):
        with raises(Rejection, "update_too_large", norm=norm):
            gate.note("a:1", "gradient", norm)
    gate.note("a:1", "gradient", 2e6)


@pytest.mark.parametrize(
    "gate",
    [
        trained(UsualNorm(), count=MIN_UPDATES - 1),
        trained(UsualNorm(), 0.0),
        trained(UsualNorm(None)),
        trained(UsualNorm(inf)),
    ],
    ids=["few", "a median of 0", "off", "any"],
)
def test_norm_gate_is_off_without_a_median_or_limit(gate: UsualNorm) -> None:
    gate.note("a:99", "gradient", 1e30)


def test_infinities_of_the_base_version_are_accepted() -> None:
    """A late update may still have the initial range of an observer. Other infinities in buffers are rejected."""
    module = nn.Linear(2, 2)
    module.register_buffer("range", torch.zeros(2))
    base, now, update = (FlatBuffer.empty(Layout.from_module(module)) for _ in range(3))
    base.view("range")[0] = inf
    update.copy_(base)
    arrival = Arrival(Facts("a:1", "a", 0, 1, "weights", loss=2.5), "weights", update, now, base)
    Finite().check(arrival)
    update.view("range")[1] = inf
    with raises(Rejection, "numbers_not_finite", tensors={"range": 1}, loss=2.5):
        Finite().check(arrival)


def test_each_update_kind_has_its_own_median() -> None:
    gate = trained(trained(UsualNorm()), 1e6, kind="weights")
    gate.note("a:98", "weights", 1e8)
    with raises(Rejection, "update_too_large", update="a:99"):
        gate.note("a:99", "gradient", 1e8)


def test_norm_of_a_sum_is_that_of_its_mean() -> None:
    """A sum over many samples is accepted after sums over few. One whose mean is large is rejected."""

    def arrival(number: int, weight: int, mean: float) -> Arrival:
        flat = FlatBuffer.empty(Layout.from_module(nn.Linear(1, 1, bias=False)))
        flat.view("weight").fill_(weight * mean)
        return Arrival(Facts(f"a:{number}", "a", 0, 1, "sum", weight=weight), "sum", flat, flat)

    gate = UsualNorm()
    for number in range(MIN_UPDATES):
        gate.check(arrival(number, 2, 0.5))
    gate.check(arrival(98, 20_000, 0.5))
    with raises(Rejection, "update_too_large", norm=600.0, median=0.5):
        gate.check(arrival(99, 2, 600.0))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float32, 3e38), (torch.float16, 6e4), (torch.bfloat16, 3e38), (torch.float64, 1e300)],
)
def test_norm_is_finite_for_large_values_and_not_for_bad_ones(dtype: torch.dtype, value: float) -> None:
    flat = FlatBuffer.empty(Layout.from_module(nn.Linear(3, 1, dtype=dtype)))
    flat.view("weight").fill_(value)
    wide = float(flat.view("weight")[0, 0].double())
    assert norm_of(flat) == pytest.approx(wide * 3**0.5) if value < 1e200 else norm_of(flat) == inf
    for bad in (nan, inf):
        flat.view("bias").fill_(bad)
        assert not norm_of(flat) < inf


def test_weight_updates_are_compared_with_their_base_version() -> None:
    layout = Layout.from_module(nn.Linear(9, 9))
    initial = FlatBuffer.empty(layout)
    initial.section(0).fill_(1e6)
    store = WeightStore(initial, oddlot.SGD(0.1))
    for number in range(MIN_UPDATES + 1):
        flat = FlatBuffer.empty(layout)
        flat.copy_(store.weights)
        flat.view("bias").add_(1.0 if number < MIN_UPDATES else 1e5)
        facts, payload = Facts(f"a:{number}", "a", 0, 1, "weights"), Payload("weights", flat)
        if number < MIN_UPDATES:
            store.receive(facts, payload)
    with raises(Rejection, "update_too_large", update=f"a:{MIN_UPDATES}"):
        store.receive(facts, payload)


def test_custom_gate_can_reject_updates() -> None:
    """A gate is called after the gates before it. The payload of a rejected update is released."""

    class Fresh(Gate):
        def check(self, arrival: Arrival) -> None:
            seen.append((arrival.facts.id, arrival.norm, arrival.base is arrival.weights))
            if arrival.base is not arrival.weights:
                raise Rejection("too old", "too_old")

    seen = list[tuple[str, float | None, bool]]()
    layout = Layout.from_module(nn.Linear(1, 1))
    store = WeightStore(
        FlatBuffer.empty(layout), oddlot.SGD(0.1), gates=[*standard_gates(), Fresh()], version=3
    )
    for number, version in enumerate((3, 2, 3)):
        flat, freed = FlatBuffer.empty(layout), list[bool]()
        flat.view("weight").fill_((3.0, 3.0, nan)[number])
        payload = Payload("gradient", flat, lambda freed=freed: freed.append(True))  # type: ignore[misc]
        code = ("", "too_old", "numbers_not_finite")[number]
        with raises(Rejection, code) if code else nullcontext():
            store.receive(Facts(f"a:{number}", "a", version, 1), payload)
        assert bool(freed) == bool(code)
    assert [*store.inbox] == ["a:0"]
    assert seen == [("a:0", 3.0, True), ("a:1", 3.0, False)]


@pytest.mark.parametrize("strategy", [Asynchronous(), LocalSGD(steps=1)], ids=["gradients", "deltas"])
def test_huge_update_is_rejected_and_recomputed(strategy: Strategy) -> None:
    seen = [0]

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen[0] += 1
        return cross_entropy(model(batch[0]), batch[1]) * (1e6 if seen[0] == 40 else 1.0)

    run = oddlot.fit(a_job(loss=None, training_step=step), strategy, fleet(), until="epochs>=10")
    assert run.summary["wasted"] == {"rejected": 8}
    assert (run.summary["updates_invalid"], run.summary["updates_rejected"]) == (0, 1)
    (rejected,) = events(run.records, UpdateRejected)
    assert rejected.code == "update_too_large"
    assert all(
        bool(part.isfinite().all()) and float(part.detach().abs().max()) < 10
        for part in run.model.parameters()
    )
