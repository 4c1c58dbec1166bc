"""Loading and exporting the weights of a run: last and best, from models and from checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import oddlot
from oddlot import CheckpointError, Gossip, Job, JobError, LocalSGD, Run, Synchronous, UsageError
from oddlot.callbacks import Callback, RunProgress
from oddlot.checkpoint.format import newest
from oddlot.history.run_folder import RunFolder
from oddlot.run.export import export
from oddlot.run.saved_weights import SavedWeights
from tests.fits import a_job, distance, fleet, rows
from tests.run.test_mesh import gossiped, peers
from tests.run.test_resume import Killed
from tests.transcripts import raises


class Tied(nn.Module):
    """A network with tied weights, a frozen layer, BatchNorm and an unsaved buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.decode = nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.again = nn.Linear(2, 4)
        self.more = nn.Linear(2, 4)
        self.again.weight = self.more.weight = self.encode.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decode(
            self.norm(self.encode(self.frozen(x)) + self.again(x) + self.more(x)) * self.scale
        )
        return out


def tied_job(**changes: Any) -> Job:
    return a_job(Tied, eval_data=rows(20), metrics={"accuracy": oddlot.accuracy}, **changes)


class KillAtCheckpoint(Callback):
    """Kills the run once a checkpoint of a trained model is complete."""

    def on_checkpoint(self, run: RunProgress, version: int, path: str) -> None:
        if version:
            self.version = version
            raise Killed


def trained(job: Job, out: Path | None, until: str = "versions>=6", **settings: Any) -> Run:
    options: dict[str, Any] = {"evaluate_every": "1 versions", "checkpoint_every": "1 versions"}
    options |= {"keep_best": "loss"} if out else {}
    return oddlot.fit(job, Synchronous(), fleet(), out=out, until=until, **{**options, **settings})


def killed(job: Job, out: Path, **settings: Any) -> int:
    """Kill a run at a checkpoint. Return the version of its newest checkpoint."""
    kill = KillAtCheckpoint()
    with pytest.raises(Killed):
        trained(job, out, "versions>=999", callbacks=[kill], **settings)
    return kill.version


def test_last_weights_are_those_of_the_returned_model(tmp_path: Path) -> None:
    job = tied_job()
    run = trained(job, tmp_path)
    for source in (run, tmp_path, str(tmp_path)):
        state = oddlot.load(source)
        assert state.keys() == run.model.state_dict().keys()
        model = oddlot.load(source, into=job)
        assert (distance(model, run.model), model.training) == (0.0, False)
    module = Tied()
    assert oddlot.load(run, into=module) is module
    assert distance(module, run.model) == 0.0
    run = trained(job, None)
    assert distance(oddlot.load(run, into=job), run.model) == 0.0
    assert oddlot.load(run).keys() == state.keys()


def test_unfinished_run_has_the_weights_of_its_newest_checkpoint(tmp_path: Path) -> None:
    job = a_job()
    killed(job, tmp_path, evaluate_every="1 epochs", keep_best=None)
    version = newest(RunFolder(tmp_path).storage).version
    model = oddlot.load(tmp_path, into=job)
    again = trained(job, None, f"versions>={version}").model
    resumed = oddlot.load(trained(job, tmp_path, f"versions>={version}", resume="latest", keep_best=None))
    assert distance(model, again) < 1e-6
    assert resumed.keys() == oddlot.load(tmp_path).keys()


def test_last_weights_are_the_moving_average(tmp_path: Path) -> None:
    """Evaluations measure it, in an ended run and in a killed one."""
    job = a_job(eval_data=rows(20), ema_decay=0.9)
    killed(job, tmp_path)
    for _ in range(2):
        version = SavedWeights.read(RunFolder(tmp_path)).version
        average = trained(job, None, f"versions>={version}").model
        for weights in ("last", "ema"):
            assert distance(oddlot.load(tmp_path, weights, into=job), average) < 1e-6
        trained(job, tmp_path, "versions>=20", resume="latest")


def test_run_that_failed_after_a_resume_has_the_weights_of_its_newest_checkpoint(tmp_path: Path) -> None:
    """The model of the earlier end may still be there."""
    trained(a_job(), tmp_path, "versions>=2", keep_best=None)
    calls = iter(range(10))

    def fails_later(outputs: Tensor, targets: Tensor) -> Tensor:
        next(calls)
        return nn.functional.cross_entropy(outputs, targets)

    with raises(JobError, "user_code_failed"):
        options: dict[str, Any] = {"resume": "latest", "checkpoint_every": "1000 versions", "keep_best": None}
        trained(a_job(loss=fails_later), tmp_path, "versions>=99", **options)
    version = newest(RunFolder(tmp_path).storage).version
    assert version > 2
    again = trained(a_job(), None, f"versions>={version}").model
    assert distance(oddlot.load(tmp_path, into=a_job()), again) < 1e-6


def test_frozen_parameters_of_a_checkpoint_come_from_the_job(tmp_path: Path) -> None:
    job = tied_job()
    killed(job, tmp_path)
    with raises(CheckpointError, "frozen_not_saved", names=["frozen.weight", "frozen.bias"]):
        oddlot.load(tmp_path)
    model = oddlot.load(tmp_path, into=job)
    run = trained(job, tmp_path, "versions>=1", resume="latest")
    assert torch.equal(model.state_dict()["frozen.weight"], run.model.state_dict()["frozen.weight"])
    assert distance(oddlot.load(tmp_path, into=Tied()), run.model) == 0.0


@pytest.mark.parametrize("weights", ["last", "best"])
def test_exported_file_loads_without_oddlot(weights: Any, tmp_path: Path) -> None:
    scores = iter([1.0, 3.0, 2.0, 2.0])
    job = replace(tied_job(), metrics={"score": lambda outputs, targets: next(scores)})
    run = trained(job, tmp_path / "run", "versions>=4", keep_best="max score")
    done = export(tmp_path / "run", tmp_path / "model.safetensors", weights)
    model = Tied()
    state = load_file(done.path)
    model.load_state_dict(state)  # strict: tied weights have both names
    assert len(state) == done.tensors
    assert done.bytes == done.path.stat().st_size
    row = run.history[-1 if weights == "last" else 1]
    assert (done.version, done.metrics["score"]) == {"last": (4, 2.0), "best": (2, 3.0)}[weights]
    with safe_open(done.path, "pt") as file:
        about = file.metadata()
    assert (about["version"], about["weights"], about["format"]) == (str(done.version), weights, "pt")
    inputs, targets = rows(20)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model.eval()(inputs), targets))
    assert loss == pytest.approx(row["loss"], rel=1e-5)
    assert distance(oddlot.load(tmp_path / "run", weights, into=Tied()), model) == 0.0


def test_export_of_a_killed_run_has_its_metrics_and_replaces_only_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = killed(a_job(eval_data=rows(20)), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    done = export("run", weights="best")
    assert done.path == Path("run-best.safetensors")
    assert export("run", weights="best").path.exists(), "an export is replaced"
    last = export("run")
    assert last.version >= version
    assert done.metrics["loss"] <= last.metrics["loss"]
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    places = {other: "not_an_export", tmp_path / "no" / "file": "missing_folder", tmp_path: "not_a_file"}
    for path, code in places.items():
        with raises(UsageError, code, path=str(path)):
            export("run", path)


def test_weights_of_a_mesh_are_its_average(tmp_path: Path) -> None:
    job = a_job(count=96, metrics={"accuracy": oddlot.accuracy}, eval_data=rows(50))
    kill = KillAtCheckpoint()
    with pytest.raises(Killed):
        gossiped(
            Gossip(),
            peers(2),
            until="epochs>=99",
            out=tmp_path,
            callbacks=[kill],
            checkpoint_every="4 versions",
        )
    assert torch.isfinite(oddlot.load(tmp_path)["0.weight"]).all()
    run = gossiped(Gossip(), peers(2), until="epochs>=2", out=tmp_path, resume="latest")
    assert distance(oddlot.load(tmp_path, into=job), run.model) == 0.0
    assert export(tmp_path, tmp_path / "mesh.safetensors").metrics == run.metrics


def test_best_weights_are_read_from_the_checkpoints_location(tmp_path: Path) -> None:
    job = a_job(eval_data=rows(20))
    trained(job, tmp_path / "run", checkpoints=tmp_path / "elsewhere")
    before = oddlot.load(tmp_path / "run", "best")
    shutil.rmtree(tmp_path / "run" / "best")
    after = oddlot.load(tmp_path / "run", "best")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_missing_weights_and_other_models_are_named(tmp_path: Path) -> None:
    job = a_job()
    run = trained(job, tmp_path / "run", keep_best=None)
    with raises(UsageError, "no_best_weights", path=str(tmp_path / "run")):
        oddlot.load(run, "best")
    with raises(UsageError, "no_best_weights", path=None):
        oddlot.load(trained(job, None), "best")
    with raises(UsageError, "no_moving_average", path=str(tmp_path / "run")):
        oddlot.load(run, "ema")
    with raises(UsageError, "no_moving_average", path=None):
        oddlot.load(trained(job, None), "ema")
    with raises(UsageError, "unknown_name", kind="weights", given="raw"):
        oddlot.load(run, "raw")  # type: ignore[call-overload]
    with raises(UsageError, "unknown_name", kind="weights", given="raw"):
        oddlot.load(trained(job, None), "raw")  # type: ignore[call-overload]
    with raises(CheckpointError, "no_run", path=str(tmp_path / "no")):
        oddlot.load(tmp_path / "no")
    for other in (nn.Linear(2, 2), Tied(), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))):
        with raises(CheckpointError, "other_model"):
            oddlot.load(run, into=other)
    with raises(UsageError, "invalid_value", name="run", given=3):
        oddlot.load(3)  # type: ignore[call-overload]
    with raises(UsageError, "invalid_value", name="into", given=nn.Linear):
        oddlot.load(run, into=nn.Linear)  # type: ignore[call-overload]


def test_damaged_best_weights_are_named(tmp_path: Path) -> None:
    trained(a_job(eval_data=rows(20)), tmp_path)
    for file in (tmp_path / "best").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with raises(CheckpointError, "unreadable_file"):
        oddlot.load(tmp_path, "best")


def test_local_steps_keep_the_best_weights_too(tmp_path: Path) -> None:
    job = a_job(eval_data=rows(20))
    run = oddlot.fit(job, LocalSGD(steps=2), fleet(), until="epochs>=3", out=tmp_path, keep_best="loss")
    assert run.summary["best"]["metrics"]["loss"] == min(row["loss"] for row in run.history)
    oddlot.load(run, "best", into=job)
