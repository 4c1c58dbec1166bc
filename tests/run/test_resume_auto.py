"""With `resume="auto"`, one command starts a run and resumes it until it is complete."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from oddlot import CheckpointError, Run, UsageError
from oddlot.checkpoint.format import saved
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Resumed
from oddlot.history.folder_owner import claim
from oddlot.history.log import read_log
from oddlot.history.run_folder import RunFolder
from tests.fits import SAMPLES, a_job, everything
from tests.processes import program
from tests.run.test_resume import KillAt, Killed, begun, content, merged, saved_at_once
from tests.transcripts import mask, raises

KILL_SECONDS = 0.7
"""Time of the kill, during the second of two epochs."""


@dataclass(frozen=True)
class Place:
    """A run folder and the separate location of its checkpoints, if there is one."""

    folder: Path
    url: str | None

    @property
    def storage(self) -> Storage:
        return Storage(self.url or self.folder / "checkpoints")

    def goes(self, **options: Any) -> Run:
        """Run the command. It is the same each time."""
        with saved_at_once():
            return begun(self.folder, checkpoints=self.url, resume="auto", **options)

    def is_killed(self, **options: Any) -> None:
        with pytest.raises(Killed):
            self.goes(callbacks=[KillAt(KILL_SECONDS)], **options)

    def is_killed_before(self, what: str, **options: Any) -> None:
        with patch(what, side_effect=Killed), pytest.raises(Killed):
            begun(self.folder, checkpoints=self.url, resume="auto", **options)

    def loses_folder(self) -> None:
        shutil.rmtree(self.folder)

    def has(self, name: str, text: str = "mine") -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def files(self) -> dict[str, bytes]:
        """Return the content of each file of the run and its checkpoints, by path."""
        there = {}
        for name in self.storage.names():
            for path in [f"{name}/{file}" for file in self.storage.names(name)] or [name]:
                there[self.storage.path(path)] = self.storage.read(path)
        return content(self.folder) | there


URLS = None, "memory://bucket/run", "folder"


@pytest.fixture(params=URLS, ids=str)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    MemoryFileSystem.store.clear()
    url = str(tmp_path / "elsewhere") if request.param == "folder" else request.param
    yield Place(tmp_path / "run", url)
    MemoryFileSystem.store.clear()


# --- states before the command ---------------------------------------------------------------------


def nothing(_: Place) -> None:
    pass


def empty_folder(place: Place) -> None:
    place.folder.mkdir()


def empty_location(place: Place) -> None:
    if place.url and (folder := place.storage.local("")):
        folder.mkdir()


def lock(place: Place) -> None:
    place.has("lock")


def killed_while_run_json_is_written(place: Place) -> None:
    place.has(".run.json.77", "{")
    place.has("workers/w1.log")
    if place.url and place.storage.is_local:
        (Path(place.url)).mkdir()
        (Path(place.url) / "run.json.partial").write_text("{")


def killed_before_log(place: Place) -> None:
    place.is_killed_before("oddlot.run.saving.Log")


def killed_before_checkpoint(place: Place) -> None:
    place.is_killed_before("oddlot.run.saving.BackgroundWriter.save")


def killed_in_checkpoint(place: Place) -> None:
    killed_before_checkpoint(place)
    place.storage.write("00000000-0-abcdef/conductor.json", [b"{}"])
    if place.url:
        place.storage.write("log/0-0-abcdef.jsonl", [b"{}"])
        place.storage.write("log/0-1-abcdef.jsonl.partial", [b"{}"])


def killed_as_it_starts_again(place: Place) -> None:
    """Kill the run after leftovers are removed and before anything is written."""
    killed_in_checkpoint(place)
    place.is_killed_before("oddlot.history.run_folder.RunFolder.begin")


def killed(place: Place) -> None:
    place.is_killed()


def killed_twice(place: Place) -> None:
    place.is_killed()
    place.is_killed()


def killed_in_fetch(place: Place) -> None:
    place.is_killed()
    log = (place.folder / "records.jsonl").read_text()
    place.loses_folder()
    place.has("records.jsonl", log)
    place.has(".run.json.77", "{")


def lost(before: Callable[[Place], None]) -> Callable[[Place], None]:
    """Return `before`, followed by the loss of the folder."""

    def prepare(place: Place) -> None:
        before(place)
        place.loses_folder()

    prepare.__name__ = f"{before.__name__}, folder lost"
    return prepare


STARTS = (
    *(nothing, empty_folder, empty_location, lock, killed_while_run_json_is_written),
    *(killed_before_log, killed_before_checkpoint, killed_in_checkpoint, killed_as_it_starts_again),
)
STARTS_ELSEWHERE = tuple(lost(prepare) for prepare in STARTS[-4:])
CONTINUES = killed, killed_twice
CONTINUES_ELSEWHERE = lost(killed), lost(killed_twice), killed_in_fetch


def everywhere(
    anywhere: Iterable[Callable[[Place], None]], elsewhere: Iterable[Callable[[Place], None]]
) -> list[Any]:
    """Return all possible pairs of state and location of checkpoints, as parameters."""
    pairs = *((each, URLS) for each in anywhere), *((each, URLS[1:]) for each in elsewhere)
    return [
        pytest.param(url, prepare, id=f"{prepare.__name__}-{url}") for prepare, urls in pairs for url in urls
    ]


@pytest.mark.parametrize(
    ("place", "prepare"),
    everywhere(STARTS + CONTINUES, STARTS_ELSEWHERE + CONTINUES_ELSEWHERE),
    indirect=["place"],
)
def test_resume_auto_reaches_the_same_end(place: Place, prepare: Callable[[Place], None]) -> None:
    resumes = prepare in CONTINUES + CONTINUES_ELSEWHERE
    prepare(place)
    run = place.goes()
    assert merged(place.folder) == everything(SAMPLES, 2)
    assert resumes == any(
        isinstance(record.event, Resumed) for record in read_log(place.folder / "records.jsonl")
    )
    again = place.goes()
    assert (again.ended, again.summary["versions"]) == (run.ended, run.summary["versions"])
    assert merged(place.folder) == everything(SAMPLES, 2), "it had come to its end"


# --- folders and checkpoints of other runs ---------------------------------------------------------


def another_run(place: Place) -> None:
    begun(place.folder, job=a_job(batch_size=4), checkpoints=place.url)


def another_run_before_its_first_checkpoint(place: Place) -> None:
    place.is_killed_before("oddlot.run.saving.BackgroundWriter.save", job=a_job(batch_size=4))


def files(place: Place) -> None:
    place.has("notes.txt")


def files_in_worker_logs(place: Place) -> None:
    place.has("workers/notes.txt")


def files_beside_a_run_elsewhere(place: Place) -> None:
    lost(killed)(place)
    place.has("notes.txt")


def log_beside_a_run_elsewhere(place: Place) -> None:
    lost(killed)(place)
    place.has("records.jsonl")


def files_elsewhere(place: Place) -> None:
    place.storage.write("notes.txt", [b"mine"])


def damaged_checkpoints(place: Place) -> None:
    place.is_killed()
    for name in saved(place.storage):
        place.storage.write(f"{name}/conductor.json", [b"{}"])


REFUSED: dict[Callable[[Place], None], tuple[type[Exception], str]] = {
    another_run: (CheckpointError, "other_job"),
    another_run_before_its_first_checkpoint: (CheckpointError, "other_job"),
    files: (UsageError, "not_a_run"),
    files_in_worker_logs: (UsageError, "not_a_run"),
    damaged_checkpoints: (CheckpointError, "no_complete_checkpoint"),
}
REFUSED_ELSEWHERE: dict[Callable[[Place], None], tuple[type[Exception], str]] = {
    lost(another_run): (CheckpointError, "other_job"),
    lost(another_run_before_its_first_checkpoint): (CheckpointError, "other_job"),
    files_beside_a_run_elsewhere: (UsageError, "not_a_run"),
    log_beside_a_run_elsewhere: (UsageError, "not_a_run"),
    files_elsewhere: (UsageError, "not_a_run"),
    lost(damaged_checkpoints): (CheckpointError, "no_complete_checkpoint"),
}


@pytest.mark.parametrize(("place", "prepare"), everywhere(REFUSED, REFUSED_ELSEWHERE), indirect=["place"])
def test_resume_auto_rejects_unusable_folders_and_changes_nothing(
    place: Place, prepare: Callable[[Place], None]
) -> None:
    mask(bytes=r"(?<=of )\d+(?= bytes)")
    prepare(place)
    before = place.files()
    kind, code = (REFUSED | REFUSED_ELSEWHERE)[prepare]
    with raises(kind, code):
        place.goes()
    assert before.items() <= place.files().items(), "what was fetched is new"


def test_resume_auto_rejects_a_run_in_use(place: Place) -> None:
    for prepare in (nothing, killed_before_checkpoint, killed):
        prepare(place)
        held = RunFolder(place.folder, place.url)
        with claim(held, held.is_begun, force=False), raises(UsageError, "folder_in_use"):
            place.goes()
    place.goes()
    assert merged(place.folder) == everything(SAMPLES, 2)


# --- kills at any time -----------------------------------------------------------------------------

KILLS = """
import os, shutil, sys, torch
from pathlib import Path
from unittest.mock import patch

import oddlot
from tests.fits import SAMPLES, a_job, everything, fleet
from tests.run.test_resume import merged

OPERATIONS = {"open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate"}
torch.set_num_threads(1)
top, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def goes(place):
    return oddlot.fit(
        a_job(), oddlot.Asynchronous(), fleet(1), until="epochs>=1", out=place / "run", checkpoints=place / "saved",
        resume="auto", checkpoint_every="2 versions",
    )


def kill_at(place, last):
    done = []

    def count(event, arguments):
        is_read = event == "open" and not (arguments[2] or 0) & (os.O_CREAT | os.O_TRUNC)
        if event in OPERATIONS and not is_read and str(place) in str(arguments[0]):
            done.append(event)
            if len(done) == last:
                os._exit(9)

    sys.addaudithook(count)


def killed(place, last):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    try:
        kill_at(place, last)
        goes(place)
        os._exit(0)
    finally:
        os._exit(1)


last = first
while True:
    place = top / str(last)
    was_killed = killed(place, last)
    if was_killed:
        killed(place, 5), killed(place, 20)
        if last % 2:
            shutil.rmtree(place / "run", ignore_errors=True)
    goes(place)
    assert merged(place / "run") == everything(SAMPLES, 1)
    if not was_killed:
        break
    last += step
print("kills:", last)
"""


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
def test_run_killed_at_any_file_change_reaches_its_end(tmp_path: Path, step: int) -> None:
    """A run that is killed at any file change reaches its end. Every second kill also removes its folder."""
    with program("-W", "ignore", "-c", KILLS, tmp_path, str(1), str(step)) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert int(out.removeprefix("kills:")) > 50
