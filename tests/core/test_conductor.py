"""The conductor: effects of events on its state, events for strategies, and actions for commands."""

from math import inf

import pytest

from oddlot.core.commands import (
    Abort,
    Action,
    Assign,
    Blend,
    Cancel,
    Command,
    Drop,
    Evaluate,
    Evict,
    Keep,
    Release,
    Skip,
    Start,
    Step,
    Wake,
)
from oddlot.core.events import (
    AlarmFired,
    Arrived,
    Cancelled,
    Changed,
    Evaluated,
    Joined,
    Leaving,
    Lost,
    Resumed,
    Ticked,
    UpdateRejected,
)
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span, samples_in
from oddlot.core.strategy import View
from oddlot.core.support.errors import JobError, ProtocolError
from oddlot.core.tasks import Facts, Task
from tests.core.scripted import Stage
from tests.transcripts import raises


def test_lost_worker_returns_its_samples() -> None:
    stage = Stage()
    assert stage.tell(Joined("a")) == [Joined("a")]
    assert list(stage.conductor.idle) == ["a"]
    task = stage.start("a")
    assert task == Task("a:1", "a", (Span(0, 0, 8),), 0, "gradient")
    assert list(stage.conductor.idle) == []
    assert stage.tell(Lost("a")) == [Lost("a")]
    assert (stage.conductor.busy, stage.conductor.slots, stage.conductor.open) == ({}, {}, {})
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 0, 8)]


def test_workers_wait_until_they_are_enough() -> None:
    stage = Stage(least_slots=3)
    assert stage.tell(Joined("a")) == stage.tell(Joined("b")) == []
    assert (list(View(stage.conductor).nodes), list(stage.conductor.waiting)) == ([], ["a", "b"])
    assert stage.tell(Lost("b")) == []
    assert stage.tell(Joined("c")) == []
    assert stage.tell(Joined("d")) == [Joined("a"), Joined("c"), Joined("d")]
    assert list(stage.conductor.idle) == ["a", "c", "d"]


def test_workers_that_are_left_wait_and_too_few_updates_are_dropped() -> None:
    stage = Stage(least_slots=3)
    for node in "abc":
        stage.tell(Joined(node))
    tasks = [stage.start(node) for node in "abc"]
    stage.tell(stage.answer(tasks[0]))
    assert stage.tell(Lost("c")) == [Lost("c"), Lost("a"), Lost("b")]
    assert stage.conductor.ledger.leases.keys() == {"a:1"}
    assert stage.tell(Cancelled("b:2", "b")) == [Cancelled("b:2", "b")]
    assert stage.say([Step({"a:1": 1.0})]) == (Drop("a:1"),)
    assert (stage.conductor.version, stage.conductor.ledger.merged_in_all) == (0, 0)
    assert stage.tell(Joined("d")) == [Joined("a"), Joined("b"), Joined("d")]
    assert [stage.start(node).spans for node in ("a", "b", "d")] == [
        (Span(0, at, at + 8),) for at in (0, 8, 16)
    ]


def test_task_that_a_waiting_worker_still_computes_uses_its_slot() -> None:
    stage = Stage(least_slots=2)
    for node in "ab":
        stage.tell(Joined(node))
    task = stage.start("a")
    assert stage.actions(Leaving("b")) == (Abort("a:1", "a"),)
    assert stage.tell(Joined("c")) == [Joined("a"), Joined("c")]
    assert (list(stage.conductor.idle), list(stage.conductor.stalled)) == (["c"], ["a"])
    stage.tell(stage.answer(task))
    assert list(stage.conductor.idle) == ["c", "a"]


def test_events_of_unknown_workers_are_ignored() -> None:
    stage = Stage()
    assert stage.tell(Lost("a")) == []
    assert stage.tell(Leaving("a")) == []
    assert stage.tell(Cancelled("a:1", "a")) == []
    assert stage.tell(UpdateRejected("a:1", "bad")) == []
    assert stage.tell(Arrived(Facts("a:1", "a", 0, 8))) == []


def test_leaving_worker_finishes_its_task_and_gets_no_other() -> None:
    stage = Stage()
    task = stage.start("a")
    assert stage.tell(Leaving("a")) == [Leaving("a")]
    assert stage.tell(Leaving("a")) == []
    assert stage.tell(stage.answer(task)) == [stage.answer(task)]
    assert list(stage.conductor.slots) == []
    assert list(stage.conductor.inbox) == ["a:1"]
    assert stage.tell(Lost("a")) == [Lost("a")]
    assert list(stage.conductor.inbox) == ["a:1"]


def test_commands_run_after_all_are_collected() -> None:
    stage = Stage()
    task = stage.start("a")
    stage.tell(Joined("b"))
    seen: list[int] = []

    def commands(view: View) -> list[Command]:
        seen.extend([view.version, view.free("a")])
        return [Step({task.id: 1.0}), Assign("a", 4), Assign("b", 4)]

    step, a, b = stage.say(commands, stage.answer(task))
    assert seen == [0, 1]
    assert step == Step({"a:1": 1.0})
    assert [action.task.version for action in (a, b) if isinstance(action, Start)] == [1, 1]


def test_assign_without_samples_left_starts_no_task() -> None:
    stage = Stage(SampleLedger(8, epochs=1))
    stage.tell(Joined("b"))
    assert stage.start("a").id == "a:1"
    assert stage.say([Assign("b", 8)]) == ()
    stage.say([Cancel("a:1")])
    (again,) = stage.say([Assign("b", 8)])
    assert again == Start(Task("b:2", "b", (Span(0, 0, 8),), 0))


def test_cancel_returns_samples_and_acknowledgement_frees_worker() -> None:
    stage = Stage()
    stage.start("a")
    assert stage.say([Cancel("a:1")]) == (Abort("a:1", "a"),)
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 0, 8)]
    assert list(stage.conductor.idle) == []
    assert stage.tell(Cancelled("a:1", "a")) == [Cancelled("a:1", "a")]
    assert list(stage.conductor.idle) == ["a"]
    assert stage.tell(Cancelled("a:1", "a")) == []


def test_worker_with_only_cancelled_tasks_is_stalled() -> None:
    stage = Stage(in_flight=2)
    stage.say([Cancel(stage.start("a").id)])
    assert list(View(stage.conductor).stalled) == ["a"]
    stage.say([Assign("a", 8)])
    assert not stage.conductor.stalled, "it has something to do"
    stage.say([Cancel("a:2")])
    assert list(stage.conductor.stalled) == ["a"]
    stage.tell(Cancelled("a:1", "a"))
    assert list(stage.conductor.stalled) == ["a"], "one of two has been answered"
    stage.tell(Cancelled("a:2", "a"))
    assert not stage.conductor.stalled


@pytest.mark.parametrize("gone", [Lost("a"), Leaving("a")])
def test_lost_or_leaving_worker_is_not_stalled(gone: Lost | Leaving) -> None:
    stage = Stage(in_flight=2)
    stage.start("a")
    stage.say([Assign("a", 8)])
    stage.say([Cancel("a:1"), Cancel("a:2")])
    stage.tell(gone)
    assert not stage.conductor.stalled
    stage.tell(Cancelled("a:1", "a"))
    assert not stage.conductor.stalled, "with a:2 left"


@pytest.mark.parametrize("over", ["cancelled", "timed out", "lost", "answered"])
def test_late_update_is_an_echo_and_hidden_from_the_strategy(over: str) -> None:
    stage = Stage()
    task = stage.start("a")
    match over:
        case "cancelled":
            stage.say([Cancel(task.id)])
        case "timed out":
            stage.tell(Joined("b"))
            stage.tell(Ticked(), now=600.0)
        case "lost":
            stage.tell(Lost("a"))
        case "answered":
            stage.tell(stage.answer(task))
    inbox = dict(stage.conductor.inbox)
    stage.strategy.message.clear()
    record = stage.conductor.handle(stage.answer(task), 601.0)
    assert record.remark == "echo"
    still_there = over in {"cancelled", "timed out"}
    assert stage.strategy.message == ([Cancelled(task.id, "a")] if still_there else [])
    assert stage.conductor.inbox == inbox
    assert ("a" in stage.conductor.idle) is (over != "lost")


def test_update_in_time_is_no_echo() -> None:
    stage = Stage()
    assert stage.conductor.handle(stage.answer(stage.start("a")), 1.0).remark == ""


def test_worker_stays_busy_after_a_task_timeout() -> None:
    stage = Stage()
    stage.start("a")
    stage.tell(Joined("b"))
    assert stage.conductor.alarm == 600.0
    assert stage.tell(Ticked(), now=599.9) == []
    assert stage.tell(Ticked(), now=600.0) == [Cancelled("a:1", "a")]
    assert stage.conductor.alarm == 6_000.0, "when it counts as hung"
    assert stage.conductor.open == {}
    assert stage.conductor.slots["a"] == 0
    assert list(stage.conductor.stalled) == ["a"]
    assert stage.conductor.worker_stats.members["a"].timeouts == 1


def test_first_tasks_time_out_only_if_a_worker_is_idle() -> None:
    """Timeouts are checked every ten minutes. Worker c, with a task and a free slot, does not count as waiting.

    Requested deadlines are not postponed.
    """
    stage = Stage(in_flight=2)
    first = stage.start("a")
    stage.start("c")
    (wished,) = stage.say([Assign("c", 8, deadline=100.0)])
    assert isinstance(wished, Start)
    assert stage.tell(Ticked(), now=100.0) == [Cancelled(wished.task.id, "c")]
    stage.tell(Cancelled(wished.task.id, "c"), now=150.0)
    for now in (600.0, 1_200.0, 1_800.0):
        assert stage.conductor.alarm == now
        assert stage.tell(Ticked(), now=now) == []
    stage.tell(Joined("b"), now=2_000.0)
    assert stage.tell(Ticked(), now=2_399.9) == []
    stage.tell(Joined("leaving"), now=2_000.0)
    stage.tell(Leaving("leaving"), now=2_000.0)
    assert stage.tell(Ticked(), now=2_400.0) == [Cancelled(first.id, "a")], "one waits, so one times out"
    assert stage.tell(Ticked(), now=3_000.0) == [Cancelled("c:2", "c")], "b waits still"
    assert stage.conductor.alarm == 6_000.0, "ten times ten minutes, without a word"


def test_workers_that_hang_in_their_first_tasks_are_evicted() -> None:
    stage = Stage()
    for node in ("a", "b"):
        stage.start(node)
    actions = list[Action]()
    while stage.conductor.alarm <= 6_000.0:
        actions += stage.conductor.handle(Ticked(), stage.conductor.alarm).actions
    assert actions == [Evict("a"), Evict("b")]
    assert stage.conductor.now == 6_000.0


def test_worker_silent_for_ten_timeouts_is_evicted() -> None:
    """The minimum is 30 s, because the timeout is 1 s here. A worker that acknowledges another task is not evicted."""
    stage = Stage(in_flight=2)
    for _ in range(5):
        stage.tell(stage.answer(stage.start("a")), now=stage.conductor.now + 0.01)
    begun = stage.conductor.now
    hung, other = stage.start("a"), stage.start("a")
    timeout = stage.conductor.alarm - begun
    stage.tell(Ticked(), now=begun + timeout)
    assert stage.conductor.alarm == begun + 30.0
    stage.tell(Cancelled(other.id, "a"), now=begun + 20.0)
    assert stage.actions(Ticked(), now=begun + 30.0) == ()
    assert stage.conductor.alarm == pytest.approx(begun + 50.0)
    assert stage.actions(Ticked(), now=stage.conductor.alarm) == (Evict("a"),)
    assert stage.conductor.ledger.strikes.keys() == {f"0:{at}" for at in range(40, 48)}
    assert hung.spans == (Span(0, 40, 48),)
    assert stage.conductor.alarm == inf
    stage.tell(Lost("a"))
    assert not stage.conductor.held


def test_crashed_worker_counts_against_the_samples_of_its_task() -> None:
    """A strike counts against the first task of the process. A lost machine causes no strike."""
    stage = Stage(SampleLedger(32, skip_bad=True), in_flight=2)
    for life, cause in enumerate(["exit code 3", None, "SIGSEGV", "SIGABRT"]):
        node = f"w{life}"
        first = stage.start(node)
        stage.start(node)
        actions = stage.actions(Lost(node, cause), now=float(life))
        assert first.spans == (Span(0, 0, 8),)
        assert actions == ((Skip(first.spans),) if life == 3 else ())


def test_tasks_time_out_without_idle_workers_after_first_update() -> None:
    stage = Stage()
    stage.tell(stage.answer(stage.start("a")), now=1.0)
    other = stage.start("a")
    assert stage.tell(Ticked(), now=61.0) == [Cancelled(other.id, "a")]


@pytest.mark.parametrize(("seconds", "timeout"), [(1.0, 60.0), (100.0, 400.0), (50_000.0, 200_000.0)])
def test_first_update_sets_the_timeouts_of_open_tasks(seconds: float, timeout: float) -> None:
    stage = Stage()
    first, other = stage.start("a"), stage.start("b")
    stage.tell(Joined("c"))
    stage.say([Assign("c", 8, deadline=300_000.0)])
    stage.tell(Joined("d"))
    stage.tell(Cancelled(stage.start("d").id, "d"), now=0.5)  # shows no duration of a task
    assert stage.tell(stage.answer(first), now=seconds) == [stage.answer(first)]
    assert stage.conductor.alarm == timeout
    assert stage.tell(Ticked(), now=timeout) == [Cancelled(other.id, "b")]
    stage.tell(Cancelled(other.id, "b"), now=timeout)
    assert stage.conductor.alarm == 300_000.0, "what a strategy wished stays"


def test_later_updates_keep_the_deadlines_of_open_tasks() -> None:
    stage = Stage()
    first = stage.start("a")
    stage.tell(stage.answer(first), now=1.0)
    slow = stage.start("b")
    assert stage.conductor.alarm == 61.0
    again = stage.start("a")
    stage.tell(stage.answer(again), now=50.0)
    assert stage.conductor.alarm == 61.0, f"of {slow.id}, however long others take by now"


def test_strategy_sets_the_deadline_of_a_task() -> None:
    stage = Stage()
    stage.tell(Joined("a"), now=5.0)
    stage.say([Assign("a", 8, deadline=2.5)])
    assert stage.conductor.alarm == 7.5


def test_deadlines_of_finished_tasks_do_not_fire() -> None:
    stage = Stage()
    task = stage.start("a")
    stage.tell(stage.answer(task), now=1.0)
    assert stage.conductor.alarm == inf
    assert stage.tell(Ticked(), now=100.0) == []


def test_deadlines_of_finished_tasks_are_removed() -> None:
    stage = Stage(SampleLedger(10_000))
    for _ in range(1000):
        stage.tell(stage.answer(stage.start("a")))
    assert len(stage.conductor.timeouts.deadlines.heap) < 100


def test_alarms_fire_in_order_and_once() -> None:
    stage = Stage()
    stage.say([Wake(9.0), Wake(3.0), Wake(5.0)])
    assert stage.conductor.alarm == 3.0
    assert stage.tell(Ticked(), now=5.0) == [AlarmFired(3.0), AlarmFired(5.0)]
    assert stage.conductor.alarm == 9.0
    assert stage.tell(Ticked(), now=6.0) == []


def test_worker_holds_several_tasks() -> None:
    stage = Stage(in_flight=2)
    first, second = stage.start("a"), stage.start("a")
    assert [first.id, second.id] == ["a:1", "a:2"]
    assert list(stage.conductor.idle) == []
    stage.tell(stage.answer(second))
    assert stage.conductor.slots == {"a": 1}
    assert list(stage.conductor.idle) == ["a"]


def test_partial_update_counts_and_returns_the_other_samples() -> None:
    stage = Stage()
    task = stage.start("a")
    stage.say([Step({"a:1": 1.0})], stage.answer(task, samples=3))
    assert stage.conductor.ledger.merged == [3]
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 3, 8)]


def test_dropped_updates_return_samples_and_halve_the_next_tasks() -> None:
    stage = Stage()
    stage.tell(Joined("a"))
    stage.conductor.worker_stats.join("b", now=0.0)
    for node, seconds in {"a": 9.0, "b": 1.0}.items():
        stage.conductor.worker_stats.result(node, 8, seconds, now=0.0)
    for task in ("a:1", "a:2"):
        stage.arrived("a")
        assert stage.say([Drop(task)]) == (Drop(task),)
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 0, 8)]
    assert stage.start("a").spans == (Span(0, 0, 4),)


def test_merge_resets_the_count_of_consecutive_drops() -> None:
    stage = Stage()
    for _ in range(3):
        stage.say([Drop(stage.arrived("a").id)])
        stage.say([Step({stage.arrived("a").id: 1.0})])
    assert samples_in(stage.start("a").spans) == 8


def test_merge_is_reported_if_its_first_update_ends_the_epoch() -> None:
    stage = Stage(SampleLedger(8, epochs=2))
    first, second = stage.arrived("a"), stage.start("a", samples=4)
    stage.tell(stage.answer(second))
    stage.strategy.message.clear()
    stage.say([Step({first.id: 0.5, second.id: 0.5})], Evaluated(0, {}))
    assert stage.strategy.message == [Evaluated(0, {}), Changed(1)]


def test_merge_that_ends_the_epoch_is_reported() -> None:
    stage = Stage(SampleLedger(8, epochs=2))
    task = stage.start("a")
    stage.strategy.message.clear()
    stage.say([Step({task.id: 1.0})], stage.answer(task))
    assert stage.strategy.message == [stage.answer(task), Changed(1)]
    assert (stage.conductor.version, stage.conductor.ledger.epoch) == (1, 1)


def test_measured_merge_is_reported_only_by_the_store() -> None:
    stage = Stage(SampleLedger(8, epochs=2))
    task = stage.start("a")
    stage.strategy.message.clear()
    stage.say([Step({task.id: 1.0}, measure=1)], stage.answer(task))
    assert stage.strategy.message == [stage.answer(task)]
    assert stage.tell(Changed(1, 2.0, 0.5)) == [Changed(1, 2.0, 0.5)]


def test_rejected_update_cancels_its_task_and_returns_its_samples() -> None:
    stage = Stage()
    stage.start("a")
    assert stage.tell(UpdateRejected("a:1", "NaN")) == [Cancelled("a:1", "a")]
    assert stage.conductor.slots == {"a": 1}
    assert stage.start("a").spans == (Span(0, 0, 8),)


def test_samples_rejected_three_times_raise_bad_samples() -> None:
    stage = Stage()
    for number in (1, 2):
        stage.start("a")
        stage.tell(UpdateRejected(f"a:{number}", "NaN"))
    stage.start("a")
    with raises(JobError, "bad_samples", spans=(Span(0, 0, 8),), all_invalid=True):
        stage.tell(UpdateRejected("a:3", "NaN"))


def test_all_invalid_is_false_while_a_valid_update_waits() -> None:
    stage = Stage()
    stage.tell(stage.answer(stage.start("b")))
    for _ in range(2):
        stage.tell(UpdateRejected(stage.start("a").id, "NaN"))
    last = stage.start("a")
    with raises(JobError, "bad_samples", all_invalid=False):
        stage.tell(UpdateRejected(last.id, "NaN"))


def test_skipped_samples_that_end_the_epoch_report_a_change_first() -> None:
    stage = Stage(SampleLedger(8, epochs=1, skip_bad=True))
    for number in (1, 2):
        stage.start("a")
        stage.tell(UpdateRejected(f"a:{number}", "NaN"))
    stage.start("a")
    assert stage.tell(UpdateRejected("a:3", "NaN")) == [Changed(0), Cancelled("a:3", "a")]
    assert stage.conductor.done


def test_rejected_update_of_a_cancelled_task_only_frees_its_worker() -> None:
    stage = Stage()
    stage.start("a")
    stage.say([Cancel("a:1")])
    assert stage.tell(UpdateRejected("a:1", "NaN")) == [Cancelled("a:1", "a")]
    assert stage.conductor.ledger.rejections == {}


def test_first_update_of_two_copies_aborts_the_other() -> None:
    stage = Stage()
    first = stage.start("a")
    stage.tell(Joined("b"))
    (action,) = stage.say([Assign("b", 8, copy_of=first.id)])
    assert isinstance(action, Start)
    second = action.task
    assert second.spans == first.spans
    assert stage.conductor.expects(first.id)
    record = stage.conductor.handle(stage.answer(second), stage.conductor.now)
    assert record.actions == (Abort(first.id, "a"),)
    assert not stage.conductor.expects(first.id)
    assert not stage.conductor.open
    with raises(ProtocolError, "no_such_task", task=first.id):
        stage.say([Assign("b", 8, copy_of=first.id)])
    assert stage.tell(stage.answer(first)) == [Cancelled(first.id, "a")]
    assert list(stage.conductor.inbox) == [second.id]


def test_losing_one_of_two_copies_returns_no_samples() -> None:
    stage = Stage()
    first = stage.start("a")
    stage.tell(Joined("b"))
    stage.say([Assign("b", 8, copy_of=first.id)])
    stage.tell(Lost("a"))
    assert stage.conductor.ledger.cursors[0].returned == []
    stage.tell(Lost("b"))
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 0, 8)]


def test_kept_version_is_usable_until_every_keep_is_released() -> None:
    stage = Stage()
    assert stage.say([Keep(0), Keep(0)]) == (Keep(0), Keep(0))
    stage.arrived("a")
    stage.say([Step({"a:1": 1.0})])
    stage.say([Release(0)])
    (start,) = stage.say([Assign("a", 8, version=0)])
    assert isinstance(start, Start)
    assert start.task.version == 0
    assert stage.say([Evaluate(0)]) == (Evaluate(0),)
    stage.say([Release(0)])
    assert stage.conductor.kept == {}


def test_weights_are_blended_into_the_model() -> None:
    stage = Stage()
    stage.arrived("a", "weights")
    assert stage.say([Blend({"a:1": 0.5})]) == (Blend({"a:1": 0.5}),)
    assert stage.conductor.version == 1


def test_resume_loses_all_workers_and_keeps_the_inbox() -> None:
    stage = Stage()
    stage.arrived("a")
    stage.start("b")
    stage.tell(Joined("c"))
    assert stage.tell(Resumed(17)) == [Lost("a"), Lost("b"), Lost("c")]
    assert list(stage.conductor.inbox) == ["a:1"]
    assert stage.conductor.ledger.cursors[0].returned == [Span(0, 8, 16)]
    assert stage.conductor.idle == {}


def test_view_shows_the_current_state() -> None:
    stage = Stage(SampleLedger(100), in_flight=2)
    stage.start("a")
    stage.tell(Joined("b"), now=3.0)
    stage.tell(Leaving("b"))
    view = View(stage.conductor)
    assert (view.now, view.version, view.epoch, view.batch, view.work_left) == (3.0, 0, 0, 8, True)
    assert (list(view.nodes), list(view.idle), list(view.tasks)) == (["a"], ["a"], ["a:1"])
    assert (view.free("a"), view.free("b"), view.free("nobody")) == (1, 0, 0)
    assert view.staleness(Facts("a:1", "a", based_on=-2, samples=1)) == 2
    assert list(view.worker_stats.members) == ["a", "b"]
    with pytest.raises(TypeError, match="does not support item assignment"):
        view.tasks["x"] = view.tasks["a:1"]  # type: ignore[index]


def test_rng_of_a_strategy_is_seeded() -> None:
    draws = [View(Stage().conductor).rng.random() for _ in range(2)]
    assert draws[0] == draws[1]


def test_schedule_gets_the_samples_merged_before_a_step() -> None:
    """The count includes skipped samples and earlier commands for the same event."""
    stage = Stage(SampleLedger(20, skip_bad=True))
    stage.conductor.scheduled = True
    task, other = stage.start("a"), stage.start("b")
    assert (task.merged, other.merged) == (0, 0)
    stage.tell(stage.answer(task))
    step, start = stage.say([Step({task.id: 1.0}), Assign("a", 4, "delta")])
    assert step == Step({task.id: 1.0}, merged=0)
    assert isinstance(start, Start)
    assert start.task.merged == 8
    again = start.task
    for _ in range(3):
        *_, start = stage.say([Assign("a", 4, "weights")], UpdateRejected(again.id, "bad"))
        assert isinstance(start, Start)
        again = start.task
    assert again.merged == 12
    (step,) = stage.say([Step({other.id: 1.0})], stage.answer(other))
    assert step == Step({other.id: 1.0}, merged=12)
    assert stage.conductor.ledger.merged_in_all == 20
    assert stage.conductor.ledger.epoch == 1, "epochs that are whole count too"


def test_schedule_is_not_applied_to_deltas() -> None:
    """Local steps have already applied the schedule to deltas."""
    stage = Stage()
    stage.conductor.scheduled = True
    deltas = [stage.arrived(node, "delta") for node in "ab"]
    gradient = stage.arrived("c")
    (step,) = stage.say([Step({deltas[0].id: 1.0}, merged=3)])
    assert step == Step({deltas[0].id: 1.0}), "whatever the strategy says"
    with raises(ProtocolError, "schedule_without_gradients"):
        stage.say([Step({deltas[1].id: 0.5, gradient.id: 0.5})])
    with raises(ProtocolError, "no_such_update", update="z:1"):
        stage.say([Step({"z:1": 1.0})])


def test_merged_is_none_without_a_schedule() -> None:
    stage = Stage()
    task = stage.start("a")
    (step,) = stage.say([Step({task.id: 1.0})], stage.answer(task))
    assert (task.merged, step) == (None, Step({task.id: 1.0}))


def test_timed_out_worker_is_assigned_tasks_after_the_others() -> None:
    """A worker with a free slot may hang: the samples of its task go to another idle worker."""
    stage = Stage(SampleLedger(8), in_flight=2)
    stage.start("a")
    stage.actions(Joined("b"))
    assert list(stage.conductor.idle) == ["a", "b"]
    stage.actions(Ticked(), now=1e6)
    assert list(stage.conductor.idle) == ["b", "a"]
