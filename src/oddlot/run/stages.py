"""`fit_stages`: train a model in several stages, as segments of one run."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from os import PathLike
from typing import Any, Unpack

from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import CheckpointError, UsageError
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
    new state. A resumed run continues in the stage of its newest checkpoint. A goal of a callback ends the run.

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
    stages = check_stages(stages)
    check_resume(out, resume, new_segment, force)
    _check_arguments(out, settings)
    ends = list(accumulate(stage.epochs for stage in stages))
    goals = [f"epochs>={end}" for end in ends]
    folder = RunFolder(out, checkpoints)
    jobs = [stage.job_from(end - stage.epochs) for stage, end in zip(stages, ends, strict=True)]
    strategies = [strategy if stage.strategy is None else stage.strategy for stage in stages]
    _check_all(jobs, strategies, engine, goals, folder, settings)
    passed_on = [
        AcrossSegments(as_callback(one), goals[:-1].__contains__, Goal.parse(goals[-1])) for one in callbacks
    ]
    about = {**(settings.get("about") or {}), STAGES: [stage.name for stage in stages]}
    first, is_switched = _position(stages, folder) if resumes(folder, resume) else (0, False)
    has_server = engine_of(engine).kind == Local.kind
    with _ending_early_servers():
        for at in range(first, len(stages)):
            is_followed = has_server and at + 1 < len(stages)
            run = fit(
                jobs[at],
                strategies[at],
                engine,
                out=out,
                resume=resume,
                new_segment=new_segment or is_switched,
                force=force,
                checkpoints=checkpoints,
                callbacks=[*passed_on, *([EarlyStart(ends[at])] if is_followed else [])],
                quiet=quiet,
                **_settings(stages[at], settings, goals[at], about),
            )
            if run.ended != goals[at]:
                break
            resume, force, new_segment = "latest", False, True
    return run


def _settings(stage: Stage, settings: RunSettings, until: str, about: Mapping[str, Any]) -> RunSettings:
    barrier = settings.get("epoch_barrier", False) or stage.epoch_barrier
    own = RunSettings(until=until, about=about, epoch_barrier=barrier)
    return {**settings, **own}


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


def _check_all(
    jobs: Sequence[Job],
    strategies: Sequence[Strategy | str],
    engine: EngineConfig | str | None,
    goals: Sequence[str],
    folder: RunFolder,
    settings: Mapping[str, Any],
) -> None:
    """Raise UsageError if a later stage could not start. `fit` shows the warnings again."""
    for job, strategy, until in zip(jobs, strategies, goals, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = RunConfig.of({**settings, "until": until})
            recipe = Recipe(job, strategy_of(strategy), engine_of(engine), config)
        if recipe.traits.mesh:
            name = type(recipe.strategy).__name__
            message = (
                f"stages need a run with a hub, and {name} runs on a mesh of peers: use another strategy"
            )
            raise UsageError(message, "stages_without_hub", "strategy", strategy=name)
        check_keep_best(recipe, folder)


def _position(stages: Sequence[Stage], folder: RunFolder) -> tuple[int, bool]:
    """Return the index of the stage to resume, and whether run.json already lists a later one.

    The newest checkpoint is then older than the newest segment, because the run was killed after the switch.
    """
    newest = newest_segment(folder)
    if newest is None:
        return 0, False
    names = [stage.name for stage in stages]
    if (name := newest.get(STAGE)) not in names:
        message = (
            f"the run in {folder.path} is in {f'stage {name!r}' if name else 'no stage'}, but the stages are "
            f"{', '.join(names)}: resume it with its own stages, or use another folder"
        )
        raise CheckpointError(message, "unknown_stage", path=str(folder.path), stage=name, stages=names)
    return names.index(name), segments_of(folder.settings())[-1].get(STAGE) != name
