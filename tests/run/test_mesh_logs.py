"""Logs of peers that change during a run, or that are swapped or damaged after it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oddlot import AdaptiveGossip, CheckpointError, Gossip, JobError, replay
from oddlot.core.records import Record
from oddlot.core.support.errors import OddlotWarning
from oddlot.faults import Chaos, Fault
from oddlot.history.included_samples import IncludedSamples
from oddlot.history.peer_audit import prove_run
from oddlot.history.peer_logs import PeerLogs
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.history.run_outcome import COUNTED
from oddlot.report.run_report import RunReport
from tests.run.test_damage import CHANGES
from tests.run.test_mesh import PEERS, SAMPLES, STEP_SECONDS, gossiped, peers
from tests.run.test_mesh_resume import resumed, trained
from tests.transcripts import mask, raises, warns


def test_peer_log_changed_during_the_run_ends_it(tmp_path: Path) -> None:
    """A peer checks its log before weights leave it, and therefore before the model is saved."""
    log = RunFolder(tmp_path).log_of("m1")
    seen: list[Record] = []

    def spoil(record: Record) -> None:
        seen.append(record)
        if len(seen) == 40:
            CHANGES["replaced"](log)

    mask(bytes=r"\d[\d,]*(?= bytes)|(?<=the file has )\d[\d,]*")
    with raises(JobError, "log_changed", path=str(log)):
        gossiped(AdaptiveGossip(threshold=1e9), peers(2), out=tmp_path, callbacks=[spoil])
    assert not RunFolder(tmp_path).model.exists()


def test_launcher_detects_a_changed_peer_log(tmp_path: Path) -> None:
    """The launcher may read the log before the peer checks it."""
    run = RunFolder(tmp_path)
    gossiped(Gossip(), peers(2), until="versions>=2", out=tmp_path)
    logs = PeerLogs(run)
    read = len([record for record in logs.read_own() if record.peer == "m1"])
    with run.log_of("m1").open("ab") as file:
        file.write(b"{}\n")
    with raises(JobError, "log_changed", path=str(run.log_of("m1")), line=read + 2):
        logs.read_own()


def test_swapped_logs_are_detected(tmp_path: Path) -> None:
    gossiped(Gossip(), peers(2), until="versions>=8", out=tmp_path)
    first, second = (RunFolder(tmp_path).log_of(node) for node in ("m0", "m1"))
    first.rename(tmp_path / "third")
    second.rename(first)
    (tmp_path / "third").rename(second)
    with raises(CheckpointError, "log_of_another_peer", path=str(first), peer="m1"):
        gossiped(Gossip(), peers(2), until="versions>=12", out=tmp_path, resume="latest")
    for read in (RunReport.read, replay):
        with raises(CheckpointError, "log_of_another_peer", path=str(first), peer="m1"):
            read(tmp_path)


def test_summary_that_differs_from_the_logs_is_rejected(tmp_path: Path) -> None:
    """Peers log a few more records after the summary is written."""
    run = gossiped(Gossip(), peers(2), until="versions>=8", out=tmp_path)
    summary, log = tmp_path / SUMMARY, RunFolder(tmp_path).log_of("m1")
    given = json.loads(summary.read_text())
    for figure in COUNTED:
        wrong = {"figure": figure, "given": given[figure] + 1, "counted": run.summary[figure]}
        summary.write_text(json.dumps(given | {figure: given[figure] + 1}))
        with raises(CheckpointError, "summary_differs", **wrong):
            RunReport.read(tmp_path)
    summary.write_text(json.dumps(given))
    lines = log.read_bytes().splitlines(keepends=True)
    assert given["peer_records"]["m1"] < len(lines) - 1
    log.write_bytes(b"".join(lines[: given["peer_records"]["m1"]]))  # one record fewer
    for read in (RunReport.read, replay):
        with raises(CheckpointError, "incomplete_log", path=str(log)):
            read(tmp_path)


def cut_short(log: Path) -> None:
    """Damage the tenth line of a log."""
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:9], b"x" + lines[9], *lines[10:]]))


def headless(log: Path) -> None:
    """Damage the first line of a log."""
    log.write_bytes(b"x" + log.read_bytes())


@pytest.mark.parametrize("damage", [cut_short, headless])
def test_damaged_peer_log_loses_only_its_own_samples(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    """New peers process the remaining samples.

    The samples of damaged records are not processed again and count as left out.
    """
    trained(tmp_path)
    run = RunFolder(tmp_path)
    before, log = IncludedSamples.read(run), run.log_of("m2")
    damage(log)
    settings: dict[str, Any] = {
        "on": peers(seconds_to_return=0.1),
        "chaos": Chaos((Fault("kill", machine="m2", at_seconds=(0.3,)),)),
    }
    with pytest.warns(OddlotWarning), warns("peer_log_too_short", node="m2", path=str(log)) as caught:
        ended = resumed(tmp_path, "epochs>=20", **settings)
    assert set(ended.summary["peers_averaged"]) == {"m0", "m1", "m2.3", "m3"}
    wasted = ended.summary["wasted"].get("resumed", 0)
    intact, included = ({"m2": caught.fields[name]} for name in ("sound", "records"))
    lost = sum(
        stop - start for _, start, stop, _ in set(before.pieces(included)) - set(before.pieces(intact))
    )
    assert ended.summary["samples_left_out"] == prove_run(run, SAMPLES).left_out == lost > wasted == 0
    assert {fault.code for fault in RunReport.read(tmp_path).proof.faults} == {"not_merged"}
    assert replay(tmp_path).difference is None


def test_sent_model_records_do_not_accumulate(tmp_path: Path) -> None:
    run = gossiped(Gossip(), out=tmp_path)
    assert run.summary["exchanges"] > 5 * PEERS
    assert len(IncludedSamples.read(RunFolder(tmp_path)).sent) <= PEERS, "those on their way at the end"


def test_mesh_clock_stops_at_the_summary_time(tmp_path: Path) -> None:
    """Peers log records after the summary is written, with later times."""
    gossiped(Gossip(), out=tmp_path)
    summary = tmp_path / SUMMARY
    given = json.loads(summary.read_text())
    summary.write_text(json.dumps(given | {"seconds": given["seconds"] - 2 * STEP_SECONDS}))
    figures = RunReport.read(tmp_path)
    assert figures.summary["seconds"] == given["seconds"] - 2 * STEP_SECONDS
    assert figures.summary["availability"] == 1.0
