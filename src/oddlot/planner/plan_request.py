"""The arguments of `plan`: their checks, the goal, and the setups to choose from."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.validation import AboveZero, Must, at_least, check_settings
from oddlot.history.goals import Goal, Term
from oddlot.history.metrics import GOAL_FIGURES
from oddlot.machines.market import Fleet, all_machines, names_in
from oddlot.planner.candidates import Setup, group_counts, in_groups
from oddlot.planner.prediction import Minimize
from oddlot.planner.timeline import check_predictable
from oddlot.run.config import RunConfig
from oddlot.strategies.synchronous import Synchronous
from oddlot.train.job import Job
from oddlot.wire.codec import Codec
from oddlot.wire.registry import codec_of


def goal_of(job: Job, config: RunConfig) -> tuple[Term, tuple[float, float, float]]:
    """Return the metric of the goal, and the limits: seconds, dollars and epochs."""
    if not (config.until or job.until):
        message = "until is missing: pass a goal with a metric, such as until='accuracy>=0.95' "
        message += "(--until 'accuracy>=0.95')"
        raise UsageError(message, "missing_setting", name="until")
    goal = Goal.parse(config.until or job.until, job.metrics, job.eval_data is not None)
    targets = [term for term in goal.terms if term.figure not in GOAL_FIGURES]
    if len(targets) != 1:
        message = (
            f"until = {str(goal)!r}: a plan needs a goal with one metric, such as accuracy>=0.95, "
            "because candidates learn at different speeds per epoch"
        )
        raise UsageError(message, "goal_without_metric", "until", given=str(goal))
    if job.eval_data is None:
        message = (
            f"a plan needs evaluation data to decide whether {targets[0]} is reached: set Job(eval_data=...)"
        )
        raise UsageError(message, "no_evaluation_set", "eval_data")
    samples = job.sample_order().size
    limit = {term.figure: term.value for term in goal.terms}
    seconds = min(limit.get("seconds", inf), 3600 * limit.get("hours", inf))
    epochs = min(limit.get("epochs", inf), limit.get("samples", inf) / samples)
    return targets[0], (seconds, limit.get("dollars", inf), epochs)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Arguments of `plan` that are checked by their types."""

    minimize: Annotated[Minimize, Must("time or dollars", lambda value: value in ("time", "dollars"))]
    deadline_hours: AboveZero | None
    budget_dollars: AboveZero | None
    share: Annotated[float, Must("above 0 and below 1", lambda value: 0 < value < 1)]
    rehearsals: Annotated[int, at_least(0)]

    def __post_init__(self) -> None:
        check_settings(self, of="")


def check(job: object, fleet: object, request: Request) -> None:
    """Raise UsageError if an argument is invalid."""
    if not isinstance(job, Job):
        raise InvalidValue("job", job, "an oddlot.Job(model, data, loss)")
    if not isinstance(fleet, Fleet):
        raise InvalidValue("fleet", fleet, "a Fleet, for example from oddlot.read_fleet(path)")
    has_prices = fleet.hub.dollars_per_hour or any(
        machine.dollars_per_hour for machine in all_machines(fleet.machines)
    )
    if not has_prices and (request.minimize == "dollars" or request.budget_dollars is not None):
        message = "no machine of the fleet has a price, so costs cannot be compared: set dollars_per_hour"
        raise UsageError(message, "no_prices", "fleet")


def setups_of(
    job: Job,
    fleet: Fleet,
    strategies: Sequence[Strategy] | None,
    batch_sizes: Sequence[int] | None,
    codecs: Sequence[Codec | str | None],
) -> list[Setup]:
    """Return the combinations of these choices. Raise UsageError if one is invalid."""
    workers = len(names_in(fleet.machines))
    if strategies is None:
        strategies = in_groups(Synchronous(), group_counts(workers))
    batch_sizes = (job.batch_size,) if batch_sizes is None else batch_sizes
    given = {"strategies": strategies, "batch_sizes": batch_sizes, "codecs": codecs}
    for name, values in given.items():
        if isinstance(values, str) or not values:
            raise InvalidValue(name, values, "a list with at least one value")
    for strategy in strategies:
        if not isinstance(strategy, Strategy):
            raise InvalidValue("strategies", strategy, "a list of strategies, such as Synchronous()")
        check_predictable(strategy)
        strategy.validate(workers, job.metrics)
    for batch in batch_sizes:
        if type(batch) is not int or batch < 1:
            raise InvalidValue("batch_sizes", batch, "a list of whole numbers, each at least 1")
    encodings = [codec_of(each) if isinstance(each, str) else each for each in codecs]
    return [
        Setup(strategy, batch, codec)
        for codec in encodings
        for batch in batch_sizes
        for strategy in strategies
    ]
