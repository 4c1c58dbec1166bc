"""`fit`: one verb for every engine."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from os import PathLike
from typing import Any

from oddlot.checkpoint.writer import KEEP
from oddlot.core.errors import InvalidValue, UsageError
from oddlot.core.strategy import Strategy
from oddlot.engines.base import Place
from oddlot.engines.host import Observer
from oddlot.engines.local.config import Local
from oddlot.faults.plan import Chaos
from oddlot.history.run_folder import RunFolder
from oddlot.run.goals import Every
from oddlot.run.result import INTERRUPTED, Run
from oddlot.run.spec import Recipe, Settings
from oddlot.run.training import prepared
from oddlot.train.gates import MAX_UPDATE_RATIO
from oddlot.train.job import Job
from oddlot.wire.codec import Codec

logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run has stopped cleanly. `run` holds the model and all that was reached, `signal` tells
    which of the two it was."""

    def __init__(self, run: Run, signal: int) -> None:
        saved = f", saved in {run.folder}: resume=True goes on" if run.folder else ""
        super().__init__(
            f"stopped at version {run.summary['versions']:,}{saved}; the model is in the `run` of this exception"
        )
        self.run, self.signal = run, signal


def fit(
    job: Job,
    strategy: Strategy,
    on: Place | None = None,
    *,
    until: str = "",
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    evaluate_every: str = "1 epochs",
    checkpoint_every: str = "60 seconds",
    checkpoints: str | PathLike[str] | None = None,
    keep_checkpoints: int = KEEP,
    codec: Codec | None = None,
    shards: int | None = None,
    keep_shards: bool = True,
    epoch_barrier: bool = False,
    skip_bad: bool = False,
    max_update_ratio: float | None = MAX_UPDATE_RATIO,
    chaos: Chaos | None = None,
    observers: Sequence[Observer] = (),
    about: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train the job with the strategy on worker processes of this machine, or on a simulated fleet.

    `on` is `Local(workers=...)` or `Simulated(machines, seed=...)`; nothing else changes between them. The run ends at
    `until`, such as "accuracy>=0.98 or epochs>=20" (default: the job's own). With `out`, the log, checkpoints and
    the model go into that folder; `resume` goes on from its newest whole checkpoint, `force` throws away what is there.
    `checkpoints` is another place for checkpoints, a folder or any URL that fsspec reaches (`s3://bucket/run`). All
    that another machine needs lies there too: `resume` with a new `out` fetches it. The newest `keep_checkpoints` are
    kept.
    `about` is plain data of yours that run.json keeps.

    `evaluate_every` and `checkpoint_every` are rhythms such as "100 versions", "30 seconds" or "1 epochs". `codec`
    encodes updates on their way to the hub (`Half("bf16")`; None: `NonZero()` for a job that is sparse, else
    `Plain()`). With `shards` the data are cut into so many fixed parts, and a worker is preferably given what it has
    had before; data that lie in parts (`Shards`) are cut so anyway. None: of a resumed run, its own; for strategies of
    whole shards (`VCASGD`, `FederatedAveraging`) one for each worker, or fewer of at least 10 minibatches; else 1.
    A machine keeps the shards that it has had, unless
    `keep_shards` is false: then each task brings its data along. `epoch_barrier` begins an epoch only when the one
    before is wholly merged; otherwise they overlap. Samples whose numbers are bad three times stop the run and are
    named; `skip_bad` skips them. The same goes for samples that three processes computed when they crashed, exited or
    hung. An update counts as bad numbers too if its norm is over `max_update_ratio` times the running median (None: any
    is accepted). `chaos` says what is to go wrong on purpose. Observers see every record after
    it was acted on; one that raises `StopRun` ends the run as a goal does. On a terminal a line shows the progress,
    unless `quiet`.

    Raises UsageError before anything starts, or CheckpointError where a run cannot be gone on with; JobError when the
    job's code or numbers fail, and Interrupted (a KeyboardInterrupt) after Ctrl-C or SIGTERM, when everything is saved
    and stopped.
    """
    _check_folders(out, checkpoints, resume, force, chaos, quiet)
    settings = Settings(
        until=until,
        seed=seed,
        codec=codec,
        shards=shards,
        keep_shards=keep_shards,
        epoch_barrier=epoch_barrier,
        skip_bad=skip_bad,
        max_update_ratio=max_update_ratio,
        chaos=chaos,
        evaluate_every=Every.parse(evaluate_every, "evaluate_every"),
        checkpoint_every=Every.parse(checkpoint_every, "checkpoint_every"),
        keep_checkpoints=keep_checkpoints,
        about={} if about is None else about,
    )
    _check_observers(observers)
    recipe = Recipe(job, strategy, Local() if on is None else on, settings)
    folder = RunFolder(out, checkpoints) if out is not None else None
    with (
        folder.claimed(resume, force) if folder else nullcontext(),
        prepared(recipe, folder, resume) as training,
        _progress(quiet) as line,
    ):
        if batch := recipe.effective_batch:
            logger.info("%s", batch)
        training.observe([*line, *observers])
        run = training.run()
    if run.ended == INTERRUPTED:
        raise Interrupted(run, training.stop.signal)
    return run


@contextmanager
def _progress(quiet: bool) -> Iterator[Sequence[Observer]]:
    """The observers that show a line of progress: none if stderr is no terminal."""
    if quiet or not getattr(sys.stderr, "isatty", bool)():  # there may be no stderr, or a logger in its place
        yield ()
        return
    from oddlot.run.live_view import progress_line

    with progress_line() as line:
        yield (line,)


def _check_observers(observers: object) -> None:
    if not isinstance(observers, Sequence) or not all(callable(observer) for observer in observers):
        raise InvalidValue("observers", observers, "a list of functions of a record")


def _check_folders(
    out: object, checkpoints: object, resume: object, force: object, chaos: object, quiet: object
) -> None:
    """UsageError: these do not go together."""
    for name, flag in {"resume": resume, "force": force, "quiet": quiet}.items():
        if not isinstance(flag, bool):
            raise InvalidValue(name, flag, "True or False")
    if resume and force:
        told = "resume goes on with a run and force throws it away: say one of them"
        raise UsageError(told, "resume_and_force")
    if (resume or force) and out is None:
        told = "resume and force are about a run's folder: name it with out=..."
        raise UsageError(told, "missing_setting", name="out")
    for name, path in {"out": out, "checkpoints": checkpoints}.items():
        if not isinstance(path, str | PathLike | None):
            raise InvalidValue(name, path, "a folder's path")
    if checkpoints == "":
        told = "checkpoints is empty: name a folder or a URL, or leave it out"
        raise UsageError(told, "empty_value", "checkpoints", name="checkpoints")
    if checkpoints is not None and out is None:
        told = "checkpoints are a part of a run's folder: name that with out=... (--out)"
        raise UsageError(told, "missing_setting", "checkpoints", name="out")
    if isinstance(chaos, Chaos) and out is None and any(fault.kind == "kill_hub" for fault in chaos.faults):
        told = "kill_hub ends this process with all that is not saved: name a folder with out=..."
        raise UsageError(told, "missing_setting", "chaos", name="out")
