"""Runs that continue with another strategy, optimizer or batch size in a new segment."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import oddlot
from oddlot import (
    SGD,
    Adam,
    AdamW,
    Asynchronous,
    Gossip,
    Groups,
    Job,
    Local,
    LocalSGD,
    Simulated,
    Strategy,
    Synchronous,
)
from oddlot.checkpoint.format import newest
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Resumed
from oddlot.core.optimizers import Optimizer
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import CheckpointError, OddlotWarning, UsageError
from oddlot.history.log import read_log
from oddlot.history.replay import replay
from oddlot.history.run_folder import RunFolder
from oddlot.history.segments import RUN_OPTIONS, SEGMENT_SETTINGS
from oddlot.lr_schedules import Cosine
from oddlot.report.run_report import RunReport
from oddlot.train.job_settings import JobSettings
from tests.fits import (
    BATCH,
    SAMPLES,
    a_job,
    distance,
    equals,
    everything,
    fleet,
    in_batches,
    local,
    rows,
    trained,
)
from tests.processes import program
from tests.run.test_resume import KillAt, Killed, merged
from tests.toys import Timed
from tests.transcripts import raises, warns

pytestmark = pytest.mark.filterwarnings("ignore:the state of the hub's optimizer")


def segments(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "run.json").read_text())["segments"]
    return found


def state_of(folder: Path) -> dict[str, Any]:
    """Return the state of the conductor in the newest checkpoint."""
    return newest(Storage(folder / "checkpoints")).load().hosts[""].conductor


def goes(folder: Path, strategy: Strategy, until: str, job: Job | None = None, **options: Any) -> oddlot.Run:
    """Run or continue a run in a folder. Any of its settings may change."""
    options = {"engine": fleet(4), "resume": "auto", "new_segment": True, "quiet": True, **options}
    return oddlot.fit(job or a_job(), strategy, until=until, out=folder, **options)


def check_books(folder: Path, epochs: int) -> None:
    """Check that every sample of these epochs was merged once, and that the log replays."""
    assert merged(folder) == everything(SAMPLES, epochs)
    report = RunReport.read(folder)
    assert report.proof.is_exactly_once
    assert report.proof.whole == epochs
    assert replay(folder).difference is None


# --- segments in a row -----------------------------------------------------------------------------


def test_run_of_three_segments_keeps_its_books(tmp_path: Path) -> None:
    """The state is checked after each record. Resumes inside a segment continue it."""
    folder, groups = RunFolder(tmp_path), Groups(Synchronous(), groups=2)
    changed = a_job(
        batch_size=12, optimizer=SGD(0.05, momentum=-0.2), lr_schedule=Cosine(20), max_grad_norm=1.0
    )
    local_steps = a_job(batch_size=4)
    trained(a_job(), Synchronous(), fleet(4), "versions>=10", folder)
    for until in ("versions>=20", "versions>=25"):
        trained(changed, groups, fleet(4), until, folder, resume=True, new_segment=True)
    for until, is_new in {"epochs>=14": True, "epochs>=16": False}.items():
        trained(local_steps, LocalSGD(steps=2), fleet(3), until, folder, resume=True, new_segment=is_new)
    check_books(tmp_path, 16)
    assert [one["first_version"] for one in segments(tmp_path)] == [0, 10, 25]
    assert [one["strategy"].partition("(")[0] for one in segments(tmp_path)] == [
        "Synchronous",
        "Groups",
        "LocalSGD",
    ]
    assert [one["batch_size"] for one in segments(tmp_path)] == [BATCH, 12, 4]
    assert [one.get("optimizer_state_kept") for one in segments(tmp_path)] == [None, True, False]
    assert [one.get("lr_schedule") for one in segments(tmp_path)] == [None, repr(Cosine(20)), None]
    assert sum(isinstance(one.event, Resumed) for one in read_log(folder.log)) == 4


def test_updates_and_versions_of_the_earlier_strategy_are_discarded(tmp_path: Path) -> None:
    folder, job = RunFolder(tmp_path), a_job(count=128, eval_data=rows(20))
    trained(job, Timed(seconds=0.1), fleet(2), "epochs>=2", folder)
    assert state_of(tmp_path)["kept"]
    ends = state_of(tmp_path)["now"] + 0.36
    trained(job, Synchronous(), fleet(16), f"seconds>={ends}", folder, resume=True, new_segment=True)
    waiting = sum(facts["samples"] for facts in state_of(tmp_path)["inbox"].values())
    lost = RunReport.read(tmp_path).summary["wasted"].get("resumed", 0)
    assert waiting
    run, state = trained(job, LocalSGD(), local(1), "epochs>=4", folder, resume=True, new_segment=True)
    assert run.summary["wasted"].keys() == {"resumed"}
    assert run.summary["wasted"]["resumed"] >= lost + waiting
    assert sorted(state.merged) == everything(128, 4)


def test_unchanged_settings_continue_the_segment(tmp_path: Path) -> None:
    """A command that is repeated after each failure does not start a segment each time."""
    for epochs in (1, 2, 3):
        goes(tmp_path, Synchronous(), f"epochs>={epochs}")
    assert len(segments(tmp_path)) == 1
    check_books(tmp_path, 3)


def test_run_without_segments_in_its_settings_continues(tmp_path: Path) -> None:
    """An earlier version of oddlot did not list segments."""
    goes(tmp_path, Synchronous(), "versions>=4")
    settings = json.loads((tmp_path / "run.json").read_text())
    del settings["segments"]
    (tmp_path / "run.json").write_text(json.dumps(settings))
    goes(tmp_path, Asynchronous(), "epochs>=4")
    assert [one["first_version"] for one in segments(tmp_path)] == [0, 4]
    check_books(tmp_path, 4)


# --- kills -----------------------------------------------------------------------------------------


def switch_killed_before_its_checkpoint(folder: Path, **options: Any) -> None:
    """Start a second segment, and kill the run after the switch is logged, before a checkpoint has it."""
    goes(folder, Synchronous(), "versions>=5", **options)
    with patch("oddlot.run.saving.BackgroundWriter.save", side_effect=Killed), pytest.raises(Killed):
        goes(folder, Asynchronous(), "versions>=9", a_job(batch_size=4), **options)
    assert len(segments(folder)) == 2


def test_killed_switch_is_made_again(tmp_path: Path) -> None:
    """The newest checkpoint is of the first segment, and run.json already lists the second one."""
    switch_killed_before_its_checkpoint(tmp_path)
    for epochs in (5, 6):
        until = f"epochs>={epochs}"
        goes(tmp_path, Asynchronous(), until, a_job(batch_size=4), resume="latest", new_segment=False)
    assert [(one["first_version"], one["batch_size"]) for one in segments(tmp_path)] == [(0, BATCH), (5, 4)]
    check_books(tmp_path, 6)


def test_killed_switch_can_be_given_up(tmp_path: Path) -> None:
    switch_killed_before_its_checkpoint(tmp_path)
    with raises(CheckpointError, "other_job") as caught:
        goes(tmp_path, Synchronous(), "epochs>=6", resume="latest", new_segment=False)
    assert caught.value.fields["different"].keys() == {"strategy", "batch_size"}
    goes(tmp_path, Synchronous(), "epochs>=6")
    assert len(segments(tmp_path)) == 1
    check_books(tmp_path, 6)


def test_lost_work_of_a_segment_is_computed_again(tmp_path: Path) -> None:
    goes(tmp_path, Synchronous(), "versions>=5", checkpoint_every="100 versions")
    slow: dict[str, Any] = {"checkpoint_every": "100 versions", "engine": equals(2)}
    for seconds in (0.4, 0.8):
        with pytest.raises(Killed):
            goes(tmp_path, Asynchronous(), "epochs>=99", callbacks=[KillAt(seconds)], **slow)
    assert len(segments(tmp_path)) == 2
    goes(tmp_path, Synchronous(), "epochs>=6", **slow)
    assert [one["first_version"] for one in segments(tmp_path)] == [0, 5, 5]
    check_books(tmp_path, 6)


def test_damaged_checkpoints_of_a_segment_repeat_the_switch(tmp_path: Path) -> None:
    goes(tmp_path, Synchronous(), "versions>=5")
    goes(tmp_path, LocalSGD(steps=2), "versions>=8")
    for place in (tmp_path / "checkpoints").iterdir():
        if json.loads((place / "manifest.json").read_text())["records"] > 24:
            (place / "conductor.json").write_bytes(b"{}")
    with warns("damaged_checkpoint_skipped"):
        goes(tmp_path, LocalSGD(steps=2), "epochs>=9", resume="latest", new_segment=False)
    assert [one["first_version"] for one in segments(tmp_path)] == [0, 5]
    check_books(tmp_path, 9)


KILLED = """
import os, signal, sys
import oddlot
from tests.fits import a_job, local

oddlot.fit(a_job(), oddlot.Synchronous(), local(2), until="versions>=5", out=sys.argv[1], quiet=True)
oddlot.fit(
    a_job(batch_size=4), oddlot.LocalSGD(steps=2), local(2), until="versions>=9", out=sys.argv[1], resume="latest",
    new_segment=True, quiet=True, callbacks=[lambda record: os.kill(os.getpid(), signal.SIGKILL)],
)
"""


@pytest.mark.usefixtures("fork_server", "warm_start")
def test_hub_process_killed_after_the_switch_resumes(tmp_path: Path) -> None:
    with program("-c", KILLED, tmp_path) as process:
        assert process.wait(120) == -signal.SIGKILL, process.communicate()[1]
    run = goes(
        tmp_path, LocalSGD(steps=2), "epochs>=6", a_job(batch_size=4), engine=local(2), new_segment=False
    )
    assert [one["first_version"] for one in segments(tmp_path)] == [0, 5]
    assert run.folder == tmp_path
    check_books(tmp_path, 6)


@pytest.fixture(params=["memory://bucket/run", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    MemoryFileSystem.store.clear()
    yield str(tmp_path / "elsewhere") if request.param == "folder" else request.param
    MemoryFileSystem.store.clear()


def test_segments_continue_on_another_machine(tmp_path: Path, url: str) -> None:
    """The location of the checkpoints has the newest settings, too."""
    goes(tmp_path / "one", Synchronous(), "versions>=5", checkpoints=url)
    goes(tmp_path / "one", Asynchronous(), "versions>=9", checkpoints=url)
    shutil.rmtree(tmp_path / "one")
    goes(
        tmp_path / "two", Asynchronous(), "versions>=12", checkpoints=url, resume="latest", new_segment=False
    )
    switch: Any = {"checkpoints": url, "resume": "latest"}
    goes(tmp_path / "two", LocalSGD(steps=2), "epochs>=6", **switch)
    assert [one["first_version"] for one in segments(tmp_path / "two")] == [0, 5, 12]
    check_books(tmp_path / "two", 6)


# --- the state of the hub's optimizer ---------------------------------------------------------------

FIRST = SGD(0.1, momentum=0.9)


def loop(optimizers: list[torch.optim.Optimizer], model: torch.nn.Module, batches: list[list[Span]]) -> None:
    """Take six steps with each of the optimizers, in this order."""
    job = a_job()
    for number, spans in enumerate(batches):
        chosen = torch.from_numpy(
            oddlot.data.batches.order(0, spans[0].epoch, SAMPLES)[spans[0].start : spans[0].stop]
        )
        optimizer = optimizers[number // 6]
        optimizer.zero_grad()
        job.batch_loss(model, tuple(part[chosen] for part in job.train_data)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def a_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = a_job().model()
    return model


@pytest.mark.parametrize("on", [fleet(1), local(1)], ids=["simulated", "local"])
@pytest.mark.usefixtures("fork_server", "warm_start")
def test_momentum_is_kept_if_only_numbers_change(tmp_path: Path, on: Simulated | Local) -> None:
    """The run equals a PyTorch loop that changes the numbers of its optimizer after an epoch."""
    goes(tmp_path, Asynchronous(), "epochs>=1", engine=on)
    job = a_job(optimizer=SGD(0.05, momentum=0.4))
    run = goes(tmp_path, Asynchronous(damping=0), "epochs>=2", job, engine=on)
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    batches = in_batches(SAMPLES, BATCH, 2)
    loop([optimizer], model, batches[:6])
    optimizer.param_groups[0] |= {"lr": 0.05, "momentum": 0.4}
    loop([optimizer], model, batches[6:])
    assert distance(run.model, model) == 0
    assert segments(tmp_path)[-1]["optimizer_state_kept"]


def test_another_kind_of_optimizer_starts_with_a_new_state(tmp_path: Path) -> None:
    """Adam's bias correction counts its own steps only."""
    goes(tmp_path, Asynchronous(), "epochs>=1", engine=fleet(1))
    with warns("optimizer_state_reset", version=6, was="SGD of gradients", now="Adam of gradients"):
        run = goes(tmp_path, Asynchronous(), "epochs>=2", a_job(optimizer=Adam(0.01)), engine=fleet(1))
    model = a_model()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, 0.9), torch.optim.Adam(model.parameters(), 0.01)]
    loop(optimizers, model, in_batches(SAMPLES, BATCH, 2))
    assert distance(run.model, model) < 1e-6
    assert not segments(tmp_path)[-1]["optimizer_state_kept"]


def test_other_parameter_groups_start_with_a_new_state(tmp_path: Path) -> None:
    """The groups have the same sizes in both segments, so the saved momentum would fit."""

    def grouped(*first: str) -> Any:
        def make(model: torch.nn.Module) -> torch.optim.SGD:
            named = list(model.named_parameters())
            fast, slow = (
                [each for name, each in named if (name in first) == is_in] for is_in in (True, False)
            )
            groups: list[Any] = [{"params": fast, "lr": 0.2}, {"params": slow}]
            return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

        return make

    model = a_model()
    optimizers = [grouped("0.weight", "2.bias"), grouped("0.weight", "2.weight")]
    for epochs, optimizer in enumerate(optimizers, 1):
        job = a_job(optimizer=optimizer)
        run = goes(tmp_path, Asynchronous(), f"epochs>={epochs}", job, engine=fleet(1))
    loop([one(model) for one in optimizers], model, in_batches(SAMPLES, BATCH, 2))
    assert distance(run.model, model) == 0
    assert not segments(tmp_path)[-1]["optimizer_state_kept"]


@pytest.mark.parametrize(
    ("strategy", "optimizer", "kept", "is_warned"),
    [
        (Synchronous(), replace(FIRST, momentum=-0.3), True, False),
        (Synchronous(), replace(FIRST, momentum=0.0), False, False),
        (Synchronous(), AdamW(), False, True),
        (LocalSGD(server=FIRST), FIRST, False, True),
        (LocalSGD(), FIRST, False, True),
    ],
)
def test_state_is_kept_if_kind_and_layout_are_the_same(
    tmp_path: Path,
    strategy: Strategy,
    optimizer: Optimizer,
    kept: bool,
    is_warned: bool,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The momentum of gradients is not that of weight differences, and momentum 0 needs no state."""
    goes(tmp_path, Asynchronous(), "versions>=3", a_job(optimizer=FIRST))
    with pytest.warns(OddlotWarning) if is_warned else nullcontext():
        goes(tmp_path, strategy, "versions>=5", a_job(optimizer=optimizer))
    assert segments(tmp_path)[-1]["optimizer_state_kept"] is kept
    assert not recwarn.list


# --- rejected ---------------------------------------------------------------------------------------


def test_settings_of_the_run_cannot_change_in_a_segment(tmp_path: Path) -> None:
    goes(tmp_path, Synchronous(), "versions>=3")
    for options, key in (
        ({"seed": 3}, "seed"),
        ({"shards": 2}, "shards"),
        ({"job": a_job(count=64)}, "samples"),
        ({"job": a_job(sampler=torch.utils.data.SequentialSampler(range(SAMPLES)))}, "sampler"),
        ({"job": a_job(drop_last=True, batch_size=9)}, "drop_last"),
    ):
        with raises(CheckpointError, "other_job") as caught:
            goes(tmp_path, Asynchronous(), "versions>=5", **options)
        assert key in caught.value.fields["different"]
    assert len(segments(tmp_path)) == 1


def test_settings_of_a_job_are_compared_on_a_resume() -> None:
    """Evaluation and loading may change at any time."""
    free = {"eval_batch_size", "load_workers", "device"}
    assert {one.name for one in fields(JobSettings)} - free <= {*SEGMENT_SETTINGS, *RUN_OPTIONS}


def test_new_segment_needs_a_run_to_resume(tmp_path: Path) -> None:
    with raises(UsageError, "missing_setting", name="resume"):
        goes(tmp_path / "a", Synchronous(), "epochs>=1", resume=None)
    with raises(CheckpointError, "no_run"):
        goes(tmp_path / "a", Synchronous(), "epochs>=1", resume="latest")
    with raises(UsageError, "invalid_value", name="new_segment"):
        goes(tmp_path / "a", Synchronous(), "epochs>=1", new_segment=1)
    assert not (tmp_path / "a").exists()


def test_mesh_has_one_segment(tmp_path: Path) -> None:
    mesh, hub = tmp_path / "mesh", tmp_path / "hub"
    goes(mesh, Gossip(), "epochs>=1", new_segment=False)
    goes(hub, Synchronous(), "epochs>=1")
    for folder, strategy in ((mesh, Gossip(period=7)), (mesh, Synchronous()), (hub, Gossip())):
        with raises(UsageError, "segment_without_hub"):
            goes(folder, strategy, "epochs>=2")


def test_shortened_list_of_segments_is_damage(tmp_path: Path) -> None:
    goes(tmp_path, Synchronous(), "versions>=3")
    goes(tmp_path, Asynchronous(), "versions>=5")
    settings = json.loads((tmp_path / "run.json").read_text())
    invalid: list[Any] = [settings["segments"][:1], [], 3, [{}]]
    for listed in invalid:
        (tmp_path / "run.json").write_text(json.dumps(settings | {"segments": listed}))
        with raises(CheckpointError, "damaged_file", path=str(tmp_path / "run.json")):
            goes(tmp_path, Asynchronous(), "versions>=7")
