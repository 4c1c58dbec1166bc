"""`oddlot train` and `oddlot simulate`: from the arguments to a run and its summary."""

import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oddlot.cli.completion import engine_settings
from oddlot.cli.json_values import without_nan
from oddlot.cli.options import RUN, sample_fleet
from oddlot.cli.run_names import RUNS, about_of_command, is_run_of, newest, next_free, no_run, workload_of
from oddlot.core.support.errors import ClusterLost, OddlotError, UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.core.support.validation import settings_of
from oddlot.history.run_settings import (
    AUTO,
    COMMAND,
    GIVEN,
    LATEST,
    Resume,
    engine_kind,
    resuming,
    segment_without_resume,
)
from oddlot.history.segments import STAGE

if TYPE_CHECKING:
    from oddlot.config.job_file import JobFile
    from oddlot.config.overrides import Override
    from oddlot.faults.plan import Chaos
    from oddlot.history.callback import Callback
    from oddlot.history.metrics import Tally
    from oddlot.history.run_folder import RunFolder
    from oddlot.machines.market import Fleet
    from oddlot.run.result import Run

SIGNALLED = 128
"""Base of the exit code of a stopped command. The number of the signal is added."""
TRAIN = "train"
LOCAL = "local"
"""The default engine of `oddlot train`."""
RANGE = re.compile(r"([+-]?\d+)(?:-(\d+))?")
"""A number of workers, or a range such as `2-8`."""
FLAGS = {
    "strategy": ("strategy", "name"),
    "engine": ("engine", "kind"),
    "workers": ("engine", "workers"),
    "lr": ("job", "optimizer", "lr"),
    "batch_size": ("job", "batch_size"),
    "device": ("job", "device"),
    "data": ("workload", "data_dir"),
    "epochs": ("run", "until"),
    **{name: ("run", name) for name in ("out", "checkpoints", *RUN)},
}
"""For each flag, the key of a job file that it sets."""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """The arguments of `oddlot train` or `oddlot simulate`."""

    name: str
    """`train` or `simulate`."""
    workload: str
    flags: dict[str, Any]
    """Values of the flags in `FLAGS`."""
    sets: Sequence[str] | None
    resume: Resume | None
    force: bool
    as_json: bool
    quiet: bool
    chaos: str | None
    """Path of the faults file."""
    machines: str | None = None
    """Path of the fleet file, or None for the sample fleet."""
    computes: bool = True
    """Whether the simulation trains the model."""
    seeds: int | None = None
    plan: str | None = None
    """Path of the plan file, if progress is compared with the plan."""
    new_segment: bool = False
    """Whether a resumed run may continue with another strategy, optimizer or batch size."""

    @classmethod
    def of(cls, name: str, given: dict[str, Any]) -> "RunCommand":
        """Return the arguments `given` of the command `name`."""
        flags = {each: given.pop(each) for each in FLAGS if each in given}
        return cls(name=name, flags=flags, **given)

    @cached_property
    def fleet_file(self) -> str:
        """Return the path of the fleet file of `oddlot simulate`."""
        return self.machines or sample_fleet(quiet=self.quiet)

    def check_simulated(self) -> None:
        """Raise UsageError for an engine setting that simulated machines do not have."""
        from oddlot.engines.simulated.config import Simulated

        path, known = self.fleet_file, {f"engine.{name}" for name in settings_of(Simulated)}
        for each in self.overrides:
            if (name := ".".join(each.keys[:2])) in engine_settings() - known:
                message = f"{each.flag}: `{name}` is for `oddlot train`; {path} describes the machines"
                raise UsageError(message, "not_simulated", flag=each.flag, name=name)

    @cached_property
    def fleet(self) -> "Fleet | None":
        """Return the fleet of `oddlot simulate`, or None for `oddlot train`."""
        from oddlot.config.fleet_file import read_fleet

        return None if self.name == TRAIN else read_fleet(self.fleet_file)

    def run(self) -> None:
        """Run the command and print the summary.

        Local worker processes start early: they import PyTorch at the same time as this process.
        """
        from oddlot.engines.local.fork_client import end_early, start_early

        try:
            if self.name == TRAIN and self.flags["engine"] in {None, LOCAL}:
                start_early()
            self._run()
        finally:
            end_early()

    def _run(self) -> None:
        from oddlot.config.job_file import JobFile
        from oddlot.engines.local.fork_client import end_early
        from oddlot.history.run_folder import RunFolder

        if self.resume and self.force:
            message = "--resume continues the run in --out, and --force overwrites it: use one of them"
            raise UsageError(message, "resume_and_force")
        if self.new_segment and not self.resume:
            raise segment_without_resume()
        folder = ""
        try:
            # With `latest`, the flags may be valid only together with the settings of the run.
            has_own = self.resume != LATEST or self.workload.endswith(".toml")
            own = JobFile.read(self.workload, self.overrides) if has_own else None
            folder = self._folder(own)
            settings, continues = self._settings(own, folder)
            if settings.engine().kind != LOCAL:
                end_early()
            stopped_by = self._fit(settings, Path(folder), continues)
        except ClusterLost as error:
            raise error.with_message(f"{error}\nThe run is saved {self._hint(folder)}") from None
        except OddlotError:
            self._forget(folder)
            raise
        except KeyboardInterrupt:  # the second Ctrl-C, or one before there was anything to save
            self._forget(folder)
            there = bool(folder) and RunFolder(folder).is_begun
            hint = (
                f"killed; the last saved state is {self._hint(folder)}"
                if there
                else "stopped; nothing was saved"
            )
            print(hint, file=sys.stderr)
            stopped_by = signal.SIGINT
        if stopped_by:
            raise typer.Exit(SIGNALLED + stopped_by)

    def _forget(self, folder: str) -> None:
        """Remove the folder of a run that did not start, unless the user named it."""
        from oddlot.history.run_folder import RunFolder

        if folder and Path(folder).parent == RUNS and not self.flags["out"]:
            RunFolder(folder).remove_if_unused()

    def _hint(self, folder: str) -> str:
        return f"in {folder}. To resume:\n  {self.again(folder)}"

    def _folder(self, own: "JobFile | None") -> str:
        """Return the run folder. If it is a new folder in `runs`, create it."""
        if given := self.flags["out"] or (own.out if own else None):
            return str(given)
        name = own.name if own else self.workload.rpartition(":")[2]
        name += "" if self.name == TRAIN else "-simulated"
        if self.resume == LATEST:
            found = newest(name, self.workload)
            if found is None:
                raise no_run(name)
            return str(found)
        begun = newest(name, self.workload, own.checkpoints if own else None) if self.resume == AUTO else None
        return str(begun or next_free(name))

    def _settings(self, own: "JobFile | None", folder: str) -> "tuple[JobFile, bool]":
        """Return the settings, and whether a run is resumed. A resumed run keeps settings that are not given again."""
        from oddlot.config.job_file import JobFile
        from oddlot.config.overrides import Override
        from oddlot.history.resume_mode import resumes
        from oddlot.history.run_folder import RunFolder

        run = RunFolder(folder, own.checkpoints if own else self.flags["checkpoints"])
        was_begun, continues = run.is_begun, resumes(run, self.resume)
        if own and not continues:
            return own, False
        try:
            about = self._checked_about(run, folder if was_begun else run.place)
        except UsageError:
            if not was_begun:
                run.remove_fetched()
            raise
        if about.get("chaos") and self.chaos is None:
            message = f"the run had --chaos {about['chaos']}, which is not resumed: pass it again"
            warn(message, "chaos_not_repeated", chaos=about["chaos"])
        if self.workload.endswith(".toml"):  # the file may have changed; earlier flags still hold
            earlier = [Override(flag, tuple(keys), value) for flag, keys, value in about.get("overrides", [])]
            return JobFile.read(self.workload, self.overrides, earlier=earlier), True
        return JobFile.read(self.workload, self.overrides, about.get("settings")), True

    def _checked_about(self, run: "RunFolder", place: str) -> dict[str, Any]:
        """Return `about` of the run to resume. Raise UsageError if it is not a run of this command."""
        # Real and virtual time are never added.
        kind = engine_kind(run.settings()) if run.is_begun else ""
        command = "simulate" if kind == "simulated" else TRAIN
        if kind and command != self.name:
            message = f"{place} is a run of `oddlot {command}`: resume it with that, or use another folder"
            raise UsageError(message, "other_command", path=place, command=command)
        about = about_of_command(run.about)
        if not is_run_of(about, self.workload):
            workload = workload_of(about)
            message = (
                f"{place} is a run of {workload}, not of {self.workload}: resume that, or use another folder"
            )
            raise UsageError(message, "other_workload", path=place, workload=workload)
        return about

    @cached_property
    def overrides(self) -> "list[Override]":
        """Return the settings from flags. Raise UsageError if two flags set the same key."""
        from oddlot.config.overrides import Override

        overrides = [
            Override(" ".join(_given(name, value)), FLAGS[name], _setting(name, value))
            for name, value in self.flags.items()
            if value is not None
        ]
        overrides += map(Override.parse, self.sets or ())
        said: list[tuple[tuple[str, ...], str]] = [(("workload", "name"), f"the workload {self.workload}")]
        for each in overrides:
            for keys, by in said:
                common = min(len(keys), len(each.keys))
                if keys[:common] == each.keys[:common]:
                    message = f"{each.flag}: {by} sets the same; use one of them"
                    raise UsageError(message, "duplicate_setting", flag=each.flag, before=by)
            said.append((each.keys, each.flag))
        return overrides

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of `oddlot` that resume this run, without the folder."""
        files = {"machines": self.machines, "chaos": self.chaos, "plan": self.plan}
        flags = [_given(name, path) for name, path in files.items() if path is not None]
        return [self.name, self.workload, *chain(*flags), *([] if self.computes else ["--no-compute"])]

    def given(self, *without: tuple[str, ...]) -> list[str]:
        """Return the arguments of `oddlot` with all given flags, except flags of the settings `without`."""
        flags = (each.flag.split(" ", 1) for each in self.overrides if each.keys not in without)
        return [*self.arguments, *chain(*flags)]

    def again(self, folder: str) -> str:
        """Return the command that resumes this run, with all given flags."""
        return resuming(self.given(FLAGS["out"]), folder)

    def _fit(self, settings: "JobFile", folder: Path, continues: bool) -> int:
        """Train, print the summary, and return the signal that stopped the run, or 0."""
        from rich.console import Console

        from oddlot.history.metrics import Tally
        from oddlot.history.peer_logs import read_run_log
        from oddlot.history.run_folder import RunFolder
        from oddlot.report.live_view import shown, summary
        from oddlot.report.progress_line import say, shown_messages
        from oddlot.report.run_report import count_faults_in, faults_text

        console = Console(stderr=self.as_json, quiet=self.quiet)
        title = f"{settings.name} with {' around '.join(settings.strategy_names)}"
        tally = Tally()
        # The output of the job's own code is not part of the JSON.
        aside = redirect_stdout(sys.stderr) if self.as_json else nullcontext()
        with aside, shown_messages(console), shown(console, f"{title} in {folder}", tally) as view:
            run, stopped_by = self._trained(settings, folder, continues, view, tally)
        files = RunFolder(folder).written
        closing = summary(title, run.summary, self.name != TRAIN, files)
        console.print(closing, soft_wrap=True)
        if self.chaos is not None:
            say(console, f"  faults   {faults_text(count_faults_in(read_run_log(RunFolder(folder))))}")
        if max(tally.resumed_at, 0) == tally.versions and not stopped_by:
            say(console, f"  {self._why_nothing(run, tally)}")
        if self.as_json:
            print(json.dumps(without_nan(run.summary), allow_nan=False))
        if stopped_by:
            hint = f"stopped; saved {self._hint(str(folder))}"
            say(console, hint)
        return stopped_by

    def _why_nothing(self, run: "Run", tally: "Tally") -> str:
        """Return the reason why the run made no version, as text."""
        is_staged = STAGE in run.summary
        later = "Set more epochs for its stages" if is_staged else "Set a later goal (--until)"
        if tally.versions:
            if is_staged:
                later = "Set more epochs for its last stage, and pass --new-segment"
            return f"Nothing was trained: the run had already reached {run.ended}. {later}"
        if not tally.workers:
            return f"Nothing was trained before {run.ended}: no machine became available"
        return f"Nothing was trained before {run.ended}. {later}"

    def chaos_on(self, machines: Sequence[str]) -> "Chaos | None":
        """Return the faults to inject on machines with these names, or None without --chaos."""
        from oddlot.config.faults_file import read_chaos

        return read_chaos(self.chaos, machines) if self.chaos is not None else None

    def _planned_fit(self) -> "Callable[..., Run]":
        """Return `fit` for the plan: it plans again when progress falls behind."""
        from oddlot.config.plan_file import read_plan
        from oddlot.planner.planned_run import fit_planned

        plan = read_plan(str(self.plan))
        return partial(fit_planned, prediction=plan.prediction, fleet=plan.read_fleet())

    def _trained(
        self,
        settings: "JobFile",
        folder: Path,
        continues: bool,
        view: "Callback",
        tally: "Tally",
    ) -> "tuple[Run, int]":
        from oddlot.core.support.text import masked
        from oddlot.run.fit import Interrupted, fit
        from oddlot.run.stages import fit_stages

        checkpoints = str(settings.checkpoints)
        if checkpoints.startswith("memory:"):
            url = masked(checkpoints)
            message = f"{url} is lost when this command ends: use a persistent location"
            raise UsageError(message, "not_persistent", url=url)
        work = settings.stages() if self.plan is None else settings.job()
        job = work[0].job if isinstance(work, Sequence) else work
        tally.size = job.sample_order().size
        train: Any = self._planned_fit() if self.plan is not None else fit if job is work else fit_stages
        try:
            with settings.source.placed_in_any():
                on = settings.engine(self.fleet, self.computes)
                run = train(
                    work,
                    settings.strategy(),
                    on,
                    out=folder,
                    resume=LATEST if continues else None,
                    new_segment=self.new_segment and continues,
                    force=self.force,
                    callbacks=[view],
                    quiet=True,
                    about=settings.source.about
                    | {"chaos": self.chaos, COMMAND: self.arguments, GIVEN: self.given()},
                    chaos=self.chaos_on(on.names),
                    **settings.run_settings(),
                )
        except Interrupted as stopped:
            return stopped.run, stopped.signal
        return run, 0


def _given(name: str, value: Any) -> list[str]:
    """Return a flag with its value; `--no-...` for False."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _setting(flag: str, value: Any) -> Any:
    """Convert the value of a flag to the value of its setting."""
    if flag == "epochs":
        return f"epochs>={value}"
    if flag == "workers" and (numbers := RANGE.fullmatch(value)):
        return [int(number) for number in numbers.groups()] if numbers[2] else int(value)
    return value
