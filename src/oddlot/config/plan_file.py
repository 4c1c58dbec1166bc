"""Plan files: job files with the table [plan], which has the prediction of `oddlot plan`."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oddlot.config.fleet_file import read_fleet
from oddlot.config.job_file import JobFile
from oddlot.config.toml_errors import at_line, read_toml
from oddlot.config.toml_writer import check_writable, write_toml
from oddlot.config.written_tables import KINDS, table_from
from oddlot.core.support.errors import UsageError
from oddlot.engines.local.config import Local
from oddlot.engines.processes.worker_settings import MAX_WORKERS
from oddlot.machines.market import Fleet, names_in
from oddlot.planner.prediction import Prediction
from oddlot.run.config import RunConfig
from oddlot.wire.registry import codec_name

if TYPE_CHECKING:
    from oddlot.planner.plan import Plan
    from oddlot.train.job import Job

COMMENT = "Written by `oddlot plan`. Run it with `oddlot train --plan FILE`, or without new plans: `oddlot train FILE`"

WITHOUT_PROFILE = {"compute_factor": 1.0, "merge_seconds": 0.0}
"""Values of a plan without a profile, which are not written."""
REPLACED = ("strategy", "job")
"""Tables that a plan replaces."""


@dataclass(frozen=True)
class PlanFile:
    """A plan file: the job, the fleet file, and the prediction."""

    job_file: JobFile
    """The job with the settings of the plan."""
    fleet: Path
    """Path of the fleet file."""
    prediction: Prediction

    def read_fleet(self) -> Fleet:
        """Return the fleet of the fleet file. Raise UsageError with the line of `plan.machines` if it is invalid."""
        try:
            return read_fleet(self.fleet)
        except UsageError as error:
            raise self.job_file.source.placed_at(("plan", "machines"), error) from None

    @property
    def before(self) -> JobFile:
        """Return the settings that the plan was made with. A new plan starts from them."""
        source = self.job_file.source
        kept = {name: value for name, value in source.plain.items() if name not in {"plan", *REPLACED}}
        before = deepcopy(dict(self.prediction.before))
        codec = {"codec": before.pop("codec")} if "codec" in before else {}
        kept["run"] = {name: value for name, value in kept.get("run", {}).items() if name != "codec"} | codec
        return JobFile.of(replace(source, plain=kept | before))


def write_plan(
    plan: "Plan", settings: JobFile, job: "Job", fleet: Fleet, machines: str | Path, path: str | Path
) -> None:
    """Write the best option of a plan as a job file.

    Args:
        plan: The plan. Raise its JobError if no option is feasible.
        settings: The workload and the other settings that the plan was made with.
        job: The job that was planned.
        fleet: The fleet that it was planned for.
        machines: Path of the fleet file.
        path: The file. An existing plan file is overwritten; see `check_plan_path`.
    """
    from oddlot.planner.job_size import JobSize  # imports PyTorch

    file, best = Path(path).expanduser(), plan.best
    assert best.seconds is not None, "feasible options have a time"
    assert best.dollars is not None, "feasible options have a cost"
    prediction = Prediction(
        machines=_from_folder(Path(machines).expanduser().resolve(), file.resolve().parent),
        workload=settings.table.workload.name,
        **JobSize.of(job)._asdict(),
        minimize=plan.minimize,
        deadline_hours=plan.deadline_hours,
        budget_dollars=plan.budget_dollars,
        bought=best.bought,
        compute_factor=plan.compute_factor,
        merge_seconds=plan.merge_seconds,
        buying=plan.buying,
        seconds=best.seconds,
        dollars=best.dollars,
        curve=tuple(plan.curve),
        before=_before(settings.source.plain),
    )
    left_out = {"bought": "", "before": {}, **WITHOUT_PROFILE}
    about = {
        name: value
        for name, value in table_from(prediction).items()
        if name not in left_out or value != left_out[name]
    }
    write_toml(file, {**_job_tables(plan, settings, job, fleet), "plan": about}, COMMENT)


def check_plan_path(path: str | Path) -> None:
    """Raise UsageError if a plan cannot be written there, or would overwrite another file."""
    file = Path(path).expanduser()
    check_writable(file)
    if file.exists() and file.stat().st_size and "plan" not in read_toml(file)[1]:
        message = f"{file} exists and is not a plan file. Name another file"
        raise UsageError(message, "not_a_plan", path=str(file))


def read_plan(path: str | Path) -> PlanFile:
    """Read a plan file. Raise UsageError with all errors, each with its line, or if its workload was not planned."""
    file = Path(path).expanduser()
    if file.suffix != ".toml":
        raise UsageError(f"{file} does not end in .toml", "not_toml", path=str(file))
    found = plan_in(JobFile.read(str(file)))
    if found is None:
        message = (
            "this job file has no table [plan]: write a plan with `oddlot plan WORKLOAD --out FILE.toml`"
        )
        raise at_line(file, 1, UsageError(message, "not_a_plan"))
    with found.job_file.source.placed(()):
        found.prediction.check(workload=found.job_file.table.workload.name)
    return found


def plan_in(job_file: JobFile) -> PlanFile | None:
    """Return the plan in a job file, or None if there is none."""
    table: Any = job_file.table.plan
    if table is None:
        return None
    prediction: Prediction = table.make()
    folder = job_file.source.path.parent if job_file.source.path else Path()
    return PlanFile(job_file, folder / Path(prediction.machines).expanduser(), prediction)


def _before(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables and the codec that a plan replaces."""
    codec = given.get("run", {}).get("codec")
    kept = {name: given[name] for name in REPLACED if given.get(name)}
    return kept if codec is None else kept | {"codec": codec}


def _job_tables(plan: "Plan", settings: JobFile, job: "Job", fleet: Fleet) -> dict[str, Any]:
    """Return the tables of the job file. Settings that a plan does not change are kept."""
    setup, planned, given = plan.best.setup, plan.job(job), deepcopy(settings.source.plain)
    run, engine, of_job = (dict(given.get(name, {})) for name in ("run", "engine", "job"))
    run |= {"until": run.get("until") or job.until or str(plan.goal), "seed": run.get("seed", RunConfig.seed)}
    if setup.codec is not None:
        run["codec"] = codec_name(setup.codec)
    if engine.get("kind", Local.kind) == Local.kind:
        engine["workers"] = min(len(names_in(fleet.machines)), MAX_WORKERS)
    if "in_flight" in engine:
        engine["in_flight"] = 1  # as in the plan
    of_job["batch_size"] = setup.batch_size
    if type(planned.optimizer) in KINDS:
        of_job["optimizer"] = table_from(planned.optimizer)
    elif planned.optimizer != job.optimizer:  # a class of the workload: only its learning rate was changed
        of_job["optimizer"] = {"lr": planned.optimizer.lr}
    if type(planned.lr_schedule) in KINDS:
        of_job["lr_schedule"] = table_from(planned.lr_schedule)
    tables = {"workload": given["workload"], "run": run, "engine": engine}
    return tables | {"strategy": table_from(setup.strategy), "job": of_job}


def _from_folder(path: Path, folder: Path) -> str:
    """Return a path relative to a folder if it is inside, and otherwise the complete path."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
