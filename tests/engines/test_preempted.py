"""Machines that are taken away and come back as a trace says: the same on worker processes and simulated ones."""

from pathlib import Path

import pytest

from oddlot import Alive, Asynchronous, Chaos, Fault, Local, Machine, Simulated, Steps, UsageError, read_chaos
from oddlot.core import words as w
from oddlot.core.streams import stream
from oddlot.engines.preempted import KIND, NAME
from oddlot.run_folder import RunFolder
from tests.fits import Place, a_job, everything, local, trained

pytestmark = pytest.mark.usefixtures("fork_server")

TRACE = Steps((0.0, 0.6, 1.2, 1.8), (3.0, 1.0, 0.0, 2.0), 2.4)
"""three workers, two of which go at 0.6 s, the last one at 1.2 s; two are back at 1.8 s, and a third at 2.4 s"""
COUNT = 480
BOTH = pytest.mark.parametrize(
    "on",
    [local(3), Simulated([Machine(f"w{i + 1}", 0.02, seconds_to_return=0.0) for i in range(3)])],
    ids=["local", "simulated"],
)


def comes(machine: str, after: float) -> float:
    """When the trace has this machine come, the next time."""
    moves = Alive(TRACE).moves(3, stream(0, NAME))
    return next(at for at, number, here in moves if here and f"w{number + 1}" == machine and at >= after)


@BOTH
def test_who_is_taken_away_comes_back_when_the_trace_says(on: Place) -> None:
    chaos = Chaos(capacity=Alive(TRACE))
    run, _ = trained(a_job(count=COUNT), Asynchronous(), on, "seconds>=5", chaos=chaos)
    taken = dict[str, float]()
    for record in run.records:
        match record.event:
            case w.Struck(name, kind, node):
                assert (name, kind) == (NAME, KIND)
                taken[node.partition(".")[0]] = record.now
            case w.Joined(node) if (when := taken.get(node.partition(".")[0])) is not None:
                assert record.now >= comes(node.partition(".")[0], when)
    assert taken


@BOTH
def test_every_sample_counts_once_all_the_same(on: Place) -> None:
    chaos = Chaos([Fault("kill", per_hour=3600)], capacity=Alive(TRACE))
    run, books = trained(a_job(count=COUNT), Asynchronous(), on, "epochs>=2", chaos=chaos)
    assert sorted(books.merged) == everything(COUNT, 2)
    assert isinstance(on, Local) or run.summary["workers_lost"] > 0


def test_a_resumed_run_finds_the_capacity_as_it_is_then(tmp_path: Path) -> None:
    """It is stopped at 1 s, when one worker of three is there."""
    on = Simulated([Machine(f"w{i + 1}", 0.02, seconds_to_return=0.0) for i in range(3)])
    chaos, job = Chaos(capacity=Alive(TRACE)), a_job(count=COUNT)
    trained(job, Asynchronous(), on, "seconds>=1", RunFolder(tmp_path), chaos=chaos)
    run, books = trained(job, Asynchronous(), on, "epochs>=3", RunFolder(tmp_path), resume=True, chaos=chaos)
    assert sorted(books.merged) == everything(COUNT, 3)
    at = next(i for i, r in enumerate(run.records) if isinstance(r.event, w.Resumed))
    after = [r for r in run.records[at:] if r.now < 1.2 and isinstance(r.event, w.Joined)]
    lost = [r for r in run.records[at:] if r.now < 1.2 and isinstance(r.event, w.Lost)]
    assert len(after) - len(lost) == 1


def test_a_file_says_so_too(tmp_path: Path) -> None:
    path = tmp_path / "chaos.toml"
    (tmp_path / "alive.csv").write_text("0,4\n3600,2\n7200,0\n")
    path.write_text('[capacity]\nkind = "alive"\nfile = "alive.csv"\nof = 8\nrepeat_hours = 3\nfaster = 60\n')
    assert read_chaos(path) == Chaos(
        [], capacity=Alive(Steps((0.0, 60.0, 120.0), (4.0, 2.0, 0.0), 180.0), of=8)
    )
    path.write_text("seed = 3\n")
    with pytest.raises(UsageError, match=r"says nothing that is to go wrong: add a table \[\[faults\]\], or"):
        read_chaos(path)
    path.write_text('[capacity]\nkind = "alife"\n')
    with pytest.raises(UsageError, match=r"chaos.toml:2: unknown capacity `alife`: did you mean `alive`"):
        read_chaos(path)


def test_workers_that_are_taken_away_again_and_again_are_no_bad_sign() -> None:
    """Each task takes far longer than a worker is left alone for, up to 2 s."""
    restless = Steps(tuple(0.1 * n for n in range(21)), (2.0, 0.0) * 10 + (2.0,))
    many = 24_000
    _, books = trained(
        a_job(count=many),
        Asynchronous(samples=many // 2),
        local(2),
        "epochs>=1",
        chaos=Chaos(capacity=Alive(restless)),
    )
    assert sorted(books.merged) == everything(many, 1)
