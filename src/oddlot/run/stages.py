"""`fit_stages`: train a model in several stages, as segments of one run."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from os import PathLike
from typing import Any, NamedTuple, Unpack

from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.core.support.user_warnings import once
from oddlot.engines.base import EngineConfig
from oddlot.engines.local.config import Local
from oddlot.engines.local.fork_client import end_early, start_early
from oddlot.history.callback import Callback, RecordFunction, RunProgress, as_callback
from oddlot.history.goals import Goal
from oddlot.history.resume_mode import resumes
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_settings import STAGES, Resume
from oddlot.history.segments import STAGE, segments_of
from oddlot.run.best_weights import check_keep_best
from oddlot.run.config import RunConfig, RunSettings
from oddlot.run.fit import check_resume, engine_of, fit
from oddlot.run.recipe import Recipe
from oddlot.run.result import Run
from oddlot.run.resume import newest_segment
from oddlot.run.segment_callbacks import AcrossSegments
from oddlot.strategies.registry import strategy_of
from oddlot.train.job import Job
from oddlot.train.stages import Stage, check_stages


def fit_stages(
    stages: Sequence[Stage],
    strategy: Strategy | str,
    engine: EngineConfig | str | None = None,
    *,
    out: str | PathLike[str],
    resume: Resume | None = None,
    new_segment: bool = False,
    force: bool = False,
    checkpoints: str | PathLike[str] | None = None,
    callbacks: Sequence[Callback | RecordFunction] = (),
    quiet: bool = False,
    **settings: Unpack[RunSettings],
) -> Run:
    """Train a model in several stages, such as pre-training and fine-tuning. Each stage is a segment of one run.

    A stage starts with the weights of the previous one, when all its epochs are merged. The state of the hub's
    optimizer is kept if its kind is the same, for each parameter: a parameter that an earlier stage did not train has a
    new state. A resumed run continues in the stage of its newest checkpoint. A callback that raises `StopRun` ends the
    run.

    Args:
        stages: The stages in their order.
        strategy: As in `oddlot.fit`, for stages without their own strategy. Not a strategy on a mesh.
        engine: As in `oddlot.fit`.
        out: Run folder.
        resume: As in `oddlot.fit`.
        new_segment: As in `oddlot.fit`, for the stage that a resumed run continues in.
        force: As in `oddlot.fit`.
        checkpoints: As in `oddlot.fit`.
        callbacks: As in `oddlot.fit`. They receive each record once.
        quiet: As in `oddlot.fit`.
        settings: Further keywords of `oddlot.fit`, except `until`: the epochs of the stages are the goal.

    Returns:
        The result of the last stage, with the log and the history of the complete run.

    Raises:
        UsageError: The arguments do not fit together. Nothing was started.
        CheckpointError, JobError, Interrupted: as in `oddlot.fit`.
    """
    check_resume(out, resume, new_segment, force)
    _check_arguments(out, settings)
    planned = _planned(check_stages(stages), strategy, settings)
    folder, engine = RunFolder(out, checkpoints), engine_of(engine)
    _check_all(planned, engine, folder)
    goals = [stage.goal for stage in planned]
    across = [
        AcrossSegments(as_callback(one), goals[:-1].__contains__, Goal.parse(goals[-1])) for one in callbacks
    ]
    first, is_switched = _position(planned, folder) if resumes(folder, resume) else (0, False)
    with _ending_early_servers(), once():
        for stage in planned[first:]:
            starts_next = engine.kind == Local.kind and stage is not planned[-1]
            run = fit(
                stage.job,
                stage.strategy,
                engine,
                out=out,
                resume=resume,
                new_segment=new_segment or is_switched,
                force=force,
                checkpoints=checkpoints,
                callbacks=[*across, EarlyStart(stage.end)] if starts_next else across,
                quiet=quiet,
                **stage.settings,
            )
            if run.ended != stage.goal:
                break
            resume, force, new_segment = "latest", False, True
    return run


class _PlannedStage(NamedTuple):
    """A stage in its run."""

    job: Job
    strategy: Strategy | str
    end: int
    """Epochs of the run when the stage ends."""
    settings: RunSettings

    @property
    def goal(self) -> str:
        """Return the goal of the run in this stage, as `Run.ended` has it."""
        return self.settings["until"]


def _planned(stages: Sequence[Stage], strategy: Strategy | str, settings: RunSettings) -> list[_PlannedStage]:
    """Return the stages with their place in the run."""
    about = {**(settings.get("about") or {}), STAGES: [stage.name for stage in stages]}
    planned = list[_PlannedStage]()
    for stage, end in zip(stages, accumulate(stage.epochs for stage in stages), strict=True):
        barrier = settings.get("epoch_barrier", False) or stage.epoch_barrier
        own = RunSettings(until=f"epochs>={end}", about=about, epoch_barrier=barrier)
        job = stage.job_from(end - stage.epochs)
        chosen = strategy if stage.strategy is None else stage.strategy
        planned.append(_PlannedStage(job, chosen, end, {**settings, **own}))
    return planned


@contextmanager
def _ending_early_servers() -> Iterator[None]:
    try:
        yield
    finally:
        end_early()


class EarlyStart(Callback):
    """Starts the fork server of the next stage in the last epoch of a stage: importing PyTorch takes seconds."""

    def __init__(self, end: int) -> None:
        self.end, self.has_started = end, False

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Start the fork server, once."""
        if not self.has_started and run.epochs >= self.end - 1:
            self.has_started = True
            start_early()


def _check_arguments(out: object, settings: Mapping[str, Any]) -> None:
    """Raise UsageError if the run has no folder, or a goal of its own."""
    if out is None:
        message = "a run of several stages needs a run folder: pass out=..."
        raise UsageError(message, "missing_setting", "out", name="out")
    if settings.get("until"):
        message = "the epochs of the stages are the goal of the run: leave out until"
        raise UsageError(message, "until_of_stages", "until", given=settings["until"])


def _check_all(planned: Sequence[_PlannedStage], engine: EngineConfig, folder: RunFolder) -> None:
    """Raise UsageError if a later stage could not start. `fit` shows the warnings again."""
    for stage in planned:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recipe = Recipe(stage.job, strategy_of(stage.strategy), engine, RunConfig.of(stage.settings))
        if recipe.traits.mesh:
            name = type(recipe.strategy).__name__
            message = (
                f"stages need a run with a hub, and {name} runs on a mesh of peers: use another strategy"
            )
            raise UsageError(message, "stages_without_hub", "strategy", strategy=name)
        check_keep_best(recipe, folder)


def _position(planned: Sequence[_PlannedStage], folder: RunFolder) -> tuple[int, bool]:
    """Return the index of the stage to resume, and whether run.json already lists a later one.

    The newest checkpoint is then older than the newest segment, because the run was killed after the switch.
    """
    newest = newest_segment(folder)
    if newest is None:
        return 0, False
    names = [stage.job.stage for stage in planned]
    if (name := newest.get(STAGE)) not in names:
        message = (
            f"the run in {folder.path} is in {f'stage {name!r}' if name else 'no stage'}, but the stages are "
            f"{', '.join(names)}: resume it with its own stages, or use another folder"
        )
        raise CheckpointError(message, "unknown_stage", path=str(folder.path), stage=name, stages=names)
    return names.index(name), segments_of(folder.settings())[-1].get(STAGE) != name
