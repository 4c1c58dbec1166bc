"""Deaths of peers: suspected samples, and timeouts of a peer's work."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oddlot import Gossip
from oddlot.core.commands import Evict, Skip, Start
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived, GoalReached, Joined, Ticked
from oddlot.core.peers import Peers
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.shard_queue import ShardCursor
from oddlot.core.support.errors import BadSamples, JobError
from oddlot.core.tasks import Facts, Task
from oddlot.engines.local.fork_client import packet_pair
from oddlot.engines.local.processes import START_SECONDS
from oddlot.engines.mesh.compute import EVALUATION, TASK, HangLimits
from oddlot.engines.mesh.launcher import Launcher, PeerHandle
from tests.engines.mesh.stand_in import setup, stand_in

DEADLY = Span(0, 4, 8)


def starts(node: str, span: Span = DEADLY) -> Record:
    """Return the record of a peer that starts a task."""
    return Record(1.0, Joined(node), (Start(Task(f"{node}:1", node, (span,), 0)),), peer=node)


def dies(launcher: Launcher, node: str, code: int, **more: Any) -> None:
    """Let the launcher handle the end of a peer with an exit code."""
    nothing: Any = None
    peer = PeerHandle(
        node=node, index=0, since=0.0, number=1, socket=nothing, joins=False, heard_at=0.0, **more
    )
    peer.exit_code = code
    launcher._died(peer)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher without peers."""
    ours, theirs = packet_pair()
    fork_server: Any = SimpleNamespace(socket=ours)
    with ours, theirs:
        launcher = Launcher(setup(tmp_path, stand_in), fork_server, ["w1", "w2"])
        yield launcher
        launcher.close()


def test_samples_that_kill_three_peers_are_named(launcher: Launcher) -> None:
    """Crashes and exits by the job's code count, with any exit code. Kills from outside do not count."""
    launcher.heard(starts("w1"))
    dies(launcher, "w1", -signal.SIGSEGV)
    launcher.heard(starts("w1.2"))
    dies(launcher, "w1.2", -signal.SIGKILL)
    launcher.heard(starts("w1.3"))
    dies(launcher, "w1.3", 1)
    assert launcher.work.strikes == dict.fromkeys(("0:4", "0:5", "0:6", "0:7"), 2)
    launcher.heard(starts("w1.4"))
    with pytest.raises(BadSamples) as caught:
        dies(launcher, "w1.4", -signal.SIGBUS)
    assert caught.value.spans == (DEADLY,)


def test_finished_and_skipped_samples_are_not_suspected(launcher: Launcher) -> None:
    work = launcher.work
    for node in ("w1", "w2"):
        launcher.heard(starts(node, Span(0, int(node[1]), int(node[1]) + 1)))
        launcher.heard(Record(2.0, Ticked(), (Evict(node),), peer=node))
    assert work.strikes == {"0:1": 1, "0:2": 1}
    launcher.heard(starts("w1.2", Span(0, 1, 2)))
    launcher.heard(Record(3.0, Arrived(Facts("w1.2:1", "w1.2", 0, 1, "gradient")), peer="w1.2"))
    launcher.heard(Record(3.0, Joined("w2.2"), (Skip((Span(0, 2, 3),)),), peer="w2.2"))
    assert (work.strikes, work.blame()) == ({}, None)


def test_samples_of_the_last_lost_peer_are_named(launcher: Launcher) -> None:
    launcher.heard(starts("w1"))
    dies(launcher, "w1", 3)
    error = launcher.work.blame()
    assert error is not None
    assert error.spans == (DEADLY,)


def test_replacement_skips_samples_that_killed_three_peers() -> None:
    """The samples are skipped as soon as the replacement's worker joins, also in later epochs."""
    ledger = SampleLedger(20, 3, skip_bad=True, cursors=[ShardCursor(4, 12, 0, 8)], merged=[4])
    ledger.strikes = {"1:5": 3, "1:6": 3, "1:2": 3, "1:7": 2}
    conductor = Conductor(Gossip(), ledger, 4, peers=Peers("w1.4", ["w1", "w2"]))
    record = conductor.handle(Joined("w1.4"), 0.0)
    (skip,) = (one for one in record.actions if isinstance(one, Skip))
    assert skip.spans == (Span(1, 5, 7),)
    (start,) = (one for one in record.actions if isinstance(one, Start))
    leased = [start.task.spans, *(ledger.lease(str(i), 4, "w1.4") for i in range(3))]
    assert [span for spans in leased for span in spans if span.epoch < 2] == [
        Span(0, 8, 12),
        Span(1, 4, 5),
        Span(1, 7, 10),
        Span(1, 10, 12),
    ]


def test_peers_that_keep_dying_end_the_run_unless_others_train(launcher: Launcher) -> None:
    update = Record(2.0, Arrived(Facts("w2:1", "w2", 0, 1, "gradient")), peer="w2")
    for number in (1, 2):
        dies(launcher, f"w1.{number}", 1)
    launcher.heard(update)
    for number in (3, 4):
        dies(launcher, f"w1.{number}", 1)
    with pytest.raises(JobError) as caught:
        dies(launcher, "w1.5", 1)
    assert caught.value.code == "workers_keep_dying"


def test_newcomers_may_die_after_others_have_finished(launcher: Launcher) -> None:
    launcher.heard(Record(2.0, GoalReached("epochs>=2"), peer="w2"))
    for number in range(4):
        dies(launcher, f"w1.{number}", 1)
    assert len(launcher.policy.timers) == 4


def test_three_hung_evaluations_end_the_run(launcher: Launcher) -> None:
    """The samples of the task that waits for the evaluation are not suspected."""
    signs: dict[str, Any] = {"evaluating": True, "hung": "evaluation"}
    for number in (1, 2):
        launcher.heard(starts(f"w{number}"))
        with pytest.warns(match="evaluation"):
            dies(launcher, f"w{number}", -signal.SIGKILL, **signs)
    with pytest.warns(match="evaluation"), pytest.raises(JobError) as caught:
        dies(launcher, "w1.2", -signal.SIGKILL, **signs)
    assert (caught.value.code, launcher.work.strikes) == ("workers_keep_dying", {})


@pytest.mark.parametrize(
    ("work", "others", "seconds"),
    [
        ("start", (), START_SECONDS),
        (TASK, (0.0, 0.1), 600.0),
        (TASK, (20.0, 30.0, 40.0), 1200.0),
        (EVALUATION, (0.1,), 600.0),
    ],
)
def test_first_task_timeout_uses_times_of_other_peers(
    work: str, others: tuple[float, ...], seconds: float
) -> None:
    limits = HangLimits(0.0)
    limits.begin(work, 1.0)
    assert (limits.hung(seconds, others), limits.hung(seconds + 2.0, others)) == ("", work)
    limits.end(seconds)
    assert limits.hung(1e9, others) == ""


def test_later_evaluation_timeout_uses_earlier_times() -> None:
    limits = HangLimits(0.0)
    limits.begin(EVALUATION, 0.0)
    limits.end(5.0)
    limits.begin(EVALUATION, 10.0)
    assert (limits.hung(59.0, ()), limits.hung(61.0, ())) == ("", EVALUATION)


def test_no_task_limit_with_known_steps_or_no_finished_peer() -> None:
    limits = HangLimits(0.0)
    limits.begin(TASK, 0.0)
    assert limits.hung(1e9, (0.0,)) == ""
    limits.end(1.0)
    limits.begin(TASK, 2.0)
    assert limits.hung(1e9, (0.1,)) == ""
