"""The state tables in the design pages of docs/, checked row by row with a real conductor."""

from collections.abc import Callable
from itertools import product, takewhile
from pathlib import Path

import pytest

from oddlot.core import conductor, conductor_commands, events as happened
from oddlot.core.commands import (
    Assign,
    Average,
    Blend,
    Cancel,
    Command,
    Complete,
    Drop,
    Evaluate,
    HandOver,
    Keep,
    Mark,
    Release,
    Request,
    Send,
    Start,
    Step,
    Wake,
)
from oddlot.core.events import Stimulus
from oddlot.core.peers import PeerModel
from oddlot.core.tasks import Facts, Task
from tests.core.scripted import Stage

DOCS = Path(__file__).parents[2] / "docs"
TASK = Task("a:1", "a", (), 0)
"""The only task. No worker but `a` has one."""
COPY = "b:2"


def arrived(stage: Stage, task: str = TASK.id) -> Stimulus:
    kind = stage.conductor.held[task].kind if task in stage.conductor.held else "gradient"
    return happened.Arrived(Facts(task, task[0], 0, 8, kind))


EVENTS: dict[str, Callable[[Stage], Stimulus]] = {
    "Joined": lambda stage: happened.Joined("c" if "a" in stage.conductor.busy else "a"),
    "Leaving": lambda _: happened.Leaving("a"),
    "Lost": lambda _: happened.Lost("a"),
    "Arrived": arrived,
    "Arrived of its copy": lambda stage: arrived(stage, COPY),
    "Cancelled": lambda _: happened.Cancelled(TASK.id, "a"),
    "UpdateRejected": lambda _: happened.UpdateRejected(TASK.id, "NaN"),
    "Resumed": lambda _: happened.Resumed(0),
    "Ticked": lambda _: happened.Ticked(),
    "Changed": lambda _: happened.Changed(0),
    "Evaluated": lambda _: happened.Evaluated(0, {}),
    "RoundTimesFitted": lambda _: happened.RoundTimesFitted(()),
    "FaultInjected": lambda _: happened.FaultInjected("slow", "slow", "a"),
    "Priced": lambda _: happened.Priced("", 1.0),
    "Ordered": lambda _: happened.Ordered("c", 1.0),
    "Gone": lambda _: happened.Gone("a"),
    "Stopped": lambda _: happened.Stopped(),
    "Combined": lambda _: happened.Combined(1, {"a:9": 0.5}),
    "LinkTraffic": lambda _: happened.LinkTraffic("p", {"exchange": 8}),
    "GoalReached": lambda _: happened.GoalReached("epochs>=2"),
    "Averaged": lambda _: happened.Averaged(("a",), 0.0, 0),
    "PeerJoined": lambda _: happened.PeerJoined("q"),
    "PeerLost": lambda _: happened.PeerLost("p"),
    "ModelRequested": lambda _: happened.ModelRequested("p", 1),
    "ModelReceived": lambda _: happened.ModelReceived(PeerModel("p>2", "p", 8)),
    "ModelRejected": lambda _: happened.ModelRejected("p", None, "NaN"),
}
COMMANDS: dict[str, list[Command]] = {
    "Assign": [Assign("a", 8)],
    "Cancel": [Cancel(TASK.id)],
    "HandOver": [HandOver(TASK.id)],
    "Step": [Step({TASK.id: 1.0})],
    "Blend": [Blend({TASK.id: 1.0})],
    "Drop": [Drop(TASK.id)],
    "Evaluate": [Evaluate(0)],
    "Keep": [Keep(0)],
    "Release": [Keep(0), Release(0)],
    "Wake": [Wake(1.0)],
    "Request": [Request("p", 1)],
    "Send": [Send("p")],
    "Average": [Average({"p>1": 0.5})],
    "Complete": [Complete("p>3", "p>1")],
    "Mark": [Mark()],
}
WAYS = {
    "none": (),
    "idle": ("Joined",),
    "open": ("Joined", "Assign"),
    "cancelled": ("Joined", "Assign", "Cancel"),
    "timed out": ("Joined", "Assign", "Ticked"),
    "inbox": ("Joined", "Assign", "Arrived"),
    "ended": ("Joined", "Assign", "Cancelled"),
    "busy": ("Joined", "Assign"),
    "stalled": ("Joined", "Assign", "Cancel"),
    "leaving": ("Joined", "Assign", "Leaving"),
}
"""Events and commands that lead to each state of a task or worker."""


def rows(kind: str) -> list[tuple[str, ...]]:
    """Return the rows of the table of tasks or workers: state, event, next state and consequences."""
    pages = [page.read_text() for page in sorted(DOCS.glob("design*")) if page.is_file()]
    pages += [page.read_text() for page in sorted(DOCS.glob("design/*.md"))]
    lines = iter("\n".join(pages).splitlines())
    assert any(line.startswith(f"| {kind} | event or command |") for line in lines)
    next(lines)
    found = list[tuple[str, ...]]()
    for line in takewhile(lambda line: line.startswith("|"), lines):
        states, events, *then = (cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        found += ((*pair, *then) for pair in product(states.split(", "), events.split(", ")))
    return found


def after(state: str, event: str, kind: str) -> Stage:
    """Return a conductor after an event for a task or worker in a state. Another worker, b, has no task."""
    stage = Stage()
    stage.tell(happened.Joined("b"))
    stage.tell(happened.PeerJoined("p"))
    for model in ("p>1", "p>3"):
        stage.tell(happened.ModelReceived(PeerModel(model, "p", 8)))
    way = WAYS["idle" if (kind, state) == ("task", "none") else state]
    for step in (*way, event):
        if step == "Assign" and event == "Blend":
            stage.say([Assign("a", 8, "weights")])
        elif step in COMMANDS:
            stage.say(COMMANDS[step])
        else:
            if step == "Arrived of its copy":
                (action,) = stage.say([Assign("b", 8, copy_of=TASK.id)])
                assert isinstance(action, Start)
                assert action.task.id == COPY
            now = min(stage.conductor.alarm, 1e6) if step == "Ticked" else None
            stage.tell(EVENTS[step](stage), now=now)
    return stage


def task_state(stage: Stage) -> tuple[str, str]:
    conductor = stage.conductor
    if TASK.id in conductor.open:
        assert TASK.id in conductor.ledger.leases
        return "open", "leased"
    held = "timed out" if TASK.id in conductor.timeouts.silence else "cancelled"
    state = "inbox" if TASK.id in conductor.inbox else held if TASK.id in conductor.held else "ended"
    if conductor.inbox:
        return state, "in the inbox"
    assert not conductor.ledger.leases
    return state, "merged" if conductor.ledger.merged_in_all == 8 else "returned"


def worker_state(stage: Stage) -> str:
    state = stage.conductor
    if "a" not in state.slots:
        return "leaving" if "a" in state.busy else "gone"
    return "stalled" if "a" in state.stalled else "idle" if "a" in state.idle else "busy"


@pytest.mark.parametrize(("state", "event", "following", "samples"), rows("task"))
def test_task_transition_matches_the_documented_table(
    state: str, event: str, following: str, samples: str
) -> None:
    assert task_state(after(state, event, "task")) == (following, samples)


@pytest.mark.parametrize(("state", "event", "following"), rows("worker"))
def test_worker_transition_matches_the_documented_table(state: str, event: str, following: str) -> None:
    assert worker_state(after(state, event, "worker")) == following


def test_every_event_and_command_is_in_the_documented_tables() -> None:
    named = {row[1] for kind in ("task", "worker") for row in rows(kind)} - {"Arrived of its copy"}
    known = {kind.__name__ for kind in (*conductor._SETTLE, *conductor_commands._CARRY_OUT)}
    assert named == known
