"""Checkpoints of a mesh, and runs that are resumed from them."""

import itertools
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oddlot import (
    AdaptiveGossip,
    CheckpointError,
    EventGrad,
    Gossip,
    JobError,
    Machine,
    Run,
    Simulated,
    Strategy,
    replay,
)
from oddlot.checkpoint.format import MANIFEST, TENSORS, newest, saved
from oddlot.core.commands import Average, Dispatch
from oddlot.core.events import Evaluated, FaultInjected, Resumed
from oddlot.core.records import Record
from oddlot.core.support.errors import OddlotWarning
from oddlot.engines.mesh.messages import ModelForAverage, PeerMessage, Tensors
from oddlot.engines.mesh.simulated import SimulatedMesh
from oddlot.faults import Chaos, Fault
from oddlot.history.log import read_log
from oddlot.history.peer_audit import prove_run
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.history.run_outcome import read_ending
from oddlot.report.live_log import LiveLog
from oddlot.report.run_report import RunReport
from tests.fits import BATCH
from tests.run.test_mesh import PEERS, SAMPLES, gossiped, peers
from tests.transcripts import raises

EVERY = "6 versions"


def trained(folder: Path, until: str = "epochs>=3", strategy: Strategy | None = None, **settings: Any) -> Run:
    """Run a mesh with a checkpoint after every six merges of the leading peer."""
    settings = {"out": folder, "checkpoint_every": EVERY, "keep_checkpoints": 100, **settings}
    return gossiped(strategy or Gossip(), until=until, **settings)


def resumed(folder: Path, until: str = "epochs>=5", **settings: Any) -> Run:
    """Resume the run."""
    return trained(folder, until, resume="latest", **settings)


def checkpoints(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, oldest first."""
    return [folder / "checkpoints" / name for name in saved(RunFolder(folder).storage)]


def kill(folder: Path, kept: int) -> None:
    """Leave the files of a run that was killed after it had written `kept` checkpoints."""
    for path in checkpoints(folder)[kept:]:
        shutil.rmtree(path)
    (folder / SUMMARY).unlink()
    (folder / "model.safetensors").unlink()


def check(folder: Path, epochs: int) -> None:
    """Check the logs of all peers: each sample is merged once per epoch, and each decision is reproduced."""
    proof = prove_run(RunFolder(folder), SAMPLES)
    assert (proof.faults, proof.whole, proof.merged) == ((), epochs, epochs * SAMPLES)
    assert replay(folder).difference is None


STRATEGIES: list[Strategy] = [
    Gossip(),
    Gossip(mode="push", topology="exponential"),
    Gossip(mode="push_pull", topology="matching"),
    AdaptiveGossip(budget_share=0.3),
    EventGrad(warmup_steps=3),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_killed_run_resumes_with_every_sample(strategy: Strategy, tmp_path: Path) -> None:
    trained(tmp_path, strategy=strategy)
    kill(tmp_path, 1)
    run = resumed(tmp_path, strategy=strategy)
    check(tmp_path, 5)
    assert run.summary["samples_merged"] == 5 * SAMPLES
    assert run.summary["wasted"]["resumed"] > 0
    assert {record.peer for record in run.records} == {f"m{i}" for i in range(PEERS)}
    assert sum(isinstance(record.event, Resumed) for record in run.records) == PEERS
    assert RunReport.read(tmp_path).tally.versions == run.summary["versions"]


def test_log_of_another_run_is_rejected(tmp_path: Path) -> None:
    trained(tmp_path / "run", "epochs>=1", on=peers(2))
    trained(tmp_path / "other", "epochs>=1", on=peers(3))
    stray = tmp_path / "run" / "peers" / "m2.jsonl"
    shutil.copy(tmp_path / "other" / "peers" / "m2.jsonl", stray)
    for read in (RunReport.read, replay, lambda folder: resumed(folder, on=peers(2))):
        with raises(CheckpointError, "unknown_peer", path=str(stray), peer="m2"):
            read(tmp_path / "run")


def test_machine_costs_continue_after_resume(tmp_path: Path) -> None:
    on = peers(dollars_per_hour=3600.0)
    trained(tmp_path, on=on)
    run, tally = resumed(tmp_path, on=on), RunReport.read(tmp_path).tally
    paid = sum(account.dollars(tally.seconds) for account in tally.cost.accounts.values())
    lost = sum(record.event.dollars_lost for record in run.records if isinstance(record.event, Resumed))
    assert lost < 0.1 * paid
    assert paid + lost == pytest.approx(tally.dollars)


def test_peers_resume_with_averaged_weights_and_optimizer_state(tmp_path: Path) -> None:
    before = trained(tmp_path)
    (tmp_path / SUMMARY).unlink()  # like a kill while the run saves
    saved_before = load_file(checkpoints(tmp_path)[-1] / TENSORS)
    after = resumed(tmp_path, "epochs>=3")
    assert after.summary["versions"] == before.summary["versions"]
    for name, tensor in before.model.state_dict().items():
        torch.testing.assert_close(after.model.state_dict()[name], tensor)
    saved_after = load_file(checkpoints(tmp_path)[-1] / TENSORS)
    assert len(checkpoints(tmp_path)) > 1
    momenta = [name for name in saved_before if name.startswith("optimizer")]
    assert len(momenta) > 1
    for name in momenta:
        assert torch.equal(saved_after[name], saved_before[name]), name


def test_finished_run_starts_no_peer(tmp_path: Path) -> None:
    before = trained(tmp_path)
    logs = {path: path.read_bytes() for path in RunFolder(tmp_path).logs().values()}
    seen: list[Any] = []
    after = resumed(tmp_path, "epochs>=3", callbacks=[seen.append])
    assert after.summary == before.summary
    assert len(seen) == len(before.records)
    assert {path: path.read_bytes() for path in RunFolder(tmp_path).logs().values()} == logs


def test_peer_missing_from_the_checkpoint_loses_its_work(tmp_path: Path) -> None:
    """The replacement of a killed peer has trained since the checkpoint. The killed peer resumes instead."""
    on = peers(step_seconds=0.04, seconds_to_return=0.01)
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=(0.4,)),))
    trained(tmp_path, "seconds>=6", on=on, chaos=chaos, checkpoint_every="100 versions")
    assert RunFolder(tmp_path).log_of("m1.2").exists()
    kill(tmp_path, 1)
    run = resumed(tmp_path, "seconds>=12", on=on, chaos=chaos)
    work = [record.now for record in run.records if record.peer == "m1.2" and record.actions]
    assert work == []
    assert set(run.summary["peers_averaged"]) == {f"m{i}" for i in range(PEERS)}
    assert sum(isinstance(record.event, FaultInjected) for record in run.records) == 0, (
        "it was in the lost work"
    )
    assert prove_run(RunFolder(tmp_path), SAMPLES).faults == ()
    assert replay(tmp_path).difference is None


def test_machine_without_a_saved_peer_gets_a_new_peer(tmp_path: Path) -> None:
    chaos = Chaos((Fault("kill", machine="m1", at_seconds=(0.1,)),))
    with pytest.warns(OddlotWarning):  # the model of the first run lacks samples of m1
        trained(tmp_path, "seconds>=6", chaos=chaos, checkpoint_every="100 versions")
    run = resumed(tmp_path, "seconds>=8", chaos=chaos, checkpoint_every="100 versions")
    assert set(run.summary["peers_averaged"]) == {"m0", "m1.2", "m2", "m3"}
    proof = prove_run(RunFolder(tmp_path), SAMPLES)
    assert (proof.faults, proof.left_out) == ((), 0), "it takes over the samples of m1 that the model lacks"
    assert sum(isinstance(record.event, FaultInjected) for record in run.records) == 1, (
        "it is not injected again"
    )


def test_goals_count_earlier_samples(tmp_path: Path) -> None:
    trained(tmp_path, "samples>=96", strategy=AdaptiveGossip(threshold=1e9))
    run = resumed(tmp_path, "samples>=192", strategy=AdaptiveGossip(threshold=1e9))
    assert run.summary["samples_merged"] == 192


def test_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    trained(tmp_path)
    newest = checkpoints(tmp_path)[-1]
    (newest / MANIFEST).write_text("{}")
    with pytest.warns(match=newest.name):
        resumed(tmp_path)
    check(tmp_path, 5)
    numbers = [int(path.name.split("-")[1]) for path in checkpoints(tmp_path)]
    assert numbers == sorted(set(numbers)), "later checkpoints have higher numbers than the damaged one"


def test_run_without_a_checkpoint_restarts(tmp_path: Path) -> None:
    trained(tmp_path, until="versions>=4", evaluate_every="1 epochs")
    kill(tmp_path, 0)
    run = resumed(tmp_path)
    check(tmp_path, 5)
    assert not any(isinstance(record.event, Resumed) for record in run.records)
    kill(tmp_path, 0)
    with raises(CheckpointError, "no_complete_checkpoint"):
        resumed(tmp_path)


def test_resume_with_other_shards_or_settings_is_rejected(tmp_path: Path) -> None:
    trained(tmp_path / "shards", shards=PEERS)
    with raises(CheckpointError, "other_machines"):
        resumed(tmp_path / "shards", on=peers(3), shards=PEERS)
    trained(tmp_path / "run")
    with raises(CheckpointError, "other_job"):
        resumed(tmp_path / "run", strategy=Gossip(period=7))


@pytest.mark.parametrize("counts", [(3,), (6,), (2, 5), (2, 2, 4)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_resume_with_other_peer_counts_keeps_every_sample(
    strategy: Strategy, counts: tuple[int, ...], tmp_path: Path
) -> None:
    """Runs that are killed during an epoch resume with other numbers of peers, and keep every sample."""
    trained(tmp_path, "epochs>=2", strategy)
    for count in counts:
        kill(tmp_path, len(checkpoints(tmp_path)) // 2 + 1)
        run = resumed(tmp_path, "epochs>=5", strategy=strategy, on=peers(count))
        check(tmp_path, 5)
        assert len(run.summary["peers_averaged"]) == count
        assert (run.summary["peers_missing"], run.summary["samples_left_out"]) == ([], 0)
        assert RunReport.read(tmp_path).tally.versions == run.summary["versions"]


@pytest.mark.parametrize("goal", ["versions>=60", f"samples>={5 * SAMPLES}"])
def test_resume_with_fewer_peers_reaches_a_common_goal(goal: str, tmp_path: Path) -> None:
    trained(tmp_path, goal)
    kill(tmp_path, 3)
    run = resumed(tmp_path, goal, on=peers(2))
    figure, value = goal.split(">=")
    key = {"versions": "versions", "samples": "samples_merged"}[figure]
    step = {"versions": 1, "samples": BATCH}[figure]
    assert int(value) <= run.summary[key] <= int(value) + 4 * step, "a step and an average each"


def test_callbacks_and_followers_see_only_valid_records(tmp_path: Path) -> None:
    trained(tmp_path)
    kill(tmp_path, 1)
    follower = LiveLog(RunFolder(tmp_path))
    follower.read()
    seen: list[Any] = []
    run = resumed(tmp_path, callbacks=[seen.append])
    assert Counter(map(_text, seen)) == Counter(map(_text, run.records))
    follower.read()
    assert follower.tally.versions == run.summary["versions"]
    evaluations = [
        record.event for record in read_run_log(RunFolder(tmp_path)) if isinstance(record.event, Evaluated)
    ]
    assert [event.version for event in evaluations] == sorted({event.version for event in evaluations})


def _text(record: Record) -> tuple[float, str | None, str]:
    return record.now, record.peer, type(record.event).__name__


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    trained(tmp_path, keep_checkpoints=2, checkpoint_every="1 versions")
    there = checkpoints(tmp_path)
    resumed(tmp_path, keep_checkpoints=2, checkpoint_every="1 versions")
    assert len(there) == len(checkpoints(tmp_path)) == 2
    assert not set(there) & set(checkpoints(tmp_path))


def test_partitioned_peers_resume_with_all_samples(tmp_path: Path) -> None:
    """The halves of a partition finish separately. The resumed run includes every sample of both."""
    chaos = Chaos((Fault("partition", at_seconds=(0.1,)),))
    on = Simulated([Machine(f"m{i}", 0.01 / 8 * (1 + i // 2)) for i in range(PEERS)])
    with pytest.warns(OddlotWarning):
        first = trained(tmp_path, "epochs>=60", on=on, chaos=chaos)
    assert len(first.summary["peers_averaged"]) < PEERS
    run = resumed(tmp_path, "epochs>=70", on=on, chaos=chaos)
    check(tmp_path, 70)
    assert set(run.summary["peers_averaged"]) == {f"m{i}" for i in range(PEERS)}
    assert run.summary["samples_assigned"] == run.summary["samples_merged"] + run.summary["samples_wasted"]


def test_resume_keeps_samples_merged_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost model for an average is requested again. It includes later work of the peers with earlier requests."""
    send, lost = SimulatedMesh.send, list[str]()

    def send_all_but_one(
        mesh: SimulatedMesh, sender: str, receiver: str, message: PeerMessage, tensors: Tensors | None
    ) -> None:
        if (
            isinstance(message, ModelForAverage)
            and message.host_state is not None
            and message.number > 1
            and not lost
        ):
            lost.append(sender)
        else:
            send(mesh, sender, receiver, message, tensors)

    monkeypatch.setattr(SimulatedMesh, "send", send_all_but_one)
    on = peers(step_seconds=0.04)
    trained(tmp_path, "epochs>=35", on=on)
    kill(tmp_path, 2)
    state = newest(RunFolder(tmp_path).storage).load().hosts
    resumed(tmp_path, "epochs>=40", on=on)
    for node, path in RunFolder(tmp_path).logs().items():
        [event] = [record.event for record in read_log(path) if isinstance(record.event, Resumed)]
        assert (event.after_record > state[node].records + 50) == (node not in lost), node
    check(tmp_path, 40)
    sent, averaged = dict[str, float](), list[tuple[str, float]]()
    for record in read_run_log(RunFolder(tmp_path)):
        sent |= {one.model.id: record.now for one in record.actions if isinstance(one, Dispatch)}
        averaged += [
            (model, record.now) for one in record.actions if isinstance(one, Average) for model in one.shares
        ]
    assert [model for model, now in averaged if sent[model] > now] == [], "no name of a model is used again"


def test_mesh_without_logs_resumes_with_new_peers(tmp_path: Path) -> None:
    trained(tmp_path)
    kill(tmp_path, 1)
    for path in RunFolder(tmp_path).logs().values():
        path.unlink()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = resumed(tmp_path)
    codes = [getattr(each.message, "code", "") for each in warned]
    assert codes.count("peer_log_too_short") == len(set(run.summary["peers_averaged"])) > 1
    assert "samples_left_out" in codes
    assert run.summary["samples_left_out"] > 0


def test_mesh_that_failed_without_a_checkpoint_restarts(tmp_path: Path) -> None:
    calls = itertools.count(1)

    def failing_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if next(calls) > 6:
            raise ValueError
        return torch.nn.functional.cross_entropy(outputs, labels)

    with pytest.raises(JobError):
        trained(tmp_path, job={"loss": failing_loss})
    for path in checkpoints(tmp_path):
        shutil.rmtree(path)
    assert read_ending(RunFolder(tmp_path))["versions"] > 0
    run = resumed(tmp_path)
    assert run.ended == "epochs>=5"
    check(tmp_path, 5)
