"""Runs with hostile workers, robust rules and gates: results, reports, resumes and errors."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import (
    VCASGD,
    Asynchronous,
    CheckpointError,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    Gossip,
    Groups,
    JobError,
    LocalSGD,
    Quorum,
    Run,
    Strategy,
    Synchronous,
    UsageError,
)
from oddlot.config.job_file import JobFile
from oddlot.core.events import Combined
from oddlot.core.tasks import Task, machine_of, node_of
from oddlot.history.log import read_log
from oddlot.history.replay import replay
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Deterministic, Lifetime
from oddlot.merging import Arrival, Combine, EvidenceRange, Gate, Krum, Rejection, Section, TrimmedMean
from oddlot.report.html_page import page
from oddlot.report.run_report import RunReport
from oddlot.run.config import RunConfig
from tests.fits import a_job, equals, fleet, local
from tests.transcripts import raises

HOSTILE = "m4"


@dataclass
class Attack(Gate):
    """Multiplies the updates of one machine."""

    factor: float = -100.0

    def check(self, arrival: Arrival) -> None:
        if machine_of(arrival.facts.sender) == HOSTILE:
            arrival.__dict__.pop("norm", None)  # an earlier gate computed it
            for index in arrival.flat.layout.of_role("trainable"):
                arrival.flat.section(index).mul_(self.factor)


class NotOfHostile(Gate):
    """Rejects all updates of one machine."""

    def check(self, arrival: Arrival) -> None:
        if machine_of(arrival.facts.sender) == HOSTILE:
            raise Rejection("from the hostile machine", "hostile")


class FirstUpdate(Combine):
    """Uses the first update of a merge."""

    def combine(self, sections: Sequence[Section]) -> list[float]:
        for values, out in sections:
            out.copy_(values[0])
        return [0.0] + [1.0] * (len(sections[0].values) - 1)


def attacked(folder: Path, strategy: Strategy | None = None, **settings: Any) -> Run:
    return oddlot.fit(
        a_job(count=240),
        strategy or Synchronous(),
        fleet(5),
        **{"until": "epochs>=8", "gates": [Attack()], "max_update_ratio": None, "quiet": True} | settings,
        out=str(folder),
    )


def loss(run: Run) -> float:
    points, sides = a_job().train_data
    with torch.no_grad():
        return float(cross_entropy(run.model(points), sides))


@pytest.mark.parametrize(
    "strategy", [Synchronous(), FastestK(5), LocalSGD(steps=2), FederatedAveraging()], ids=str
)
@pytest.mark.parametrize("rule", ["trimmed_mean", "median", "krum"])
def test_hostile_worker_does_not_decide(strategy: Strategy, rule: str, tmp_path: Path) -> None:
    """It does with the weighted sum. Its updates are the ones that the rule leaves out most."""
    shards = 5 if isinstance(strategy, FederatedAveraging) else None
    assert not loss(attacked(tmp_path / "sum", strategy, shards=shards)) < 0.7
    run = attacked(tmp_path / "rule", strategy, combine=rule, shards=shards)
    assert loss(run) < 0.5
    figures = run.summary["combined"]
    shares = {name: machine["left_out"] for name, machine in figures["machines"].items()}
    assert max(shares, key=shares.__getitem__) == HOSTILE
    assert shares[HOSTILE] > figures["machines"][HOSTILE]["expected"]
    replay(tmp_path / "rule")


def test_records_summary_and_report_agree(tmp_path: Path) -> None:
    """Samples of updates that Krum left out are merged, and counted as left out."""
    run = attacked(tmp_path / "run", combine="krum:1:1")
    records = read_log(RunFolder(tmp_path / "run").log)
    events = [record.event for record in records if isinstance(record.event, Combined)]
    figures = run.summary["combined"]
    assert figures["merges"] == len(events) == run.summary["versions"] > 20
    counts = {f"m{i}": 0 for i in range(5)}
    for event in events:
        assert sorted(event.left_out.values()) == [0.0] + [1.0] * (len(event.left_out) - 1)
        for update, share in event.left_out.items():
            counts[machine_of(node_of(update))] += share == 1.0
    assert {name: machine["unused"] for name, machine in figures["machines"].items()} == counts
    assert counts[HOSTILE] == len(events)
    assert figures["left_out_samples"] == pytest.approx(0.8 * run.summary["samples_merged"], rel=0.05)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["combined"] == figures
    report = RunReport.read(tmp_path / "run")
    assert report.plain()["combined"] == figures
    assert report.proof.is_exactly_once
    assert f"{figures['left_out_samples']:,} merged samples" in report.verdict
    assert report.settings["run"]["combine"] == "krum:1:1"
    assert 'data-plot="left-out"' in page([report])
    assert f"100 % of {HOSTILE}" in page([report])


@pytest.mark.parametrize(
    "strategy",
    [
        Synchronous(),
        FastestK(3),
        LocalSGD(steps=2),
        FederatedAveraging(),
        Quorum(Synchronous(), 0.9),
        Groups(Synchronous(), 2),
    ],
    ids=str,
)
def test_workers_that_are_too_few_wait_and_the_accounts_stay_exact(
    strategy: Strategy, tmp_path: Path
) -> None:
    """All samples are merged once, and nearly all of them by merges that the rule can compare."""
    shards = 7 if isinstance(strategy, FederatedAveraging) else None
    lost = [Lifetime(seconds, Deterministic()) for seconds in (0.7, 0.8, 0.9, 1.0, 1.1)]
    machines = [
        oddlot.Machine(f"m{number}", 0.01, lifetime=life, seconds_to_return=2.0)
        for number, life in enumerate(lost)
    ]
    more = [oddlot.Machine("m5", 0.01), oddlot.Machine("m6", 0.01)]
    run = oddlot.fit(
        a_job(count=240),
        strategy,
        oddlot.Simulated([*machines, *more]),
        until="epochs>=8",
        combine="median",
        shards=shards,
        out=str(tmp_path / "run"),
        quiet=True,
    )
    proof = RunReport.read(tmp_path / "run").proof
    assert (proof.is_exactly_once, proof.merged) == (True, 8 * 240)
    figures = run.summary["combined"]
    assert figures["left_out_samples"] < 0.1 * 8 * 240
    assert loss(run) < 0.6
    replay(tmp_path / "run")


def test_run_that_cannot_have_enough_workers_says_so(tmp_path: Path) -> None:
    machines = [oddlot.Machine(f"m{number}", 0.01) for number in range(3)]
    machines[0] = replace(machines[0], lifetime=Lifetime(0.3, Deterministic()))
    with raises(JobError, "stalled", machines=2):
        oddlot.fit(
            a_job(),
            Synchronous(),
            oddlot.Simulated(machines),
            until="epochs>=8",
            combine="median",
            quiet=True,
        )


def test_merges_with_few_updates_are_counted(tmp_path: Path) -> None:
    """The last merge of the run has one update, and does not change the model."""
    run = oddlot.fit(
        a_job(),
        Synchronous(),
        equals(5),
        until="epochs>=1",
        combine="krum",
        quiet=True,
        out=str(tmp_path / "run"),
    )
    assert (run.summary["versions"], run.summary["combined"]["merges_without_change"]) == (2, 1)


def test_resume_continues_with_the_rule_and_its_counts(tmp_path: Path) -> None:
    """The figures of the resumed run are those of a run without an interruption."""
    whole = attacked(
        tmp_path / "whole", combine="trimmed_mean", until="epochs>=10", checkpoint_every="2 versions"
    )
    attacked(tmp_path / "run", combine="trimmed_mean", until="epochs>=5", checkpoint_every="2 versions")
    run = attacked(
        tmp_path / "run",
        combine="trimmed_mean",
        until="epochs>=10",
        checkpoint_every="2 versions",
        resume="latest",
    )
    merges = run.summary["combined"]["merges"]
    assert merges == run.summary["versions"] > whole.summary["versions"] / 2
    assert RunReport.read(tmp_path / "run").summary["combined"] == run.summary["combined"]


def test_resume_without_the_rule_is_rejected(tmp_path: Path) -> None:
    """It would silently end the protection. A new segment may have another rule."""
    attacked(tmp_path / "run", combine="median", until="epochs>=2")
    with raises(CheckpointError, "other_job"):
        attacked(tmp_path / "run", until="epochs>=3", resume="latest")
    run = attacked(tmp_path / "run", combine="krum", until="epochs>=3", resume="latest", new_segment=True)
    assert run.ended == "epochs>=3"


def this_task() -> Task:
    """Find the task on the call stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not isinstance(frame.f_locals.get("task"), Task):
        frame = frame.f_back
    assert frame is not None
    task: Task = frame.f_locals["task"]
    return task


def hostile_loss(logits: Tensor, sides: Tensor) -> Tensor:
    """Return the loss, with a gradient that points the wrong way and is 100 times larger on the worker w1."""
    sign = -100.0 if machine_of(this_task().node) == "w1" else 1.0
    return sign * cross_entropy(logits, sides)


def test_hostile_process_does_not_decide(tmp_path: Path) -> None:
    settings: Mapping[str, Any] = {"until": "epochs>=10", "max_update_ratio": None, "quiet": True}
    job = replace(a_job(), loss=hostile_loss)
    run = oddlot.fit(job, Synchronous(), local(3), combine="median", out=str(tmp_path / "run"), **settings)
    assert loss(run) < 0.6
    shares = {name: one["left_out"] for name, one in run.summary["combined"]["machines"].items()}
    assert max(shares, key=shares.__getitem__) == "w1"
    assert RunReport.read(tmp_path / "run").proof.is_exactly_once


# --- gates ---------------------------------------------------------------------------------------


def test_gate_by_norm_rejects_the_hostile_worker_and_others_compute_its_samples(tmp_path: Path) -> None:
    """The hostile worker sends its first hostile update when the gate has seen 20."""

    @dataclass
    class Late(Attack):
        seen: int = 0

        def check(self, arrival: Arrival) -> None:
            self.seen += 1
            if self.seen > 30:
                super().check(arrival)

    run = attacked(tmp_path / "run", gates=[Late(), EvidenceRange("norm", margin=10.0)], skip_bad=True)
    assert run.summary["updates_gated"] > 10
    assert run.summary["updates_invalid"] == run.summary["updates_rejected"] == 0
    assert run.summary["wasted"]["gated"] + run.summary["samples_skipped"] > 0
    assert loss(run) < 0.45
    report = RunReport.read(tmp_path / "run")
    assert report.proof.is_exactly_once
    assert "by a gate" in page([report])


def test_gates_by_import_path_keep_their_state_in_the_run(tmp_path: Path) -> None:
    path = f"{NotOfHostile.__module__}:{NotOfHostile.__name__}"
    gate = EvidenceRange("samples")
    run = attacked(tmp_path / "run", gates=[path, gate], until="epochs>=4", skip_bad=True)
    assert run.summary["updates_gated"] > 1
    assert not gate._latest, "a run copies its gates"
    assert RunReport.read(tmp_path / "run").settings["run"]["gates"] == [
        path,
        "range:samples:5.0:95.0:2.0:200:20",
    ]


def test_own_rule_by_import_path(tmp_path: Path) -> None:
    path = f"{FirstUpdate.__module__}:{FirstUpdate.__name__}"
    run = attacked(tmp_path / "run", combine=path, until="epochs>=4")
    machines = run.summary["combined"]["machines"]
    assert sum(one["merges"] - one["unused"] for one in machines.values()) == run.summary["versions"]


class Wrong(Combine):
    """Writes NaN, and returns `answer` or raises it."""

    answer: Any = None

    def combine(self, sections: Sequence[Section]) -> Any:
        sections[-1].out[0] = nan
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Raises(Gate):
    """Raises an error of Python."""

    def check(self, arrival: Arrival) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "wrong_left_out"),
        ([0.0], "wrong_left_out"),
        ([0.0, 0.0, 2.0], "wrong_left_out"),
        ([0.0, 0.0, 0.0], "rule_not_finite"),
        (ZeroDivisionError(), "user_code_failed"),
    ],
    ids=str,
)
def test_own_rule_that_fails_is_named(answer: Any, code: str) -> None:
    rule = Wrong()
    rule.answer = answer
    with pytest.raises(JobError, match=f"{__name__}:Wrong") as caught:
        oddlot.fit(a_job(), Synchronous(), fleet(3), until="epochs>=1", combine=rule, quiet=True)
    assert caught.value.code == code


def test_own_gate_that_fails_is_named() -> None:
    with pytest.raises(JobError, match=f"{__name__}:Raises") as caught:
        oddlot.fit(a_job(), Synchronous(), fleet(3), until="epochs>=1", gates=[Raises()], quiet=True)
    assert caught.value.code == "user_code_failed"


def test_gate_that_ends_a_run_is_named() -> None:
    with pytest.raises(JobError, match="the gate EvidenceRange rejected") as caught:
        oddlot.fit(a_job(), Synchronous(), fleet(5), until="epochs>=9", gates="range:nrom", quiet=True)
    assert caught.value.code == "bad_samples"


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"combine": "krom"}, "unknown_name"),
        ({"combine": "krum:0"}, "invalid_value"),
        ({"combine": "krum:1:2:3"}, "too_many_values"),
        ({"combine": 3}, "invalid_value"),
        ({"combine": "krum:2"}, "too_few_updates"),
        ({"combine": "trimmed_mean:3"}, "too_few_updates"),
        ({"combine": f"{__name__}:NotOfHostile"}, "not_a_combine"),
        ({"gates": "rang"}, "unknown_name"),
        ({"gates": [3]}, "invalid_value"),
        ({"gates": "range:norm:95:5"}, "invalid_value"),
        ({"gates": f"{__name__}:FirstUpdate"}, "not_a_gate"),
    ],
)
def test_invalid_rules_and_gates_are_rejected(settings: dict[str, Any], code: str) -> None:
    with raises(UsageError, code):
        oddlot.fit(a_job(), Synchronous(), fleet(5), until="epochs>=1", quiet=True, **settings)


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (Asynchronous(), "single_updates"),
        (VCASGD(), "single_updates"),
        (Downpour(), "single_updates"),
        (ElasticAveraging(), "single_updates"),
        (FastestK(2), "too_few_updates"),
        (Synchronous(exact=True), "setting_not_exact"),
        (Gossip(), "setting_without_hub"),
    ],
    ids=str,
)
def test_rule_that_does_not_fit_the_strategy_is_rejected(strategy: Strategy, code: str) -> None:
    with raises(UsageError, code):
        oddlot.fit(a_job(), strategy, fleet(5), until="epochs>=1", combine=TrimmedMean(), quiet=True)


def test_rules_and_gates_of_a_job_file(tmp_path: Path) -> None:
    text = 'workload = "digits"\n[run]\ncombine = "krum:2:3"\n'
    (tmp_path / "job.toml").write_text(text + 'gates = ["range:norm", "range:loss:1:99"]\n')
    given = JobFile.read(str(tmp_path / "job.toml")).run_settings()
    config = RunConfig.of(given)
    assert config.combine == Krum(2, 3)
    assert config.gates == (EvidenceRange("norm"), EvidenceRange("loss", 1, 99))
    assert RunConfig.of({"gates": "range:norm, range:loss:1:99", "combine": "sum"}).gates == config.gates
