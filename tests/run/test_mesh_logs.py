"""Logs of peers that change while a mesh runs, or are swapped or damaged before it is read or resumed."""

from pathlib import Path

from oddlot import AdaptiveGossip, Gossip, JobError
from oddlot.core.records import Record
from oddlot.history.peer_logs import PeerLogs
from oddlot.history.run_folder import RunFolder
from tests.run.test_damage import CHANGES
from tests.run.test_mesh import gossiped, peers
from tests.transcripts import mask, raises


def test_log_of_a_peer_that_changes_during_the_run_ends_it(tmp_path: Path) -> None:
    """It is checked whenever weights of the peer leave, and so before the model is saved."""
    log = RunFolder(tmp_path).peer_log("m1")
    seen: list[Record] = []

    def spoil(record: Record) -> None:
        seen.append(record)
        if len(seen) == 40:
            CHANGES["replaced"](log)

    mask(bytes=r"\d[\d,]*(?= bytes)|(?<=the file has )\d[\d,]*")
    with raises(JobError, "log_changed", path=str(log)):
        gossiped(AdaptiveGossip(threshold=1e9), peers(2), out=tmp_path, observers=[spoil])
    assert not RunFolder(tmp_path).model.exists()


def test_launcher_notices_a_log_that_it_cannot_follow(tmp_path: Path) -> None:
    """It may read the log before the peer checks it."""
    run = RunFolder(tmp_path)
    gossiped(Gossip(), peers(2), until="versions>=2", out=tmp_path)
    logs = PeerLogs(run)
    read = len([record for record in logs.read_own() if record.peer == "m1"])
    with run.peer_log("m1").open("ab") as file:
        file.write(b"{}\n")
    with raises(JobError, "log_changed", path=str(run.peer_log("m1")), line=read + 2):
        logs.read_own()
