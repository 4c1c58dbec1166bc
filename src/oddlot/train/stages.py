"""The stages of a run: jobs that train one model in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.train.job import Job
from oddlot.train.lr_schedules import Schedule


@dataclass(frozen=True)
class Stage:
    """A part of a run with its own job, such as the pre-training of one layer. `oddlot.fit_stages` runs stages in turn.

    The jobs of all stages have the same model, parameter groups and number of samples, and the same name. Their losses
    or directions, optimizers, batch sizes and metrics may differ.

    Raises:
        UsageError: A field has a wrong type or is out of range.
    """

    name: str
    """Name of the stage, unique in the run."""
    job: Job
    """Job of the stage, without `until`. Its `lr_schedule` counts epochs from the start of the stage."""
    epochs: AtLeastOne
    """Number of passes over the data."""
    strategy: Strategy | None = None
    """Strategy of the stage. Default: the strategy of the run."""
    epoch_barrier: bool = False
    """Whether an epoch starts only when the previous one is merged, as for full batches: workers do not step along two
    epochs at once. The run setting `epoch_barrier` is for all stages."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.name:
            raise InvalidValue("name", self.name, "a name", "Stage")
        if until := self.job.until:
            message = (
                f"the job of stage {self.name!r} has until = {until!r}, but a stage ends after its epochs: set "
                "Stage.epochs, and leave out until"
            )
            raise UsageError(message, "until_of_stages", "until", given=until)

    def job_from(self, epoch: int) -> Job:
        """Return the job of the stage in a run, with the stage's name, if the stage starts at this epoch."""
        schedule = self.job.lr_schedule
        shifted = FromEpoch(schedule, epoch) if schedule is not None and epoch else schedule
        return replace(self.job, stage=self.name, lr_schedule=shifted)


@dataclass(frozen=True)
class FromEpoch:
    """A learning rate schedule that counts its epochs from a later epoch of the run."""

    schedule: Schedule
    start: int

    def __call__(self, epochs: float) -> float:
        """Return the factor after a number of epochs of the run."""
        return self.schedule(max(0.0, epochs - self.start))

    def __repr__(self) -> str:
        schedule = self.schedule
        name = (
            repr(schedule) if is_dataclass(type(schedule)) else getattr(schedule, "__qualname__", "schedule")
        )
        return f"{name} from epoch {self.start}"


def check_stages(stages: object) -> Sequence[Stage]:
    """Return the stages. Raise UsageError unless they are a list of stages that can train one model in turn."""
    if (
        not isinstance(stages, list | tuple)
        or not stages
        or not all(isinstance(one, Stage) for one in stages)
    ):
        raise InvalidValue("stages", stages, "a list of oddlot.Stage(name, job, epochs)")
    names = [stage.name for stage in stages]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        message = f"two stages have the name {twice!r}: give each its own name"
        raise UsageError(message, "duplicate_stage", "stages", name=twice)
    for what, values in {
        "name": [stage.job.name for stage in stages],
        "number of samples": [stage.job.sample_order().size for stage in stages],
    }.items():
        if other := next((at for at, value in enumerate(values) if value != values[0]), 0):
            message = (
                f"the jobs of stages must have the same {what}, but it is {values[0]!r} in {names[0]} and "
                f"{values[other]!r} in {names[other]}"
            )
            raise UsageError(message, "different_stages", "stages", what=what, stage=names[other])
    return stages


def is_staged(found: object) -> bool:
    """Return whether a workload returned stages instead of a job."""
    return isinstance(found, list | tuple) and bool(found) and all(isinstance(one, Stage) for one in found)
