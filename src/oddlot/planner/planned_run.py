"""`oddlot train --plan`: run a plan, compare its progress with the prediction, and plan again when they part."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isclose
from os import PathLike
from typing import Any, Unpack

from torch import Tensor, nn

from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.text import duration
from oddlot.engines.base import EngineConfig
from oddlot.engines.payloads import users_code
from oddlot.history.callback import Callback, RecordFunction, RunProgress, StopRun, as_callback
from oddlot.history.goals import Goal
from oddlot.history.metrics import GOAL_FIGURES, Tally
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_settings import Resume
from oddlot.machines.market import Fleet, names_in
from oddlot.planner.candidates import for_one_group, group_counts, in_groups, momentum_of, rate_of
from oddlot.planner.fleet_speed import slowed, with_merge_time
from oddlot.planner.job_size import JobSize
from oddlot.planner.plan import Plan, PlanInterrupted, plan
from oddlot.planner.plan_options import HALF
from oddlot.planner.prediction import Prediction
from oddlot.run.config import RunSettings
from oddlot.run.fit import Interrupted, fit
from oddlot.run.result import Run
from oddlot.run.segment_callbacks import AcrossSegments
from oddlot.strategies.groups import Groups
from oddlot.train.job import Job
from oddlot.train.lr_schedules import MultiStep, Schedule

PARTED = 1.25
"""Time to a loss, relative to its prediction, above which the run is planned again."""
IN_A_ROW = 2
"""Evaluations in a row above it."""
EARLY = 0.1
"""Share of the predicted time in which progress is not compared."""
MOST_PLANS = 3
"""Largest number of new plans of a run."""
SAME_RATE = 0.01
"""Relative difference of two learning rates that count as equal. Rates of plans are rounded."""
BEHIND = "behind the plan"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class After:
    """A learning rate schedule that starts at a later epoch."""

    schedule: Schedule
    epochs: float

    def __call__(self, epochs: float) -> float:
        """Return the factor after a number of further epochs."""
        return self.schedule(self.epochs + epochs)


@dataclass
class ProgressCheck(Callback):
    """A callback that ends a run whose progress is behind the prediction."""

    prediction: Prediction
    tally: Tally = field(default_factory=Tally)
    since: tuple[float, float] = (0.0, 0.0)
    """Seconds and epochs of the run at which the prediction starts."""
    goal: Goal | None = None
    loss: float = inf
    """Smallest evaluation loss so far."""
    behind: int = 0
    """Evaluations in a row that were too late."""

    def on_start(self, run: RunProgress) -> None:
        """Start to count, with the records of earlier processes."""
        self.tally, self.goal = Tally(run.samples_per_epoch), run.goal
        for record in run.earlier:
            self.tally(record)

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record, and compare the loss of an evaluation with the prediction."""
        self.tally(record)
        if not isinstance(record.event, Evaluated):
            return
        self.loss = min(self.loss, record.event.metrics.get("loss", inf))
        is_early = self.seconds < EARLY * self.prediction.seconds[1]
        if is_early or (self.goal is not None and self.goal.reached(self.tally)):
            return
        predicted = loss_at(self.prediction, self.seconds / PARTED)
        self.behind = self.behind + 1 if self.loss > predicted else 0
        if self.behind >= IN_A_ROW:
            raise StopRun(BEHIND)

    @property
    def seconds(self) -> float:
        """Return the seconds since the start of the prediction."""
        return self.tally.seconds - self.since[0]

    @property
    def slowdown(self) -> float:
        """Return the seconds per epoch, relative to the prediction."""
        epochs = self.tally.epochs - self.since[1]
        rows = [row for row in self.prediction.curve if row[1] > 0]
        if not rows or epochs <= 0:
            return 1.0
        near = min(rows, key=lambda row: abs(row[1] - epochs))
        return (self.seconds / epochs) / (near[0] / near[1])


def loss_at(prediction: Prediction, seconds: float) -> float:
    """Return the smallest predicted loss until a time, interpolated; infinity without a curve."""
    before, best = 0.0, inf
    for at, _, loss in prediction.curve:
        if at > seconds:
            part = (seconds - before) / (at - before)
            return best if loss >= best else best - part * (best - loss) if best < inf else inf
        before, best = at, min(best, loss)
    return best


def fit_planned(
    job: Job,
    strategy: Strategy,
    engine: EngineConfig,
    prediction: Prediction,
    fleet: Fleet,
    *,
    out: str | PathLike[str],
    resume: Resume | None = None,
    new_segment: bool = False,
    force: bool = False,
    checkpoints: str | PathLike[str] | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback | RecordFunction] = (),
    on_progress: Callable[[str], None] = lambda _: None,
    **settings: Unpack[RunSettings],
) -> Run:
    """Train a job as planned. If its progress is more than 25 % slower than predicted, plan again and continue.

    A new plan starts from the newest weights, on a fleet that is as much slower as the run was. It continues the run as
    a new segment. A resumed run that was planned again starts a segment with the given plan, and plans again if it is
    behind.

    Args:
        job: The planned job.
        strategy: The planned strategy.
        engine: Engine of the run.
        prediction: Prediction of the plan.
        fleet: Fleet that it was made for. A buying policy of the prediction replaces that of the fleet.
        out: Run folder.
        resume: As in `oddlot.fit`.
        new_segment: As in `oddlot.fit`.
        force: As in `oddlot.fit`.
        checkpoints: As in `oddlot.fit`.
        quiet: As in `oddlot.fit`.
        callbacks: As in `oddlot.fit`. They receive each record once.
        on_progress: Called with a line of text while a new plan is made.
        settings: Further keywords of `oddlot.fit`.

    Raises:
        UsageError: as in `oddlot.fit`, or the plan was made for a job with other samples or parameters.
        CheckpointError, JobError, Interrupted: as in `oddlot.fit`.
    """
    with users_code("the planner"):
        size = JobSize.of(job)
    prediction.check(samples=size.samples, parameters=size.parameters)
    try:
        fleet = replace(fleet, buying=prediction.buying or fleet.buying)
    except UsageError as error:  # the fleet file has changed
        raise error.inside("plan") from None
    fleet = with_merge_time(slowed(fleet, prediction.compute_factor), prediction.merge_seconds)
    passed_on = [AcrossSegments(as_callback(one), lambda ended: ended.endswith(BEHIND)) for one in callbacks]
    check = ProgressCheck(prediction)
    new_segment = new_segment or (resume is not None and _has_segments(RunFolder(out, checkpoints)))
    for remaining in reversed(range(MOST_PLANS + 1)):
        checks: list[Callback] = [check] if remaining else []
        run = fit(
            job,
            strategy,
            engine,
            out=out,
            resume=resume,
            force=force,
            new_segment=new_segment,
            checkpoints=checkpoints,
            callbacks=[*checks, *passed_on],
            quiet=quiet,
            **settings,
        )
        if not run.ended.endswith(BEHIND):
            return run
        fleet = slowed(fleet, max(1.0, check.slowdown))
        workers = min(engine.max_workers, len(names_in(fleet.machines)))
        found = _planned_again(job, strategy, workers, run, check, fleet, on_progress, settings)
        resume, force, new_segment, epochs = "latest", False, found is not None, check.tally.epochs
        here = check.tally.seconds, epochs
        if found is None:
            check = ProgressCheck(replace(check.prediction, curve=()), since=here)
            continue
        if not keeps_settings(found, job, strategy, epochs):
            job, strategy = _continued(found.job(job), epochs), found.strategy
        check = ProgressCheck(_prediction_of(found, check.prediction), since=here)
    return run


def _has_segments(folder: RunFolder) -> bool:
    """Return whether the run in a folder was planned again: it then has other settings than its first plan."""
    return folder.is_begun and len(folder.settings().get("segments", ())) > 1


def _planned_again(
    job: Job,
    strategy: Strategy,
    workers: int,
    run: Run,
    check: ProgressCheck,
    fleet: Fleet,
    on_progress: Callable[[str], None],
    settings: RunSettings,
) -> Plan | None:
    """Return a plan for this many workers from the newest weights on; None if no option is feasible."""
    logger.info(
        "%s behind the plan after %s: planning again",
        f"{check.slowdown - 1:.0%} slower per epoch, and" if check.slowdown > PARTED else "learning is",
        duration(check.tally.seconds),
    )
    groups = strategy.groups if isinstance(strategy, Groups) else 1
    schedule = job.lr_schedule
    trained = replace(
        job,
        model=partial(_with_weights, job.model, run.model.state_dict()),
        optimizer=for_one_group(job.optimizer, groups),
        lr_schedule=None if not schedule or _is_planned(schedule) else After(schedule, check.tally.epochs),
    )
    asked = check.prediction
    left = None if asked.deadline_hours is None else asked.deadline_hours - check.tally.hours
    budget = None if asked.budget_dollars is None else asked.budget_dollars - check.tally.dollars
    until = remaining_goal(settings.get("until") or job.until, job, check.tally)
    if until is None or any(value is not None and value <= 0 for value in (left, budget)):
        logger.info("the deadline, the budget or a limit is used up: the run continues as it is")
        return None
    buying = fleet.buying and replace(
        fleet.buying, deadline_hours=max(1e-9, fleet.buying.deadline_hours - check.tally.hours)
    )
    try:
        found = plan(
            trained,
            replace(fleet, buying=buying),
            strategies=in_groups(strategy, group_counts(workers)),
            minimize=asked.minimize,
            deadline_hours=left,
            budget_dollars=budget,
            on_progress=on_progress,
            **(settings | RunSettings(chaos=None, until=until)),
        )
        logger.info("new plan: %s", found.best.name)
    except PlanInterrupted as stopped:
        raise Interrupted(run, stopped.signal) from None
    except JobError as error:
        logger.info("%s: the run continues as it is", error)
        return None
    return found


def remaining_goal(until: str, job: Job, tally: Tally) -> str | None:
    """Return a goal with the rest of its limits, such as epochs and hours. None: a limit is used up."""
    terms = list[str]()
    for term in Goal.parse(until, job.metrics, job.eval_data is not None).terms:
        used = tally.value(term.figure) if term.figure in GOAL_FIGURES else 0.0
        left = term.value - (used or 0.0)
        if term.figure in GOAL_FIGURES and left <= 0:
            return None
        terms.append(str(term._replace(value=left)))
    return " or ".join(terms)


def _with_weights(make: Callable[[], nn.Module], state: dict[str, Tensor]) -> nn.Module:
    model = make()
    model.load_state_dict(state)
    return model


def _is_planned(schedule: Schedule | None) -> bool:
    """Return whether a schedule halves the learning rate, as those of plans do."""
    return isinstance(schedule, MultiStep) and schedule.factor == HALF and not schedule.warmup_epochs


def keeps_settings(found: Plan, job: Job, strategy: Strategy, epochs: float) -> bool:
    """Return whether a new plan has the settings of the job after these epochs. Its schedule then continues."""
    schedule, new = job.lr_schedule, found.job(job)
    if schedule is None or not _is_planned(schedule) or new.batch_size != job.batch_size:
        return False
    groups = [each.groups if isinstance(each, Groups) else 0 for each in (strategy, found.strategy)]
    rate = schedule(epochs) * rate_of(job.optimizer)
    return (
        groups[0] == groups[1]
        and isclose(rate_of(new.optimizer), rate, rel_tol=SAME_RATE)
        and momentum_of(new.optimizer) == momentum_of(job.optimizer)
    )


def _continued(job: Job, epochs: float) -> Job:
    """Return the job with a schedule that counts from the start of the run."""
    schedule: Any = job.lr_schedule
    if isinstance(schedule, After):
        return replace(job, lr_schedule=schedule.schedule)
    if isinstance(schedule, MultiStep):
        at = tuple(epochs + each for each in schedule.at_epochs)
        return replace(job, lr_schedule=MultiStep(at, schedule.factor))
    return job


def _prediction_of(found: Plan, before: Prediction) -> Prediction:
    best = found.best
    assert best.seconds is not None, "feasible options have a time"
    assert best.dollars is not None, "feasible options have a cost"
    return replace(
        before, bought=best.bought, seconds=best.seconds, dollars=best.dollars, curve=tuple(found.curve)
    )
