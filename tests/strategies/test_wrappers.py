"""Wrappers: the cost of stragglers, and unbiased updates."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import fmean
from typing import Any

import pytest
import torch

import oddlot
from oddlot import (
    VCASGD,
    Asynchronous,
    BackupTasks,
    Deadline,
    FastestK,
    LocalSGD,
    ProportionalLoad,
    Quorum,
    Shards,
    Strategy,
    Synchronous,
)
from oddlot.core.commands import Abort, Assign, Blend, Command, HandOver, Start, Step
from oddlot.core.events import Arrived, Event, RoundTimesFitted
from oddlot.core.sample_spans import samples_in
from oddlot.core.strategy import View
from oddlot.core.tasks import Task
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.strategies.backup_tasks import expected_pace
from oddlot.testing import run_story
from tests.fits import a_job, fleet
from tests.strategies.plain_model import PlainModel, played
from tests.strategies.slow_fleets import BATCH, PACE, STRAGGLES, actions, machines, ran
from tests.toys import Backups
from tests.transcripts import check, raises

# --- time ------------------------------------------------------------------------------------------


def test_backup_tasks_do_not_wait_for_a_straggler() -> None:
    """One of 20 tasks takes 100 times longer, so a third of the rounds of eight tasks has a straggler.

    Backup tasks avoid the wait.
    """
    numbers, eight = torch.zeros(4_000), machines(8, delay=STRAGGLES, stops_at_once=True)
    eight = [
        replace(one, seconds_per_sample=PACE / 5) for one in eight
    ]  # at most 10 s, so that no task counts as hung
    waits = ran(Synchronous(), eight, numbers, "epochs>=1")
    backs = ran(BackupTasks(Synchronous()), eight, numbers, "epochs>=1")
    assert backs.summary["seconds"] < 0.6 * waits.summary["seconds"]
    assert len(actions(backs, Abort)) > 20
    assert backs.summary["samples_merged"] == 4_000


@pytest.mark.parametrize(("times", "at_most"), [(1.7, 1.01), (3.0, 0.6), (6.0, 0.27)])
def test_task_of_a_slow_worker_is_copied_if_that_is_faster(times: float, at_most: float) -> None:
    """An idle worker repeats the task of a slow worker if the copy would finish first."""
    fleet = [*machines(3), oddlot.Machine("slow", times * PACE)]
    waits = ran(Synchronous(), fleet, torch.zeros(4_000), "epochs>=1")
    backs = ran(BackupTasks(Synchronous()), fleet, torch.zeros(4_000), "epochs>=1")
    assert backs.summary["seconds"] < at_most * waits.summary["seconds"]
    assert bool(backs.summary["samples_wasted"]) is (times > 2)


def test_task_is_copied_at_most_once() -> None:
    run = ran(BackupTasks(Synchronous(), slow=1.0), machines(6, 50.0), torch.zeros(300), "epochs>=1")
    starts = [task.task for task in actions(run, Start)]
    copies = [sum(other.spans == task.spans for other in starts) for task in starts]
    assert set(copies) == {1, 2}


def test_lost_copy_is_repeated_by_another_worker() -> None:
    story = """strategy BackupTasks(Synchronous(samples=8))
data size=4000 batch=8
join a
join b
join c
join d
wait 1
finish a
finish b
wait 1.2
finish d
wait 1
finish c
wait 1
finish a
finish b
wait 0.1
lose a
"""
    message = run_story(story)
    copied = re.search(r"finish a\n> assign a:\d+ 8 (\S+)", message)
    assert copied, message
    assert re.search(rf"lose a\n> assign b:\d+ 8 {re.escape(copied[1])}", message), message


def test_samples_rejected_three_times_are_not_copied() -> None:
    """Such samples are skipped, even while their first worker still computes them."""
    story = """strategy BackupTasks(Deadline(Synchronous(samples=8), 50.0))
data size=400 batch=8 skip_bad=true
join a
join b
join c
wait 1
finish a
finish b
wait 1
finish c
wait 1
finish a
finish b
wait 1.5
reject a
reject b
reject a
wait 1
"""
    message = run_story(story)
    assert message.endswith("reject a\n> skip [0:40-48]\nwait 1\n> at 4.5 s\n"), message


@dataclass
class Watched(BackupTasks):
    """Backup tasks with a check that no worker is idle while a task without a copy is late by half a task or more."""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        commands = list(super().on(event, view))
        given = [command for command in commands if isinstance(command, Assign)]
        idle = len(view.idle) - len(given)
        copies = Counter(task.spans for task in view.tasks.values())
        copies.update(view.tasks[command.copy_of].spans for command in given if command.copy_of)
        quickest = min((expected_pace(node, view) for node in view.idle), default=inf)
        late = [
            task
            for task in view.tasks.values()
            if self._late_at(task, quickest, view) + BATCH * PACE / 2 < view.now and copies[task.spans] == 1
            and view.worker_stats.members[task.node].results
        ]  # fmt: skip
        moves = any(isinstance(command, Step) for command in commands)
        assert moves or not (idle and late), (view.now, late)
        return commands


@pytest.mark.parametrize(
    ("inside", "slow"), [(FastestK(k=6), 1.0), (Synchronous(), 1.0), (Synchronous(), 4.0)]
)
def test_idle_worker_copies_a_late_task_at_once(inside: Strategy, slow: float) -> None:
    eight = machines(
        8,
        slow,
        delay=oddlot.machines.Exponential(),
        seconds_to_return=7.0,
        lifetime=oddlot.machines.Lifetime(60.0),
    )
    ran(Watched(inside, slow=1.2), eight, torch.zeros(4_000), "epochs>=1")


def test_copies_start_from_the_kept_version() -> None:
    """All tasks of an epoch, including copies, start from its first version, and not from newer versions."""
    run = ran(BackupTasks(VCASGD(newest=False)), machines(4, 3.0), torch.arange(400.0), "epochs>=3", shards=8)
    still_out: dict[str, Task] = {}
    newest, behind = 0, 0
    for record in run.records:
        if isinstance(record.event, Arrived):
            still_out.pop(record.event.update.id, None)
        for action in record.actions:
            newest += isinstance(action, Blend)
            if isinstance(action, Start):
                task = action.task
                for first in (one for one in still_out.values() if one.spans == task.spans):
                    assert task.version == first.version
                    behind += task.version < newest
                still_out[task.id] = task
    assert behind


def test_deadline_ends_rounds() -> None:
    """A worker that is 8 times slower hands over after the minibatch in progress at the deadline."""
    seconds, slow = 4 * BATCH * PACE, 8.0
    deadline = Deadline(LocalSGD(steps=8), seconds)
    run = ran(deadline, machines(4, slow), torch.zeros(2_000), "versions>=10")
    steps = [record.now for record in run.records if any(isinstance(one, Step) for one in record.actions)]
    minibatch = BATCH * PACE * slow
    gaps = [after - before for before, after in zip([0.0, *steps], steps, strict=False)]
    assert max(gaps) <= seconds + minibatch + 1e-6
    answers = [record.event.update for record in run.records if isinstance(record.event, Arrived)]
    assert {update.samples for update in answers if update.sender == "m3"} == {BATCH}
    assert {update.samples for update in answers if update.sender != "m3"} == {4 * BATCH}, "no more is done"
    assert len(actions(run, HandOver)) == 40


def test_proportional_load_keeps_high_goodput() -> None:
    """If one of four workers is five times slower, goodput is above 0.93, and below 0.3 in rounds that wait for it."""

    def goodput(strategy: Strategy) -> float:
        run = ran(strategy, machines(4, 5.0), torch.zeros(8_000), "epochs>=1")
        able = (3 + 1 / 5) / PACE * run.summary["seconds"]
        return float(run.summary["samples_merged"] / able)

    assert goodput(Synchronous(samples=40)) < 0.3
    assert goodput(ProportionalLoad(Synchronous(samples=40))) > 0.93


def test_slowest_worker_keeps_a_minimum_load() -> None:
    """A machine that is a hundred times slower gets a twentieth of the samples, and stays in the measurements."""
    loads = ProportionalLoad(Synchronous(samples=40))
    run = ran(loads, machines(3, 100.0), torch.zeros(3_000), "seconds>=800")
    sizes = [samples_in(one.task.spans) for one in actions(run, Start) if one.task.node == "m2"]
    assert sizes[0] == 40
    assert set(sizes[1:]) == {2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: BackupTasks(ProportionalLoad(Synchronous(samples=40))),
        lambda: ProportionalLoad(BackupTasks(Synchronous(samples=40))),
    ],
)
def test_backup_tasks_let_slow_workers_be_measured(make: Callable[[], Strategy]) -> None:
    alone, both = (
        ran(strategy, machines(4, 5.0), torch.zeros(30_000), "seconds>=300")
        for strategy in (ProportionalLoad(Synchronous(samples=40)), make())
    )
    assert both.summary["samples_merged"] > 0.9 * alone.summary["samples_merged"]


@pytest.mark.parametrize("around", [False, True])
def test_small_load_of_a_slow_worker_is_not_late(around: bool) -> None:
    """Two of four workers are three times slower and get a third of the samples. Their tasks are rarely copied.

    Both orders of the wrappers are tested.
    """
    fleet = [
        oddlot.Machine(f"m{n}", PACE * (3 if n > 1 else 1), oddlot.machines.Lognormal(0.2)) for n in range(4)
    ]
    loads = ProportionalLoad(Synchronous(samples=40))
    backs = BackupTasks(loads) if around else ProportionalLoad(BackupTasks(Synchronous(samples=40)))
    run = ran(backs, fleet, torch.zeros(8_000), "epochs>=1")
    assert run.summary["samples_wasted"] < 0.05 * run.summary["samples_assigned"]


def test_tasks_from_a_workers_own_weights_are_not_copied() -> None:
    averaging = BackupTasks(oddlot.ElasticAveraging(steps=2), slow=1.0)
    run = ran(averaging, machines(3, 30.0), torch.zeros(100), "epochs>=1")
    spans = [action.task.spans for action in actions(run, Start)]
    assert len(spans) == len(set(spans))


def test_deadline_sets_few_alarms() -> None:
    """If no task reaches the deadline, the run has fewer alarms than tasks."""
    tasks = Asynchronous(samples=2 * BATCH)
    run = ran(Deadline(tasks, 50 * BATCH * PACE), machines(4), torch.zeros(4_000), "epochs>=1")
    assert not actions(run, HandOver)
    assert sum(type(record.event).__name__ == "Ticked" for record in run.records) < 12


@dataclass
class Own(Backups):
    """A user-defined strategy with settings named like built-in settings, but with another meaning."""

    steps: str = "auto"
    loads: float = 0.5


@pytest.mark.parametrize(
    ("inner", "setting"),
    [
        (Synchronous(), "inner.samples"),
        (Synchronous(BATCH), "inner.samples"),
        (Synchronous(BATCH + 1), "inner.samples"),  # the extra sample is added to the minibatch
        (Synchronous(2 * BATCH), ""),
        (BackupTasks(Synchronous()), "inner.inner.samples"),
        (ProportionalLoad(Synchronous()), ""),
        (LocalSGD(steps=1), "inner.steps"),
        (LocalSGD(steps=2), ""),
        (oddlot.AdaptiveLoad(), "inner.loads"),
        (oddlot.AdaptiveLoad(loads=(2 * BATCH,)), ""),
        (oddlot.AdaptiveLoad(((1, BATCH, 1.0),)), "inner.table"),
        (VCASGD(), ""),
        (Own(), ""),
    ],
)
def test_deadline_of_one_minibatch_tasks_warns(
    recwarn: pytest.WarningsRecorder, inner: Strategy, setting: str
) -> None:
    ran(Deadline(inner), machines(2), torch.zeros(40), "epochs>=1", shards=4)
    message = [
        each.message for each in recwarn if getattr(each.message, "code", "") == "deadline_of_one_minibatch"
    ]
    assert len(message) == bool(setting)
    for warning in message:
        check(warning, "deadline_of_one_minibatch", setting=setting)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (Synchronous(), ["local_optimizer", "keep_optimizer"]),
        (BackupTasks(oddlot.Asynchronous()), ["local_optimizer", "keep_optimizer"]),
        (LocalSGD(), []),
        (BackupTasks(LocalSGD()), []),
        (VCASGD(), []),
        (Own(), []),
    ],
    ids=["gradients", "inside", "steps", "steps inside", "weights", "of a user's"],
)
def test_local_optimizer_without_local_steps_warns(
    recwarn: pytest.WarningsRecorder, strategy: Strategy, settings: list[str]
) -> None:
    job = a_job(local_optimizer=torch.optim.Adam, keep_optimizer=True)
    Recipe(job, strategy, fleet(), RunConfig(until="epochs>=1"))
    message = [each.message for each in recwarn if getattr(each.message, "code", "") == "no_local_steps"]
    assert len(message) == bool(settings)
    for warning in message:
        check(warning, "no_local_steps", settings=settings)


def test_copy_has_a_deadline() -> None:
    story = """strategy BackupTasks(Deadline(Synchronous(samples=24), 3.0), slow=1.0)
data size=96 in_flight=1 batch=8
join a
join b
wait 1
finish a
finish b
finish a
wait alarm
wait 9
"""
    message = run_story(story)
    assert message.count("hand over") == 2, message


@pytest.mark.parametrize("seconds", [0.9, 1.5])
def test_copy_of_a_handed_over_task_has_a_deadline(seconds: float) -> None:
    story = f"""strategy BackupTasks(Deadline(Synchronous(samples=24), 1.0), slow=2.0)
data size=96 in_flight=1 batch=8
join a
join b
wait {seconds}
finish a
finish b
wait 0.2
finish a
wait alarm
wait alarm
wait 5
"""
    message = run_story(story)
    assert "> assign a:5 24 [0:72-96] v1" in message, message
    assert "> hand over a:5" in message, message


def test_handed_over_updates_are_measured() -> None:
    """Round times are fitted even if every task exceeds the batch size and is handed over before its end."""
    strategy = Deadline(oddlot.AdaptiveLoad(loads=(5, 10, 20)), 4 * PACE)
    model = PlainModel([0.0] * 4_000)
    run = played(strategy, machines(4), model, BATCH, versions=30)
    assert any(isinstance(record.event, RoundTimesFitted) for record in run.records)


def test_worker_does_not_copy_its_own_task() -> None:
    """A slow worker with a free slot gets a new task, and another worker copies its task."""
    story = """strategy BackupTasks(Synchronous(samples=8), slow=1.0)
data size=400 in_flight=2 batch=8
join a
join b
wait 1
finish a
finish b
"""
    message = run_story(story)
    assert "> assign b:5 8 [0:8-16]" in message, message
    assert "> assign a:6 8 [0:24-32]" in message, message


def test_late_task_is_copied_by_the_next_idle_worker() -> None:
    """A late task is copied as soon as another worker is idle, before the next alarm."""
    story = """strategy BackupTasks(Synchronous(samples=8))
data size=400 in_flight=2 batch=8
join b
join c
wait 1
finish c
finish c
wait 0.2
finish b
finish b
wait 1
finish c
wait 0.65
wait 0.05
finish b
"""
    message = run_story(story)
    assert "> assign c:8 8 [0:56-64]" in message, message
    assert message.endswith("finish b\n> assign b:9 8 [0:56-64] v1\n"), message


@pytest.mark.parametrize("wrap", [BackupTasks, partial(Deadline, seconds=2.0), ProportionalLoad])
@pytest.mark.parametrize("between", [lambda strategy: strategy, Watched])
def test_wrapping_a_strategy_twice_in_the_same_class_raises(
    wrap: Callable[[Strategy], Strategy], between: Callable[[Strategy], Strategy]
) -> None:
    inside = between(wrap(Synchronous()))
    with raises(oddlot.UsageError, "wrapper_twice"):
        wrap(inside)


def test_new_worker_gets_a_task_while_another_computes_a_copy() -> None:
    story = """strategy BackupTasks(Quorum(LocalSGD(steps=1), quorum=1.0), slow=1.0)
data size=400 in_flight=1 batch=8
join a
join b
wait 1
finish a
finish b
wait 1
finish a
join c
"""
    message = run_story(story)
    assert "> assign a:5 8 [0:24-32] v1" in message, message
    assert "> assign c:6 8" in message, message


# --- bias ------------------------------------------------------------------------------------------

RISING = torch.arange(400.0) // 100
"""The numbers 0, 1, 2 and 3, a hundred times each."""
LR = 0.015


@pytest.mark.parametrize(
    "strategy",
    [
        FastestK(k=3),
        oddlot.AdaptiveK(k=3),
        oddlot.AdaptiveLoad(),
        BackupTasks(FastestK(k=3), slow=1.2),
        ProportionalLoad(Synchronous(samples=10)),
        Deadline(Synchronous(samples=20), 10 * PACE),
    ],
    ids=lambda strategy: repr(strategy).partition("(")[0],
)
def test_slow_worker_does_not_bias_the_model(strategy: Strategy) -> None:
    """The model learns the mean of all numbers, although a slow worker has the only shard with its number.

    A strategy that discards late updates would never merge the slow worker's number.
    """
    assert mean_learnt(strategy, 4) == pytest.approx(1.5, abs=0.2)


@pytest.mark.parametrize("strategy", [FastestK(k=3), oddlot.AdaptiveLoad(), Quorum(LocalSGD(steps=1))])
def test_slow_worker_has_its_share_of_samples_during_a_run(strategy: Strategy) -> None:
    """At 390 s of about 400 s, each worker's shard has at least 0.9 of the merged samples of any other shard."""
    run = played(strategy, machines(4, 20.0), in_shards(4), BATCH, seconds=390)
    merged, given = Counter[int](), dict[str, Any]()
    for record in run.records:
        for action in record.actions:
            if isinstance(action, Start):
                given[action.task.id] = action.task.spans
            elif isinstance(action, Step):
                for update in action.shares:
                    for span in given[update]:
                        merged[span.start // 100] += span.stop - span.start
    assert min(merged.values()) > 0.9 * max(merged.values()), merged


def test_missing_shard_biases_the_model() -> None:
    """Without the slow worker's shard the result differs, so `test_slow_worker_does_not_bias_the_model` can fail."""
    assert mean_learnt(FastestK(k=3), 3) == pytest.approx(1.0, abs=0.2)


def test_plain_model_learns_the_same_weights_as_pytorch() -> None:
    run = ran(FastestK(k=3), machines(4, 20.0), Shards.of([RISING.numpy()], 4), "epochs>=3", lr=LR)
    model: Any = run.model
    assert mean_learnt(FastestK(k=3), 4, epochs=3) == pytest.approx(model.weight.item(), rel=1e-5)


def in_shards(shards: int) -> PlainModel:
    """Return a model of the first `shards` shards. Its loss is the squared distance of the weight from the numbers."""

    def distance(weights: Sequence[float], mean: float) -> list[float]:
        return [weights[0] - mean]

    cuts = tuple(range(0, 100 * shards + 1, 100))
    return PlainModel(RISING.tolist()[: cuts[-1]], distance, lr=LR, weights=[[0.0]], cuts=cuts)


def mean_learnt(strategy: Strategy, shards: int, epochs: int = 20) -> float:
    """Return the learned weight if one of four workers is 20 times slower."""
    model = in_shards(shards)
    played(strategy, machines(4, 20.0), model, BATCH, epochs=epochs)
    return model.weights[-1][0]


def test_mean_of_handed_over_updates_is_unbiased() -> None:
    """One step from 0 with learning rate 1 leads to the mean of all computed samples, 1.5 on average."""
    deadline = Deadline(Synchronous(samples=40), 10 * PACE)
    ends, counts = [], set()
    for seed in range(80):
        run = ran(deadline, machines(3, 3.0), RISING, "versions>=1", lr=1.0, seed=seed)
        model: Any = run.model
        ends.append(model.weight.item())
        counts.add(
            tuple(record.event.update.samples for record in run.records if isinstance(record.event, Arrived))
        )
    assert counts == {(10, 10, 5)}
    assert fmean(ends) == pytest.approx(1.5, abs=4 * 1.118 / (25 * 80) ** 0.5)


def test_partial_update_counts_in_proportion_to_its_samples() -> None:
    run = ran(Deadline(Synchronous(samples=40), 10 * PACE), machines(3, 3.0), RISING, "versions>=1")
    (step,) = actions(run, Step)
    assert list(step.shares.values()) == pytest.approx([0.4, 0.4, 0.2])
