"""The store, metrics, goal and schedules of one host of a run: of the hub, or of each peer of a mesh."""

from copy import deepcopy

from oddlot.core.conductor import Conductor
from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.history.goals import TIME_FIGURES, Goal, Term
from oddlot.history.metrics import Tally
from oddlot.model.block_pool import BlockSource
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.null_store import NullStore
from oddlot.model.update_gates import standard_gates
from oddlot.model.weight_store import WeightStore
from oddlot.run.recipe import Recipe
from oddlot.run.watchdogs import warn_of_not_measured
from oddlot.train.learning_rates import SchedulerRates, rates_of

HUNG_MEASURE_SECONDS = 600.0
"""Seconds that a run with a goal of time or cost waits for its final metrics."""


class Session:
    """The parts that a hub and a peer have in common.

    A host has a `goal`, and counts its own records in `tally`, with `tally.size` samples per epoch. It owns its
    initial `weights`. With `saves_first`, a checkpoint is due after its first merge.
    """

    def __init__(
        self,
        recipe: Recipe,
        conductor: Conductor,
        weights: FlatBuffer,
        tally: Tally,
        goal: Goal,
        pool: BlockSource | None = None,
        *,
        saves_first: bool = False,
    ) -> None:
        self.recipe, self.conductor, self.tally, self.goal = recipe, conductor, tally, goal
        self.rates = rates_of(recipe.job, tally.size)
        self._followed = 0
        """Number of evaluations that `follow_metrics` has received."""
        self.store = (WeightStore if recipe.engine.computes else NullStore)(
            weights,
            recipe.rule,
            pool,
            version=conductor.version,
            rates=self.rates,
            max_grad_norm=recipe.job.max_grad_norm,
            ema_decay=recipe.job.ema_decay,
            gates=(*standard_gates(recipe.config.max_update_ratio), *deepcopy(recipe.config.gates)),
            combine=recipe.config.combine,
        )
        self.evaluates = recipe.job.eval_data is not None and recipe.engine.computes
        self.evaluation = recipe.config.evaluate_every.reminder(tally)
        self.checkpoint = recipe.config.checkpoint_every.reminder(tally)
        self.saves_after = tally.versions if saves_first else None
        """Version of the first checkpoint. None if no first checkpoint is due."""
        self.may_not_wait = False
        """Whether the goal that was reached is a time or a cost."""

    def follow_metrics(self, record: Record) -> None:
        """Pass the metrics of an evaluation to a scheduler that follows one. The tally has counted the record."""
        if isinstance(record.event, Evaluated) and isinstance(self.rates, SchedulerRates):
            made = self.tally.quality.history[self._followed]
            self._followed += 1
            self.rates.evaluated(record.event.metrics, self.recipe.config.evaluate_every.interval(made))

    def reached(self) -> Term | None:
        """Return the term of the goal that is reached. None if no term is."""
        met = self.goal.reached(self.tally)
        self.may_not_wait = met is not None and met.figure in TIME_FIGURES
        return met

    @property
    def reached_epochs(self) -> str:
        """Return the epochs term of the goal as text if all samples are merged. Empty otherwise."""
        return self.goal.by_epochs if self.conductor.done else ""

    def evaluation_is_due(self) -> bool:
        """Return whether an evaluation is due. Do not call this during an evaluation."""
        return self.evaluates and self.evaluation.due(self.tally)

    def waits_for_evaluation(self) -> bool:
        """Return whether merges wait for the evaluation that is running.

        They do in exact rounds, because its metrics may end the run, and if a scheduler follows it. They also do if the
        next evaluation is due and is not due by time: otherwise it would be left out.
        """
        if self.recipe.traits.exact:
            return True
        if isinstance(self.rates, SchedulerRates) and self.rates.follows_metric:
            return True
        return self.evaluation.every.unit != "seconds" and self.evaluation.would_be_due(self.tally)

    def gives_up_measuring(self, since: float, now: float) -> bool:
        """Return whether the run ends without its final metrics, and warn if it does.

        A run that reached a goal of time or cost waits for them for at most 600 s, counted from `since`.
        """
        if not self.may_not_wait or now - since < HUNG_MEASURE_SECONDS:
            return False
        warn_of_not_measured(self.conductor.version, HUNG_MEASURE_SECONDS)
        return True

    def checkpoint_is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        is_due = self.checkpoint.due(self.tally)
        is_first = self.saves_after is not None and self.tally.versions > self.saves_after
        self.saves_after = None if is_first else self.saves_after
        return is_due or is_first
