"""Tests of preemption by a capacity trace, on worker processes and on simulated machines."""

from collections import Counter
from itertools import takewhile
from math import inf
from pathlib import Path

import pytest

from oddlot import Asynchronous, JobError, Machine, Simulated, UsageError, read_chaos
from oddlot.core.events import Evaluated, FaultInjected, Joined, Lost, Stimulus
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.engine_wrapper import EngineWrapper
from oddlot.engines.host import Message
from oddlot.faults import Chaos, Fault
from oddlot.faults.preemption import KIND, NAME, PreemptionInjector
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Alive, Steps
from tests.engines.log import events, names
from tests.fits import SAMPLES, Place, a_job, everything, local, trained
from tests.transcripts import mask, raises

pytestmark = pytest.mark.usefixtures("fork_server")

TRACE = Steps((0.0, 0.6, 1.2, 1.8, 2.4, 3.0, 3.6, 4.2), (3.0, 1.0, 0.0, 2.0, 3.0, 1.0, 0.0, 3.0))
"""Workers: 3 until 0.6 s, 1 until 1.2 s, 0 until 1.8 s, 2 until 2.4 s, 3 until 3.0 s, then 1, 0 and 3."""
REPEATED = Steps((0.0, 2.4, 3.0), (3.0, 1.0, 0.0), 3.6)
"""Workers: 3 until 2.4 s, 1 until 3.0 s and 0 until 3.6 s, repeated."""
COUNT = 480
FLEET = Simulated([Machine(f"w{i + 1}", 0.02, seconds_to_return=0.0) for i in range(3)], computes=False)


def arrivals(machine: str, until: float) -> int:
    """Return the number of times that this machine joins by the trace, before a time in seconds."""
    moves = takewhile(lambda move: move[0] <= until, Alive(REPEATED).moves(3, stream(0, NAME)))
    return sum(here and f"w{number + 1}" == machine for _, number, here in moves)


@pytest.mark.parametrize(
    "on", [local(3, as_if=(Machine("any", 0.005),) * 3), FLEET], ids=["local", "simulated"]
)
def test_preempted_workers_return_and_samples_count_once(on: Place) -> None:
    """The run is longer than the trace's period of 3.6 s, so even late workers are preempted."""
    if on is not FLEET:
        trained(a_job(), Asynchronous(), local(1))  # starts the fork server
    chaos = Chaos([Fault("kill", at_seconds=(0.5, 2.2))], capacity=Alive(REPEATED))
    run, state = trained(a_job(count=COUNT), Asynchronous(), on, "epochs>=4", chaos=chaos)
    assert sorted(state.merged) == everything(COUNT, 4)
    taken = Counter[str]()
    for record in run.records:
        match record.event:
            case FaultInjected(name, kind, node) if name == NAME:
                assert kind == KIND
                taken[machine_of(node)] += 1
            case Joined(node):
                assert arrivals(machine_of(node), record.now) > taken[machine_of(node)]
    assert taken


def test_resumed_run_has_its_current_capacity(tmp_path: Path) -> None:
    """A run stopped at 1 s resumes with one running worker of three."""
    job, folder, capacity = a_job(count=COUNT), RunFolder(tmp_path), Chaos(capacity=Alive(TRACE))
    trained(job, Asynchronous(), FLEET, "seconds>=1", folder, chaos=capacity)
    run, state = trained(job, Asynchronous(), FLEET, "epochs>=2", folder, resume=True, chaos=capacity)
    assert sorted(state.merged) == everything(COUNT, 2)
    at = names(run.records, object).index("Resumed")
    after = [record for record in run.records[at:] if record.now < 1.2]
    assert len(events(after, Joined)) - len(events(after, Lost)) == 1


def test_capacity_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "chaos.toml"
    (tmp_path / "alive.csv").write_text("0,4\n3600,2\n7200,0\n")
    path.write_text('[capacity]\nkind = "alive"\nfile = "alive.csv"\nof = 8\nrepeat_hours = 3\nfaster = 60\n')
    assert read_chaos(path) == Chaos(
        [], capacity=Alive(Steps((0.0, 60.0, 120.0), (4.0, 2.0, 0.0), 180.0), of=8)
    )
    path.write_text("seed = 3\n")
    with raises(UsageError, "no_faults", path=str(path)):
        read_chaos(path)
    path.write_text('[capacity]\nkind = "alife"\n')
    with raises(UsageError, "unknown_name", given="alife", nearest="alive", line=2):
        read_chaos(path)


@pytest.mark.filterwarnings("ignore:.*were lost with their machines")  # tasks are slow on a busy machine
@pytest.mark.filterwarnings("ignore:.*were killed by injected faults before any returned an update")
def test_repeated_preemptions_do_not_end_the_run() -> None:
    """During the first second, a task takes longer than the time between preemptions."""
    restless = Steps(tuple(0.1 * n for n in range(11)), (2.0, 0.0) * 5 + (2.0,))
    on, chaos = local(2, as_if=(Machine("any", 0.01),) * 2), Chaos(capacity=Alive(restless))
    _, state = trained(a_job(), Asynchronous(samples=SAMPLES // 2), on, "epochs>=1", chaos=chaos)
    assert sorted(state.merged) == everything(SAMPLES, 1)


ENDS = Steps((0.0, 0.3), (2.0, 0.0))


@pytest.mark.parametrize(
    "faults", [[], [Fault("slow", every_seconds=0.1, factor=1)]], ids=["", "faults go on"]
)
@pytest.mark.parametrize("on", [local(2), FLEET], ids=["local", "simulated"])
def test_capacity_that_ends_at_zero_ends_the_run(on: Place, faults: list[Fault]) -> None:
    """A run without a time limit ends when the capacity stays at zero."""
    mask(seconds=r"(?<=t = )[\d.]+(?= s)")
    with raises(JobError, "stalled", machines=0, traces=["chaos"]):
        trained(
            a_job(count=COUNT), Asynchronous(), on, "epochs>=999", chaos=Chaos(faults, capacity=Alive(ENDS))
        )


class Scripted(EngineWrapper):
    """An engine that returns these messages at their times, and no other message."""

    def __init__(self, *messages: tuple[float, Stimulus]) -> None:
        self.messages, self.time = list(messages), 0.0

    now = property(lambda self: self.time)
    is_spent = property(lambda self: False)

    def next(self, until: float) -> Message | None:
        if not self.messages or self.messages[0][0] > until:
            self.time = min(until, self.time + 60.0)
            return None
        self.time, message = self.messages.pop(0)
        return message

    def evaluate(self, version: int, weights: object) -> None: ...
    def kill(self, node: NodeId) -> None: ...
    def leave(self, node: NodeId) -> None: ...
    def slow(self, node: NodeId, factor: float) -> None: ...
    def freeze(self, node: NodeId) -> None: ...
    def thaw(self, node: NodeId) -> None: ...
    def bar(self, machine: str, barred: bool) -> None: ...


@pytest.mark.parametrize("last", [Evaluated(3, {}), Lost("w2")], ids=["evaluation", "loss"])
def test_pending_evaluation_or_loss_is_awaited_before_the_run_ends(last: Stimulus) -> None:
    """The metrics may reach the goal, and a worker may have sent an update before it was lost."""
    coming: list[tuple[float, Stimulus]] = [
        (0.0, Joined("w1")),
        (0.1, Joined("w2")),
        (0.4, Lost("w1")),
    ]
    coming += [(0.5, each) for each in (Evaluated(3, {}), Lost("w2")) if each != last]
    scripted = Scripted(*coming, (9.0, last))
    engine = PreemptionInjector(scripted, scripted, Alive(ENDS), ["w1", "w2"], 0)
    engine.evaluate(3, None)
    heard = [message for _ in range(8) if (message := engine.next(inf)) is not None]
    assert heard[-1] == last
    with raises(JobError, "stalled", seconds=9.0):
        engine.next(inf)
