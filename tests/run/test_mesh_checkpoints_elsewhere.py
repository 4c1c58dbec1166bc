"""Checkpoints of a mesh in a separate location.

Another machine resumes from them with the logs of all peers.
"""

import shutil
from pathlib import Path

import pytest

from oddlot import Gossip, Local
from oddlot.checkpoint.background_writer import SharedWriter
from oddlot.checkpoint.format import logs_of, newest, saved
from oddlot.checkpoint.storage import Storage
from oddlot.core.support.errors import CheckpointError, JobError
from oddlot.history.run_folder import PEERS, RunFolder
from tests.checkpoint.test_format import snapshot
from tests.run.test_mesh import gossiped
from tests.run.test_mesh_resume import check, trained
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("warm_start")


def lines(folder: Path) -> dict[str, list[str]]:
    """Return the lines of each peer's log."""
    return {node: path.read_text().splitlines() for node, path in RunFolder(folder).logs().items()}


def test_resume_on_another_machine_has_the_logs_of_all_peers(tmp_path: Path, url: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    trained(one, checkpoints=url)
    assert not (one / "checkpoints").exists()
    run = trained(two, "epochs>=5", checkpoints=url, resume="latest")
    check(two, 5)
    assert run.summary["samples_wasted"] == 0
    before, after = lines(one), lines(two)
    assert before.keys() == after.keys()
    for node, log in before.items():
        kept = next(at for at, line in enumerate(after[node]) if '"Resumed"' in line)
        assert after[node][:kept] == log[:kept], "all but what was logged after the last checkpoint"
    trained(two, "epochs>=6", resume="latest")  # run.json has the location of the checkpoints
    check(two, 6)


def test_log_parts_without_a_checkpoint_are_removed(tmp_path: Path, url: str) -> None:
    trained(tmp_path, "epochs>=6", checkpoints=url, keep_checkpoints=2)
    storage = Storage(url)
    assert len(saved(storage)) == 2
    trained(tmp_path, "epochs>=8", checkpoints=url, keep_checkpoints=1, resume="latest")
    (last,) = saved(storage)
    lives = {name.split("-")[-1].removesuffix(".jsonl") for name in storage.names("log")}
    assert lives == {last.split("-")[-1]}


def test_local_peers_resume_on_another_machine(tmp_path: Path) -> None:
    one, two, place = tmp_path / "one", tmp_path / "two", tmp_path / "place"
    on = Local(workers=3, threads=1)
    gossiped(Gossip(), on, out=one, checkpoints=place)
    shutil.rmtree(one)
    gossiped(Gossip(), on, until="epochs>=5", out=two, checkpoints=place, resume="latest")
    check(two, 5)


def test_interrupted_fetch_is_repeated(tmp_path: Path, url: str) -> None:
    trained(tmp_path / "one", checkpoints=url)
    two = tmp_path / "two"
    shutil.copytree(tmp_path / "one" / PEERS, two / PEERS)
    trained(two, "epochs>=4", checkpoints=url, resume="auto")
    check(two, 4)


def test_different_log_of_a_peer_is_rejected(tmp_path: Path, url: str) -> None:
    trained(tmp_path, checkpoints=url)
    log = RunFolder(tmp_path).log_of("m1")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:5]))
    with raises(CheckpointError, "resumed_on_other_machine"):
        trained(tmp_path, "epochs>=4", resume="latest")


def test_missing_peer_log_raises_log_too_short(tmp_path: Path, url: str) -> None:
    trained(tmp_path, checkpoints=url)
    RunFolder(tmp_path).log_of("m1").unlink()
    with raises(CheckpointError, "log_too_short", sound=0):
        trained(tmp_path, "epochs>=4", resume="latest")


def test_writer_detects_a_resume_on_another_machine(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    first, second = (SharedWriter(storage, dict, 3, launch=launch) for launch in ("aaaa", "bbbb"))
    first.save(snapshot())
    first.wait()
    assert not first.problems()
    resumed = SharedWriter(storage, dict, 3, launch="bbbb", there=saved(storage))
    resumed.save(snapshot())
    resumed.wait()
    assert not resumed.problems()
    second.save(snapshot())
    second.wait()
    with raises(JobError, "resumed_on_other_machine"):
        second.problems()
    assert len(saved(storage)) == 2


@pytest.mark.parametrize(("written", "copied"), [(b"one\ntwo\nth", 8), (b"on", 0), (b"", 0)])
def test_incomplete_log_line_is_not_copied(tmp_path: Path, written: bytes, copied: int) -> None:
    log, storage = tmp_path / "w1.jsonl", Storage(tmp_path / "place")
    log.write_bytes(written)
    saver = SharedWriter(storage, lambda: {"w1": log}, 3, copy_logs=True)
    saver.save(snapshot())
    saver.wait()
    assert sum(len(storage.read(f"log/{name}")) for name in storage.names("log")) == copied


def test_alternating_writers_keep_each_others_log_parts(tmp_path: Path) -> None:
    log, storage = tmp_path / "w1.jsonl", Storage(tmp_path / "place")
    log.write_bytes(b"")
    first, second = (
        SharedWriter(storage, lambda: {"w1": log}, 3, copy_logs=True, launch="aaaa") for _ in range(2)
    )
    for version, saver in enumerate([*[first] * 3, second, *[first] * 4, *[second] * 3]):
        with log.open("ab") as file:
            file.write(b"a line\n")
        saver.save(snapshot(version))
        saver.wait()
        assert not saver.problems()
    found = newest(storage, with_log=True)
    assert (found.version, found.warnings) == (10, ())
    assert logs_of(found) == {"w1": log.read_bytes()}


def test_unfinished_checkpoint_of_another_process_is_kept(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    saver = SharedWriter(storage, dict, 1, launch="aaaa")
    storage.write("00000001-1-aaaa00/conductor.json", [b"{}"])
    for version in range(3):
        saver.save(snapshot(version))
        saver.wait()
    assert "00000001-1-aaaa00" in saved(storage)
    assert len(saved(storage)) == 2
