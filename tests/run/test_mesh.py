"""Runs on a simulated mesh. Each worker is a peer with its own model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import (
    AdaptiveGossip,
    EventGrad,
    Gossip,
    Local,
    Machine,
    Run,
    Simulated,
    Strategy,
    UsageError,
    accuracy,
    fit,
    replay,
)
from oddlot.core.commands import Request
from oddlot.core.events import (
    Arrived,
    Averaged,
    GoalReached,
    LinkTraffic,
    ModelReceived,
    PeerJoined,
)
from oddlot.core.support.errors import OddlotError
from oddlot.data.batches import order
from oddlot.engines.base import EngineConfig
from oddlot.faults import Chaos, Fault
from oddlot.history.peer_audit import prove_run
from oddlot.history.run_folder import RunFolder
from oddlot.lr_schedules import Cosine, Linear
from oddlot.machines import Link
from oddlot.report.run_report import RunReport
from tests.fits import BATCH, a_job, net, rows
from tests.transcripts import raises

PEERS, SAMPLES = 4, 96
LINK = Link(megabits_per_second=1.0, latency_milliseconds=1.0)
STEP_SECONDS = 0.01


def peers(count: int = PEERS, step_seconds: float = STEP_SECONDS, **settings: Any) -> Simulated:
    """Return machines of equal speed. Their links transfer a model in about 0.2 steps.

    With longer steps, more time passes in a test without more work.
    """
    return Simulated([Machine(f"m{i}", step_seconds / BATCH, link=LINK, **settings) for i in range(count)])


def gossiped(
    strategy: Strategy, on: EngineConfig | None = None, until: str = "epochs>=3", **settings: Any
) -> Run:
    """Run the small job with evaluation."""
    changes = {"metrics": {"accuracy": accuracy}, "eval_data": rows(50), **settings.pop("job", {})}
    job = a_job(count=SAMPLES, **changes)
    return fit(job, strategy, peers() if on is None else on, until=until, **settings)


MODES: list[Strategy] = [
    Gossip(),
    Gossip(period=3, topology="ring"),
    Gossip(mode="push", topology="exponential"),
    Gossip(mode="push_pull", topology="hypercube", mixing="clock"),
    Gossip(topology="matching", mixing="loss"),
    Gossip(probability=0.5),
    Gossip(overlap=True),
    AdaptiveGossip(threshold=0.02),
    AdaptiveGossip(rule="layer", mode="push"),
    AdaptiveGossip(rule="path", mode="push_pull"),
    AdaptiveGossip(rule="lr"),
    EventGrad(warmup_steps=3),
    EventGrad(threshold=0.01, warmup_steps=3),
    AdaptiveGossip(budget_share=0.2),
    AdaptiveGossip(budget_bytes_per_second=5000.0),
]


def test_gossip_exchanges_at_the_given_probability() -> None:
    run = gossiped(Gossip(probability=0.2), until="epochs>=20")
    steps = 20 * SAMPLES / BATCH
    assert run.summary["exchanges"] == pytest.approx(0.2 * steps, rel=0.4)


@pytest.mark.parametrize("strategy", MODES, ids=str)
def test_peers_merge_every_sample_once_and_agree(strategy: Strategy, tmp_path: Path) -> None:
    run = gossiped(strategy, out=tmp_path)
    proof = prove_run(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.whole, proof.merged) == ((), 3, 3 * SAMPLES)
    assert run.summary["exchanges"] > 0
    alone = gossiped(AdaptiveGossip(threshold=1e9))
    assert run.summary["disagreement"] < alone.summary["disagreement"]
    assert replay(tmp_path).difference is None
    assert RunReport.read(tmp_path).summary["accuracy"] == run.accuracy


def plain_peer(number: int, epochs: int) -> dict[str, Tensor]:
    """Train a plain PyTorch loop on the samples that a DistributedSampler would assign to this peer."""
    torch.manual_seed(0)
    model, (points, sides) = net(), rows(SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    share = SAMPLES // PEERS
    done, total = 0, epochs * share
    for epoch in range(epochs):
        mine = order(0, epoch, SAMPLES)[number * share : (number + 1) * share]
        for start in range(0, share, BATCH):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * (1 - done / total)
            batch = torch.as_tensor(mine[start : start + BATCH])
            optimizer.zero_grad()
            cross_entropy(model(points[batch]), sides[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += len(batch)
    return {name: value.detach() for name, value in model.state_dict().items()}


def test_peers_without_exchanges_equal_plain_loops() -> None:
    """The final model is the average of the models of plain loops. The schedule counts the epochs of the run."""
    run = gossiped(AdaptiveGossip(threshold=1e9), job={"lr_schedule": Linear(3.0)})
    loops = [plain_peer(number, epochs=3) for number in range(PEERS)]
    for name, value in run.model.state_dict().items():
        mean = torch.stack([loop[name] for loop in loops]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)


def test_pull_takes_link_time_and_counts_bytes() -> None:
    slow = Simulated(
        [Machine(f"m{i}", STEP_SECONDS / BATCH, link=Link(megabits_per_second=0.1)) for i in range(2)]
    )
    without = gossiped(AdaptiveGossip(threshold=1e9), slow, evaluate_every="1000 epochs")
    every = gossiped(Gossip(), slow, evaluate_every="1000 epochs")
    overlapped = gossiped(Gossip(overlap=True), slow, evaluate_every="1000 epochs")
    received = [record.event for record in every.records if isinstance(record.event, ModelReceived)]
    seconds = received[0].bytes * 8 / 0.1e6
    waited = every.summary["updates"] / 2 - 1  # the run ends with the last step
    assert all(event.seconds == pytest.approx(seconds) for event in received)
    assert every.summary["seconds"] == pytest.approx(without.summary["seconds"] + waited * seconds, rel=0.01)
    step = STEP_SECONDS * overlapped.summary["updates"] / 2
    spared = every.summary["seconds"] - overlapped.summary["seconds"]
    assert spared == pytest.approx(step, rel=0.15), "the next minibatch is computed meanwhile"
    assert overlapped.summary["exchanges"] == pytest.approx(every.summary["exchanges"], abs=2), "at the end"


def wide() -> nn.Module:
    """Return a network that is larger than the header of its packet."""
    return nn.Sequential(nn.Linear(2, 500), nn.Tanh(), nn.Linear(500, 2))


def test_bf16_model_takes_half_the_bytes() -> None:
    sizes = {}
    for codec in ("plain", "bf16"):
        run = gossiped(Gossip(), codec=codec, job={"model": wide})
        (sizes[codec],) = {r.event.bytes for r in run.records if isinstance(r.event, ModelReceived)}
    assert sizes["bf16"] < 0.75 * sizes["plain"]


def test_average_traffic_is_counted_separately(tmp_path: Path) -> None:
    run = gossiped(Gossip(period=2), out=tmp_path)
    links = [record.event for record in run.records if isinstance(record.event, LinkTraffic)]
    received = sum(r.event.bytes for r in run.records if isinstance(r.event, ModelReceived))
    averages = [record.event for record in run.records if isinstance(record.event, Averaged)]
    requests = 200 * run.summary["exchanges"]
    assert sum(link.bytes.get("exchange", 0) for link in links) == received + requests
    assert sum(link.bytes["average"] for link in links if "average" in link.bytes) >= sum(
        a.bytes for a in averages
    )
    assert len({a.peers[0] for a in averages}) == 1
    assert {a.peers[0] for a in averages} == {"m0"}, "the first peer leads"


def test_late_peer_gets_weights_and_processes_its_share(tmp_path: Path) -> None:
    late = [*peers(3).machines, Machine("late", STEP_SECONDS / BATCH, link=LINK, joins_at_seconds=0.1)]
    run = gossiped(Gossip(), Simulated(late), until="epochs>=6", out=tmp_path)
    log = [record for record in run.records if record.peer == "late"]
    assert set(run.summary["peers_averaged"]) == {"m0", "m1", "m2", "late"}
    assert sum(r.event == PeerJoined("late") for r in run.records) == 3
    assert sum(isinstance(r.event, PeerJoined) and r.now == log[0].now for r in log) == 3
    proof = prove_run(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.whole, proof.left_out) == ((), 6, 0)
    assert replay(tmp_path).difference is None


def test_exchange_budget_holds_until_the_end() -> None:
    share = 0.03
    run = gossiped(
        AdaptiveGossip(budget_share=share), peers(2), until="epochs>=300", job={"lr_schedule": Cosine(300)}
    )
    late = [record for record in run.records if record.now > run.records[-1].now / 2]
    steps = sum(isinstance(record.event, Arrived) for record in late)
    exchanges = sum(isinstance(record.event, ModelReceived) for record in late)
    assert exchanges / steps == pytest.approx(share, rel=0.5)


@pytest.mark.parametrize("mode", ["pull", "push", "push_pull"])
def test_byte_budget_counts_all_received_bytes(mode: Any) -> None:
    budget = 5_000.0
    run = gossiped(AdaptiveGossip(mode=mode, budget_bytes_per_second=budget), until="epochs>=150")
    late = [record for record in run.records if record.now > run.records[-1].now / 2]
    received = sum(r.event.bytes for r in late if isinstance(r.event, ModelReceived))
    per_peer = received / PEERS / (late[-1].now - late[0].now)
    assert per_peer == pytest.approx(budget, rel=0.2)


@pytest.mark.parametrize(
    ("until", "figure", "value"), [("versions>=40", "versions", 40), ("samples>=120", "samples_merged", 120)]
)
def test_each_peer_stops_at_its_share_of_the_goal(until: str, figure: str, value: int) -> None:
    run = gossiped(AdaptiveGossip(threshold=1e9), until=until)
    assert value <= run.summary[figure] <= value + PEERS * BATCH


def test_metric_goal_ends_the_run_of_all_peers() -> None:
    run = gossiped(Gossip(), until="accuracy>=0.7")
    assert run.accuracy is not None
    assert run.accuracy >= 0.65
    assert run.ended == "accuracy>=0.7"


def test_late_peer_has_a_share_of_a_common_goal() -> None:
    late = [*peers(3).machines, Machine("late", STEP_SECONDS / BATCH, link=LINK, joins_at_seconds=0.5)]
    run = gossiped(AdaptiveGossip(threshold=1e9), Simulated(late), until="samples>=2400")
    assert 2400 <= run.summary["samples_merged"] < 2500


def test_peers_choose_different_partners() -> None:
    run = gossiped(Gossip(), peers(8), until="epochs>=1")
    first: dict[str | None, str] = {}
    for record in run.records:
        for action in record.actions:
            if isinstance(action, Request):
                first.setdefault(record.peer, action.peer)
    assert len(first) == 8
    assert len(set(first.values())) > 3, "with one seed for all, they ask the first or the second peer"


def test_shards_stay_with_their_peer() -> None:
    """With a shard for each peer, a peer sees the same samples in every epoch."""
    seen: dict[str, set[int]] = {}
    run = gossiped(Gossip(), shards=PEERS)
    for record in run.records:
        for action in record.actions:
            if (task := getattr(action, "task", None)) is not None and record.peer:
                for epoch, start, stop in task.spans:
                    mine = order(0, epoch, SAMPLES, PEERS)[start:stop].tolist()
                    seen.setdefault(record.peer, set()).update(mine)
    assert [len(samples) for samples in seen.values()] == [SAMPLES // PEERS] * PEERS


@pytest.mark.parametrize(
    ("strategy", "on", "code"),
    [
        (Gossip(topology="hypercube"), peers(6), "topology_does_not_fit"),
        (Gossip(), peers(1), "too_few_peers"),
        (Gossip(), Simulated(peers().machines, computes=False), "mesh_without_compute"),
    ],
)
def test_unsuitable_mesh_is_rejected(strategy: Strategy, on: Simulated, code: str) -> None:
    with raises(UsageError, code):
        gossiped(strategy, on)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"budget_share": 0.0}, "invalid_value"),
        ({"budget_bytes_per_second": 0.0}, "invalid_value"),
        ({"budget_share": 0.1, "budget_bytes_per_second": 1.0}, "not_one_of"),
        ({"topology": "star"}, "invalid_value"),
        ({"rule": "loss"}, "invalid_value"),
        ({"mode": "push", "mixing": "loss"}, "setting_of_another_kind"),
        ({"mode": "push", "share": 0.2}, "setting_of_another_kind"),
        ({"mixing": "loss", "share": 0.2}, "setting_of_another_kind"),
        ({"mode": "push", "overlap": True}, "setting_of_another_kind"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], code: str) -> None:
    with raises(OddlotError, code):
        AdaptiveGossip(**settings)


def test_period_with_probability_is_rejected() -> None:
    with raises(UsageError, "not_one_of"):
        Gossip(period=3, probability=0.1)


def test_kill_hub_fault_is_rejected_on_a_mesh() -> None:
    with raises(UsageError, "fault_not_supported"):
        gossiped(Gossip(), chaos=Chaos((Fault("kill_hub", at_seconds=(1.0,)),)), out="unused")


def test_memory_checkpoints_are_rejected_with_processes(tmp_path: Path) -> None:
    with raises(UsageError, "not_persistent"):
        gossiped(Gossip(), Local(workers=2), out=tmp_path / "run", checkpoints="memory://run")


def test_final_average_has_only_finished_models(tmp_path: Path) -> None:
    """An average for an evaluation that was running at the end is ignored, with its metrics."""
    far = Link(latency_milliseconds=30)
    on = Simulated([Machine(f"m{i}", STEP_SECONDS / BATCH, link=far) for i in range(PEERS)])
    run = gossiped(AdaptiveGossip(threshold=1e9), on, evaluate_every="1 versions", out=tmp_path)
    points, sides = rows(50)
    assert run.loss == RunReport.read(tmp_path).summary["loss"]
    assert run.loss == pytest.approx(cross_entropy(run.model(points), sides).item(), rel=1e-6)
    finished = max(record.now for record in run.records if isinstance(record.event, GoalReached))
    averaged = max(record.now for record in run.records if isinstance(record.event, Averaged))
    assert averaged >= finished + 2 * far.latency_milliseconds / 1e3
