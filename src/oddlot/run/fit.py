"""`fit`: train a job with a strategy on an engine."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from os import PathLike
from typing import Unpack

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.core.support.user_code import check_not_importing
from oddlot.engines.base import EngineConfig
from oddlot.engines.local.config import Local
from oddlot.faults.plan import Chaos
from oddlot.history.callback import Callback, RecordFunction, as_callback
from oddlot.history.folder_owner import claim
from oddlot.history.resume_mode import resumes
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import FAILED, in_short
from oddlot.history.run_settings import Resume, resume_mode, segment_without_resume
from oddlot.run.best_weights import check_keep_best
from oddlot.run.checks import measured
from oddlot.run.config import RunConfig, RunSettings, settings_text, with_settings
from oddlot.run.mesh import prepared_mesh
from oddlot.run.recipe import Recipe
from oddlot.run.result import INTERRUPTED, Run
from oddlot.run.segments import check_has_hub
from oddlot.run.training import prepared
from oddlot.strategies.registry import strategy_of
from oddlot.train.job import Job

logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP stopped the run cleanly.

    `run` is the result so far. `signal` is the number of the signal.
    """

    def __init__(self, run: Run, signal: int) -> None:
        saved = f', saved in {run.folder} (resume="latest" continues it)' if run.folder else ""
        super().__init__(
            f"stopped at version {run.summary['versions']:,}{saved}; the attribute `run` has the model"
        )
        self.run, self.signal = run, signal


def fit(
    job: Job,
    strategy: Strategy | str,
    engine: EngineConfig | str | None = None,
    *,
    out: str | PathLike[str] | None = None,
    resume: Resume | None = None,
    new_segment: bool = False,
    force: bool = False,
    checkpoints: str | PathLike[str] | None = None,
    callbacks: Sequence[Callback | RecordFunction] = (),
    quiet: bool = False,
    **settings: Unpack[RunSettings],
) -> Run:
    """Train a job with a strategy, on local worker processes, a Ray cluster or a simulated fleet.

    Args:
        job: The model, the data and the loss.
        strategy: Which workers to wait for and how to merge updates, such as `Synchronous()`, or the name of a strategy
            with default settings, such as `"synchronous"`.
        engine: `Local(workers=...)`, the default, `Ray(workers=...)` or `Simulated(machines)`. `"local"` and `"ray"`
            stand for engines with default settings.
        out: Run folder for the log, checkpoints and the model. If None, nothing is saved.
        resume: `"latest"` continues from the newest complete checkpoint of the run in `out`, or of the run at
        `checkpoints` if `out` has no run. `"auto"` does the same, and starts a new run if no run exists.
        new_segment: With `resume`, allow another strategy, optimizer (also `lr_schedule`, `max_grad_norm` and
            `keep_optimizer`) and batch size. If one differs, a new segment of the run starts at the checkpoint. The
            state of the hub's optimizer is kept if its kind and the layout of its state are the same. Not on a mesh.
        force: Overwrite the run in `out`.
        checkpoints: Another location for checkpoints: a folder, or a URL that fsspec reaches (`s3://bucket/run`). It
            has all that another machine needs to resume the run in a new `out`.
        callbacks: `Callback` objects, such as `oddlot.callbacks.EarlyStopping()`, and functions of a `Record`. A
            function receives each record after its actions. A callback that raises `StopRun` ends the run as a goal
            does.
        quiet: Show no progress. Otherwise a terminal shows a line, and other outputs get a line every 5 seconds.
        **settings: {settings}

    Returns:
        The trained model, the metrics, the log and the summary.

    Raises:
        UsageError: The arguments do not fit together. Nothing was started.
        CheckpointError: The run in `out` cannot be resumed.
        JobError: The job's code raised, or its numbers are not finite. With the code `cluster_lost`, the head of the
            Ray cluster ended, and the run is saved. Ray ends this process about 15 s later, so resume in a new one.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP stopped the run, and its state is saved. It is a KeyboardInterrupt.
    """
    check_not_importing()
    check_resume(out, resume, new_segment, force)
    _check_folders(out, checkpoints, settings.get("chaos"), quiet)
    config = RunConfig.of(settings, signature(fit).parameters)
    _check_callbacks(callbacks)
    recipe = Recipe(job, strategy_of(strategy), engine_of(engine), config)
    for one in map(as_callback, callbacks):
        one.validate(measured(job, recipe.engine))
    folder = RunFolder(out, checkpoints) if out is not None else None
    check_keep_best(recipe, folder)
    if new_segment:
        check_has_hub(recipe, folder)
    continues = folder is not None and resumes(folder, resume)
    with (
        claim(folder, continues, force) if folder else nullcontext(),
        (
            prepared_mesh(recipe, folder, continues)
            if recipe.traits.mesh
            else prepared(recipe, folder, continues, new_segment)
        ) as training,
        _progress(quiet) as line,
    ):
        if batch := recipe.effective_batch:
            logger.info("%s", batch)
        training.start_callbacks([*line, *callbacks])
        try:
            run = training.run()
        except BaseException as error:
            failed = isinstance(error, Exception)
            training.callbacks.end(f"{FAILED}{in_short(error)}" if failed else INTERRUPTED)
            raise
        training.callbacks.end(run.ended)
    if run.ended == INTERRUPTED:
        raise Interrupted(run, training.stop.signal)
    return run


if fit.__doc__ is not None:  # it is under python -OO
    fit.__doc__ = fit.__doc__.replace("        **settings: {settings}", settings_text())
fit.__signature__ = with_settings(signature(fit))  # type: ignore[attr-defined]  # functions may have one


def engine_of(given: EngineConfig | str | None) -> EngineConfig:
    """Return the given engine, or the engine of this name with default settings."""
    if given == "ray":
        from oddlot.engines.ray.config import Ray

        return Ray()
    if isinstance(given, str) and given != "local":
        raise UnknownName("engine", given, ("local", "ray"), key="engine")
    return Local() if given is None or isinstance(given, str) else given


@contextmanager
def _progress(quiet: bool) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks that show progress: one line on a terminal, or a line every few seconds."""
    if quiet or sys.stderr is None:
        yield ()
        return
    from oddlot.report.progress_line import progress_line, progress_lines

    # In a notebook, or if a logger replaces it, stderr has no `isatty` or is not a terminal.
    with (progress_line if getattr(sys.stderr, "isatty", bool)() else progress_lines)() as line:
        yield (line,)


def _check_callbacks(callbacks: object) -> None:
    are_valid = isinstance(callbacks, Sequence) and all(
        isinstance(one, Callback) or (callable(one) and not isinstance(one, type)) for one in callbacks
    )
    if not are_valid:
        raise InvalidValue("callbacks", callbacks, "a list of Callback objects and functions of a record")


def _check_flags(**flags: object) -> None:
    """Raise InvalidValue if one of these is not True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidValue(name, flag, "True or False")


def check_resume(out: object, resume: object, new_segment: object, force: object) -> None:
    """Raise UsageError if these arguments do not fit together."""
    resume_mode(resume)
    _check_flags(force=force, new_segment=new_segment)
    if resume and force:
        message = "resume continues a run and force overwrites it: use one of them"
        raise UsageError(message, "resume_and_force")
    if new_segment and not resume:
        raise segment_without_resume()
    if (resume or force) and out is None:
        message = "resume and force need a run folder: pass out=..."
        raise UsageError(message, "missing_setting", name="out")


def _check_folders(out: object, checkpoints: object, chaos: object, quiet: object) -> None:
    """Raise UsageError if these arguments do not fit together."""
    _check_flags(quiet=quiet)
    for name, path in {"out": out, "checkpoints": checkpoints}.items():
        if not isinstance(path, str | PathLike | None):
            raise InvalidValue(name, path, "a folder's path")
    if checkpoints == "":
        message = "checkpoints is empty: pass a folder or a URL, or leave it out"
        raise UsageError(message, "empty_value", "checkpoints", name="checkpoints")
    if checkpoints is not None and out is None:
        message = "checkpoints needs a run folder: pass out=... (--out)"
        raise UsageError(message, "missing_setting", "checkpoints", name="out")
    if isinstance(chaos, Chaos) and out is None and any(fault.kind == "kill_hub" for fault in chaos.faults):
        message = "kill_hub kills this process, and the run would be lost: pass out=..."
        raise UsageError(message, "missing_setting", "chaos", name="out")
