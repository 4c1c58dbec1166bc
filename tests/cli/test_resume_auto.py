"""`--resume auto`: the choice of the folder, and the settings of the resumed run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from oddlot.core.events import Resumed
from oddlot.core.support.errors import JobError
from oddlot.history.log import read_log
from tests.command import Oddlot

ON_FLEET = ("--machines", "fleet.toml")
AUTO = ("simulate", "my_jobs:small", *ON_FLEET, "--resume", "auto")
RUN = "runs/small-simulated-"


def nothing(_: Oddlot, *__: str) -> None:
    pass


def ran(oddlot: Oddlot, *flags: str) -> None:
    oddlot.json(*AUTO, *flags, "--epochs", "1")


def ended_early(oddlot: Oddlot, *flags: str) -> None:
    """Start a run that fails before its first checkpoint."""
    with patch("oddlot.run.saving.BackgroundWriter.save", side_effect=JobError("ended early")):
        assert oddlot(*AUTO, *flags).code == 3


def ran_in_another_folder(oddlot: Oddlot, *flags: str) -> None:
    oddlot.json(*AUTO, *flags, "--epochs", "1", "--out", "mine")


def ran_with_another_location(oddlot: Oddlot, *_: str) -> None:
    ran(oddlot, "--checkpoints", "other")


def ran_another_workload(oddlot: Oddlot, *_: str) -> None:
    Path("others.py").write_text("from my_jobs import small")
    oddlot.json("simulate", "others:small", *ON_FLEET)


def made_a_folder(*_: object) -> None:
    Path(f"{RUN}3").mkdir(parents=True)


@dataclass(frozen=True)
class Scene:
    before: Callable[..., None]
    """Earlier commands."""
    folder: str
    """Expected run folder."""
    resumes: bool
    flags: tuple[str, ...] = ()
    lost: bool = False
    """Whether all run folders were removed before."""


PLACE = ("--checkpoints", "saved")
SCENES = [
    Scene(nothing, f"{RUN}1", resumes=False),
    Scene(ran, f"{RUN}1", resumes=True),
    Scene(ended_early, f"{RUN}1", resumes=False),
    Scene(ran_in_another_folder, f"{RUN}1", resumes=False),
    Scene(ran_in_another_folder, "mine", resumes=True, flags=("--out", "mine")),
    Scene(ran_with_another_location, f"{RUN}1", resumes=True),
    Scene(ran_another_workload, f"{RUN}2", resumes=False),
    Scene(made_a_folder, f"{RUN}4", resumes=False),
    Scene(nothing, f"{RUN}1", resumes=False, flags=PLACE),
    Scene(ran, f"{RUN}1", resumes=True, flags=PLACE),
    Scene(ran, f"{RUN}1", resumes=True, flags=PLACE, lost=True),
    Scene(ended_early, f"{RUN}1", resumes=False, flags=PLACE),
    Scene(ended_early, f"{RUN}1", resumes=False, flags=PLACE, lost=True),
    Scene(ran_with_another_location, f"{RUN}2", resumes=False, flags=PLACE),
]


@pytest.mark.parametrize(
    "scene",
    SCENES,
    ids=lambda scene: " ".join([scene.before.__name__, *scene.flags, *["lost"] * scene.lost]),
)
def test_resume_auto_chooses_the_run_folder(oddlot: Oddlot, scene: Scene) -> None:
    scene.before(oddlot, *scene.flags)
    if scene.lost:
        shutil.rmtree("runs")
    command = (*AUTO, *scene.flags, "--epochs", "2")
    run = oddlot.json(*command)
    assert (run["run_dir"], run["epochs"]) == (scene.folder, 2)
    records = read_log(Path(scene.folder) / "records.jsonl")
    assert scene.resumes == any(isinstance(record.event, Resumed) for record in records)
    again = oddlot(*command)
    assert again.code == 0
    assert f"  written  {scene.folder}: " in again.out
    assert "Nothing was trained: the run had already reached epochs>=2" in again.out


def test_resume_auto_keeps_the_settings_of_the_first_start(oddlot: Oddlot) -> None:
    begin = (*AUTO, "--strategy", "fastest_k", "--set", "strategy.k=1", "--seed", "4", "--epochs", "1")
    for _ in range(2):
        assert oddlot.json(*begin)["ended"] == "epochs>=1"
    settings = json.loads(Path(f"{RUN}1/run.json").read_text())
    assert (settings["seed"], settings["strategy"]) == (4, "FastestK(k=1, samples=None)")
    assert oddlot.json(*AUTO, "--epochs", "2")["run_dir"] == f"{RUN}1", "what is not said again stays"
    oddlot.rejects("other_job", *AUTO, "--seed", "5", different={"seed": (4, 5)})


def test_job_file_sets_the_run_folder_and_the_checkpoint_location(oddlot: Oddlot) -> None:
    text = 'workload = "my_jobs:small"\n[run]\nout = "mine"\ncheckpoints = "saved"\nuntil = "epochs>={}"\n'
    Path("job.toml").write_text(text.format(1))
    command = ("simulate", "job.toml", *ON_FLEET, "--resume", "auto", "--set", "job.batch_size=8")
    oddlot.json(*command)
    shutil.rmtree("mine")
    Path("job.toml").write_text(text.format(2))
    again = oddlot.json(*command)
    assert (again["run_dir"], again["samples_merged"]) == ("mine", 2 * 16)


def test_other_run_at_the_checkpoint_location_creates_no_folder(oddlot: Oddlot) -> None:
    Path("others.py").write_text("from my_jobs import small")
    oddlot.json("simulate", "others:small", *ON_FLEET, *PLACE, "--out", "mine")
    for _ in range(2):
        oddlot.rejects("other_workload", *AUTO, *PLACE, workload="others:small")
    for _ in range(2):
        oddlot.rejects(
            "other_command", "train", "others:small", "--resume", "auto", *PLACE, command="simulate"
        )
    assert not list(Path("runs").iterdir())


def test_failed_start_removes_its_new_folder(oddlot: Oddlot) -> None:
    for url in ("foo://bucket", "memory://bucket"):
        assert oddlot(*AUTO, "--checkpoints", url).code == 2
    Path("saved").mkdir()
    Path("saved/notes.txt").write_text("mine")
    oddlot.rejects("not_a_run", *AUTO, *PLACE)
    assert not list(Path("runs").iterdir())
