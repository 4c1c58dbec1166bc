"""Predictors by their names, and users' own by their import path."""

from collections.abc import Sequence

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import imported_class, is_import_path, trace_of
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.predictor import Predictor

PREDICTORS = {
    "learnt": "oddlot.queue.predict.learnt:LearntPredictor",
    "rolling": "oddlot.queue.predict.rolling:RollingPredictor",
}
"""Predictors by name."""


MAX_HISTORY = 20_000
"""Number of ended jobs that a new predictor is taught, the latest."""


def predictor_of(name: str) -> Predictor:
    """Return a new predictor of this name, or of the class at an import path such as `mypkg.mymodule:MyPredictor`.

    Raise UsageError if the name is unknown, its module cannot be imported, or the class needs arguments.
    """
    if name not in PREDICTORS and not is_import_path(name):
        unknown = UnknownName("predictor", name, PREDICTORS, key="predictor")
        raise unknown.with_message(f"{unknown}; or name your own class as package.module:Class")
    made_by: type[Predictor] = imported_class(
        PREDICTORS.get(name, name), object, "predictor", key="predictor"
    )
    try:
        return made_by()
    except UsageError:  # a package of the extra is missing
        raise
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        reason = trace_of(error)
        message = f"the class {name} cannot be created without arguments:\n{reason}"
        raise UsageError(
            message, "predictor_needs_arguments", "predictor", given=name, reason=reason
        ) from None


def taught_predictor(name: str, history: Sequence[tuple[JobRequest, float, float]]) -> Predictor:
    """Return a predictor by name or import path that knows ended jobs as if it had seen them live.

    It predicts each job at its submission and observes it at its end, in the order of time.

    `history`: jobs with their durations and the times of their ends.
    """
    predictor = predictor_of(name)
    jobs = sorted(history, key=lambda one: one[2])[-MAX_HISTORY:]
    ends = [(ended, 0, number) for number, (_, _, ended) in enumerate(jobs)]
    submissions = [(job.submitted, 1, number) for number, (job, _, _) in enumerate(jobs)]
    for at, is_submission, number in sorted(ends + submissions):
        job, duration, ended = jobs[number]
        if is_submission and job.submitted < ended:
            predictor.predict(job, at)
        elif not is_submission:
            predictor.observe(job, duration, ended)
    return predictor
