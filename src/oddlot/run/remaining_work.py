"""The work of a run until its goal, for a buying policy."""

from dataclasses import replace
from functools import partial

from oddlot.core.conductor import Conductor
from oddlot.engines.base import RunData
from oddlot.machines.buying import Work
from oddlot.run.checks import UPDATE
from oddlot.run.recipe import Recipe


def with_work(data: RunData, recipe: Recipe, conductor: Conductor) -> RunData:
    """Return the data of an engine, with the work of the run."""
    return replace(data, work=partial(work_of, recipe, conductor))


def work_of(recipe: Recipe, conductor: Conductor, epochs: float | None) -> Work | None:
    """Return the work of `epochs` or, if None, of the goal. Return None if the goal is not a number of samples.

    Of several terms of the goal, the one with the least work counts. A version counts as the samples of its step.
    """

    def merged() -> float:
        return conductor.ledger.merged_in_all

    if epochs is not None:
        return Work(epochs * recipe.samples, merged)
    batch = recipe.effective_batch
    of_version = batch.samples if batch and batch.step == UPDATE else recipe.job.batch_size
    found = list[Work]()
    for term in recipe.goal.terms:
        match term.figure:
            case "epochs":
                found.append(Work(term.value * recipe.samples, merged))
            case "samples":
                found.append(Work(term.value, merged))
            case "versions":
                found.append(Work(term.value * of_version, lambda: float(conductor.version * of_version)))
    return min(found, key=lambda work: work.samples, default=None)
