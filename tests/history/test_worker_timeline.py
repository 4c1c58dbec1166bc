"""The timeline of workers and tasks, from the records of a log."""

import pytest

from oddlot.core.commands import Abort, Drop, Evict, Skip, Step
from oddlot.core.events import (
    Cancelled,
    Gone,
    Joined,
    Leaving,
    Lost,
    Ordered,
    Resumed,
    Ticked,
    UpdateRejected,
)
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import Span
from oddlot.history.worker_timeline import StateInterval, TaskRun, WorkerTimeline
from tests.report.records import arrived, merged, start

BEGUN = Record(0.0, Joined("a"), (start("a:0", (0, 0, 4)), start("a:1", (0, 4, 8))))
SECOND = Span(0, 4, 8)


def folded(*records: Record, keep: bool = True) -> WorkerTimeline:
    timeline = WorkerTimeline(keep=keep)
    for record in records:
        timeline(record)
    return timeline


def task(timeline: WorkerTimeline, name: str) -> TaskRun:
    (found,) = (run for worker in timeline.lives for run in worker.answered if run.id == name)
    return found


def history(timeline: WorkerTimeline, until: float, node: str = "a") -> list[StateInterval]:
    (worker,) = (worker for worker in timeline.lives if worker.node == node)
    return [spell for spell in worker.history(until) if spell.start < spell.stop]


@pytest.mark.parametrize(
    ("outcome", "records"),
    [
        ("merged", [merged(2.0, "a:1", 4)]),
        ("dropped", [Record(2.0, arrived("a:1", 4)), Record(3.0, Ticked(), (Drop("a:1"),))]),
        ("cancelled", [Record(2.0, Cancelled("a:1", "a"))]),
        (
            "cancelled",
            [Record(1.5, Ticked(), (Abort("a:1", "a"),)), Record(2.0, arrived("a:1", 4), (), ECHO)],
        ),
        ("late", [Record(2.0, arrived("a:1", 4), (), ECHO)]),
        ("invalid", [Record(2.0, UpdateRejected("a:1", "NaN"))]),
        ("skipped", [Record(2.0, UpdateRejected("a:1", "NaN"), (Skip((SECOND,)),))]),
        ("lost", [Record(2.0, Lost("a"))]),
        ("resumed", [Record(2.0, Resumed(9))]),
    ],
)
def test_task_has_one_outcome_and_its_samples_count_once(outcome: str, records: list[Record]) -> None:
    timeline = folded(BEGUN, merged(1.0, "a:0", 4), *records)
    run, counts = task(timeline, "a:1"), timeline.samples
    assert (run.outcome, run.begun, run.ended) == (outcome, 1.0, 2.0)
    assert not timeline.under_way
    assert not timeline.inbox
    merged_here = 4 if outcome == "merged" else 0
    assert (counts.assigned, counts.merged) == (8, 4 + merged_here)
    assert counts.skipped == (4 if outcome == "skipped" else 0)
    unused = {} if outcome in {"merged", "skipped"} else {outcome: 4}
    assert +counts.wasted == unused


@pytest.mark.parametrize(
    "records",
    [
        [Record(2.0, Lost("a", "SIGSEGV"), (Skip((SECOND,)),))],
        [Record(2.0, Ticked(), (Evict("a"), Skip((SECOND,)))), Record(3.0, Lost("a"))],
        [Record(2.0, Ticked(), (Evict("a"), Skip((SECOND,)))), Record(3.0, arrived("a:1", 4), (), ECHO)],
    ],
    ids=["ended its worker", "hung", "hung and late"],
)
def test_samples_skipped_after_a_loss_are_not_wasted(records: list[Record]) -> None:
    timeline = folded(BEGUN, merged(1.0, "a:0", 4))
    for record in records:
        timeline(record)
        counts = timeline.samples
        assert (counts.assigned, counts.merged, counts.skipped, counts.wasted.total()) == (8, 4, 4, 0)


def test_open_tasks_at_the_end_are_unfinished() -> None:
    """The unfinished tasks are a task in progress, and an update of three samples in the inbox."""
    timeline = folded(BEGUN, Record(1.0, arrived("a:0", 3)))
    timeline.finish()
    assert timeline.summary == {"workers_lost": 0, "workers_left": 0, "starts_lost": 0}
    assert (timeline.samples.wasted["unfinished"], timeline.samples.returned) == (3 + 4, 1)
    assert task(timeline, "a:0").outcome == "unfinished"


def test_queued_task_starts_when_it_is_the_oldest() -> None:
    timeline = folded(
        Record(0.0, Joined("a"), tuple(start(f"a:{number}", (0, number, number + 1)) for number in range(3))),
        Record(1.0, Cancelled("a:1", "a")),
        merged(3.0, "a:0", 1),
        merged(5.0, "a:2", 1),
    )
    assert [(task(timeline, f"a:{n}").begun, task(timeline, f"a:{n}").ended) for n in range(3)] == [
        (0.0, 3.0),
        (1.0, 1.0),
        (3.0, 5.0),
    ]
    assert history(timeline, 6.0)[-1] == ("waiting", 5.0, 6.0)
    assert {state for state, _, _ in history(timeline, 6.0)} == {"working", "waiting"}


def test_only_time_of_unmerged_tasks_is_wasted() -> None:
    """`a:0` is cancelled, `a:1` merged and `a:3` rejected. `a:2` is cancelled in the queue, and takes no time."""
    more = tuple(start(f"a:{number}", (0, 4 * number, 4 * number + 4)) for number in (2, 3))
    timeline = folded(
        BEGUN,
        Record(1.0, Ticked(), more),
        Record(2.0, Cancelled("a:2", "a"), (start("a:4", (0, 16, 20)),)),
        Record(3.0, Cancelled("a:0", "a")),
        merged(5.0, "a:1", 4),
        Record(6.0, UpdateRejected("a:3", "NaN")),
        merged(8.0, "a:4", 4),
    )
    assert history(timeline, 8.0) == [
        *(("wasted", 0.0, 1.0), ("wasted", 1.0, 2.0), ("wasted", 2.0, 3.0)),
        *(("working", 3.0, 5.0), ("wasted", 5.0, 6.0), ("working", 6.0, 8.0)),
    ]


def test_resume_ends_workers_without_wasted_time() -> None:
    assert history(folded(BEGUN, Record(2.0, Resumed(9))), 5.0) == [("working", 0.0, 2.0)]


def test_worker_states_have_no_gaps() -> None:
    timeline = folded(
        Record(1.0, Ordered("a", 1.0)),
        Record(3.0, Joined("a")),
        Record(4.0, Ticked(), (start("a:0", (0, 0, 4)),)),
        merged(6.0, "a:0", 4, start("a:1", (0, 4, 8))),
        Record(7.0, Leaving("a")),
        Record(9.0, Lost("a")),
    )
    assert history(timeline, 10.0) == [
        ("starting", 1.0, 3.0),
        ("waiting", 3.0, 4.0),
        ("working", 4.0, 6.0),
        ("wasted", 6.0, 7.0),
        ("leaving", 7.0, 9.0),
        ("left", 9.0, 10.0),
    ], "what it worked at before the notice was lost with it"
    assert (timeline.workers_lost, timeline.workers_left) == (0, 1)


def test_worker_is_lost_from_the_end_of_its_machine() -> None:
    """An update in transit at this time is merged. Time of its task is not wasted, but time of the next task is."""
    end = [Record(2.0, Gone("a")), merged(3.0, "a:0", 4), Record(9.0, Lost("a"))]
    for records in (end, end[:2]):
        timeline = folded(BEGUN, *records)
        assert history(timeline, 10.0) == [("working", 0.0, 2.0), ("lost", 2.0, 10.0)]
    unnoticed = folded(BEGUN, merged(1.0, "a:0", 4), end[0])
    assert history(unnoticed, 10.0) == [("working", 0.0, 1.0), ("wasted", 1.0, 2.0), ("lost", 2.0, 10.0)]
    assert unnoticed.workers["a"].state == "working", "as far as the hub knows"
    noticed = folded(BEGUN, Record(1.0, Leaving("a")), end[0])
    assert history(noticed, 10.0)[1:] == [("leaving", 1.0, 2.0), ("left", 2.0, 10.0)]


def test_workers_are_listed_in_the_order_of_their_start() -> None:
    """The list has a machine that ended during its start, and a worker that ended with the hub."""
    timeline = folded(
        BEGUN,
        Record(1.0, Lost("a")),
        Record(1.0, Ordered("a.2", 1.0)),
        Record(2.0, Gone("a.2")),
        Record(3.0, Ordered("a.3", 1.0)),
        Record(4.0, Resumed(9)),
        Record(5.0, Joined("a.4")),
    )
    assert [worker.node for worker in timeline.lives] == ["a", "a.2", "a.3", "a.4"]
    assert (timeline.workers_lost, timeline.starts_lost) == (1, 1)
    assert history(timeline, 3.0, "a.2") == [("starting", 1.0, 2.0), ("lost", 2.0, 3.0)]
    assert history(timeline, 5.0, "a.3") == [("starting", 3.0, 4.0)]


def test_merges_list_their_tasks_and_workers_their_traffic() -> None:
    timeline = folded(
        BEGUN,
        Record(1.0, arrived("a:0", 4, bytes_up=5, bytes_down=7)),
        Record(2.0, arrived("a:1", 3, bytes_up=5), (Step({"a:0": 0.5, "a:1": 0.5}),)),
        Record(3.0, arrived("a:1", 3, bytes_up=5), (), ECHO),
    )
    ((now, tasks),) = timeline.merges
    assert (now, [run.id for run in tasks], [run.samples for run in tasks]) == (2.0, ["a:0", "a:1"], [4, 3])
    worker = timeline.workers["a"]
    assert (worker.samples, worker.traffic.bytes_up, worker.traffic.bytes_wasted) == (7, 15, 5)


def test_live_timeline_keeps_only_open_tasks() -> None:
    records = [
        BEGUN,
        merged(1.0, "a:0", 4),
        Record(2.0, Cancelled("a:1", "a")),
        Record(3.0, Ordered("b", 1.0)),
    ]
    timeline = folded(*records, Record(4.0, Gone("b")), keep=False)
    assert (timeline.merges, timeline.never_joined, timeline.under_way, timeline.inbox) == ([], [], {}, {})
    worker = timeline.workers["a"]
    assert (worker.intervals, worker.answered, worker.tasks) == (None, [], {})
