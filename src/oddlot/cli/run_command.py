"""`oddlot train` and `oddlot simulate`: from arguments to a run and its summary."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oddlot.cli.options import RUN
from oddlot.cli.run_names import RUNS, is_run_of, newest, next_free, workload_of
from oddlot.core.errors import JobError, OddlotError, UsageError
from oddlot.core.user_warnings import warn
from oddlot.history.run_settings import COMMAND, engine_kind, resuming

if TYPE_CHECKING:
    from rich.console import Console

    from oddlot.config.job_file import JobFile
    from oddlot.config.overrides import Override
    from oddlot.engines.base import EngineConfig
    from oddlot.engines.host import Observer
    from oddlot.faults.plan import Chaos
    from oddlot.history.metrics import Tally
    from oddlot.planner.estimate import Estimate
    from oddlot.run.result import Run

SIGNALLED = 128
"""Exit code of a stopped command, plus the number of the signal."""
MAX_COLUMNS = 1000
"""Largest width of a table, in columns."""
FLAGS = {
    "strategy": ("strategy", "name"),
    "workers": ("engine", "workers"),
    "lr": ("job", "optimizer", "lr"),
    "device": ("job", "device"),
    "data": ("workload", "data_dir"),
    "epochs": ("run", "until"),
    "out": ("run", "out"),
    "checkpoints": ("run", "checkpoints"),
    **{name: ("run", name) for name in RUN},
}
"""Keys of a job file that the flags set."""


@dataclass(frozen=True)
class Asked:
    """The arguments of `oddlot train` or `oddlot simulate`."""

    command: Sequence[str]
    """The command's name, and its arguments that are not settings."""
    workload: str
    flags: dict[str, Any]
    sets: Sequence[str]
    resume: bool
    force: bool
    as_json: bool
    quiet: bool
    chaos: str | None = None
    """Path of the faults file."""
    on_workers: bool = False
    """Whether the run starts worker processes."""

    def run(self, suffix: str, place: "Callable[[JobFile], EngineConfig]") -> None:
        """Run the command and print the summary. Worker processes import PyTorch at the same time as this one."""
        from oddlot.engines.local.fork_client import end_early, start_early

        try:
            if self.on_workers:
                start_early()
            self._run(suffix, place)
        finally:
            end_early()

    def _run(self, suffix: str, place: "Callable[[JobFile], EngineConfig]") -> None:
        from oddlot.history.run_folder import RunFolder

        if self.resume and self.force:
            told = "--resume continues the run in --out, and --force overwrites it: use one of them"
            raise UsageError(told, "resume_and_force")
        folder = ""
        try:
            settings, folder = self._settings(suffix)
            stopped_by = self._fit(settings, place, Path(folder))
        except OddlotError:
            self._forget(folder)
            raise
        except KeyboardInterrupt:  # the second one, or before there was anything to save
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

    def _settings(self, suffix: str) -> "tuple[JobFile, str]":
        """Return the settings and the run folder. A resumed run keeps the settings that are not given again."""
        from oddlot.config.job_file import JobFile
        from oddlot.config.overrides import Override
        from oddlot.history.claim import fetch
        from oddlot.history.run_folder import RunFolder

        folder, overrides = self.flags["out"], self.overrides()
        if not self.resume:
            settings = JobFile.read(self.workload, overrides)
            return settings, folder or settings.out or str(next_free(settings.name + suffix))
        is_file = self.workload.endswith(".toml")
        file = JobFile.read(self.workload, overrides) if is_file else None
        name = Path(self.workload).stem if is_file else self.workload.rpartition(":")[2]
        folder = folder or (file.out if file else None) or str(newest(name + suffix, self.workload))
        fetch(RunFolder(folder, file.checkpoints if file else self.flags["checkpoints"]))
        self._check_clock(folder)
        about = _sound(RunFolder(folder).about)
        if not is_run_of(about, self.workload):
            begun = workload_of(about)
            told = f"{folder} is a run of {begun}, not of {self.workload}: resume that, or use another folder"
            raise UsageError(told, "other_workload", path=folder, workload=begun)
        if about.get("chaos") and self.chaos is None:
            told = f"the run had --chaos {about['chaos']}, which is not resumed: pass it again"
            warn(told, "chaos_not_said_again", chaos=about["chaos"])
        if is_file:  # the file may have changed; earlier flags still hold
            earlier = [Override(flag, tuple(keys), value) for flag, keys, value in about.get("overrides", [])]
            return JobFile.read(self.workload, [*earlier, *overrides]), folder
        return JobFile.read(self.workload, overrides, about.get("settings")), folder

    def _check_clock(self, folder: str) -> None:
        """Raise UsageError if a real run would be resumed in the simulator, or the other way round."""
        from oddlot.history.run_folder import RunFolder

        run, begun = RunFolder(folder), {"local": "train", "simulated": "simulate"}
        command = begun.get(engine_kind(run.settings())) if run.is_begun else None
        if command and command != self.command[0]:
            told = f"{folder} is a run of `oddlot {command}`: resume it with that, or use another folder"
            raise UsageError(told, "other_clock", path=folder, command=command)

    def overrides(self) -> "list[Override]":
        """Return the settings that flags give. Raise UsageError if two of them set the same."""
        from oddlot.config.overrides import Override

        overrides = [
            Override(f"{_flag(name)} {value}", FLAGS[name], f"epochs>={value}" if name == "epochs" else value)
            for name, value in self.flags.items()
            if value is not None
        ]
        overrides += [Override.parse(text) for text in self.sets]
        said: list[tuple[tuple[str, ...], str]] = [(("workload", "name"), f"the workload {self.workload}")]
        for each in overrides:
            for keys, by in said:
                common = min(len(keys), len(each.keys))
                if keys[:common] == each.keys[:common]:
                    told = f"{each.flag}: {by} sets the same; use one of them"
                    raise UsageError(told, "said_twice", flag=each.flag, before=by)
            said.append((each.keys, each.flag))
        return overrides

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of `oddlot` that resume this run, without the folder."""
        return [*self.command, *(["--chaos", self.chaos] if self.chaos is not None else [])]

    def again(self, folder: str) -> str:
        """Return the command that resumes this run, with all flags that were given."""
        flags = [
            [_flag(name), str(value)]
            for name, value in self.flags.items()
            if value is not None and name != "out"
        ]
        flags += [["--set", text] for text in self.sets]
        return resuming([*self.command, *chain(*flags), *self.arguments[len(self.command) :]], folder)

    def _fit(self, settings: "JobFile", place: "Callable[[JobFile], EngineConfig]", folder: Path) -> int:
        """Train, print the summary, and return the signal that stopped the run; 0 if none did."""
        from rich.console import Console

        from oddlot.history.log import read_log
        from oddlot.history.metrics import Tally
        from oddlot.history.run_folder import RunFolder
        from oddlot.report.run_report import strikes_in, told_strikes
        from oddlot.run.live_view import say, shown, summary, told

        console = Console(stderr=self.as_json, quiet=self.quiet)
        title = f"{settings.name} with {' around '.join(settings.strategy_names)}"
        tally = Tally()
        # What the job's own code prints is not part of the answer.
        aside = redirect_stdout(sys.stderr) if self.as_json else nullcontext()
        with aside, told(console), shown(console, f"{title} in {folder}", tally) as observer:
            run, stopped_by = self._trained(settings, place, folder, observer, tally)
        files = RunFolder(folder).written
        closing = summary(title, run.summary, self.command[0] == "simulate", files)
        console.print(closing, soft_wrap=True)
        if self.chaos is not None:
            say(console, f"  faults   {told_strikes(strikes_in(read_log(RunFolder(folder).log)))}")
        if max(tally.resumed_at, 0) == tally.versions and not stopped_by:
            say(console, f"  {self._why_nothing(run, tally)}")
        if self.as_json:
            print(json.dumps(without_nan(run.summary), allow_nan=False))
        if stopped_by:
            hint = f"stopped; saved {self._hint(str(folder))}"
            say(console, hint)
        return stopped_by

    def _why_nothing(self, run: "Run", tally: "Tally") -> str:
        """Return why the run made no version."""
        if self.resume and tally.versions:
            return f"Nothing was trained: the run had already reached {run.ended}. Set a later goal (--until)"
        if not tally.workers:
            return f"Nothing was trained before {run.ended}: no machine became available"
        return f"Nothing was trained before {run.ended}. Set a later goal (--until)"

    def estimate(self, machines: str, seeds: int, computes: bool) -> None:
        """Simulate `seeds` runs on spot machines and on demand, and print their time and cost."""
        from oddlot.run.signals import StopRequest

        if self.resume or self.force:
            told = "--seeds starts new runs: leave --resume and --force out"
            raise UsageError(told, "not_with_seeds", flag="--resume" if self.resume else "--force")
        with StopRequest().heard() as stop:  # from the first import until the end of the output
            try:
                done = self._estimate(machines, seeds, computes)
            except KeyboardInterrupt:  # the second one
                print("killed", file=sys.stderr)
                raise typer.Exit(SIGNALLED + signal.SIGINT) from None
        if stop.signal:
            print(f"stopped; completed runs: {done}", file=sys.stderr)
            raise typer.Exit(SIGNALLED + stop.signal)

    def _estimate(self, machines: str, seeds: int, computes: bool) -> int:
        """Simulate and print, and return the number of completed runs."""
        from rich.console import Console
        from rich.measure import Measurement

        from oddlot.config.fleet_file import read_fleet
        from oddlot.config.job_file import JobFile
        from oddlot.machines.market import names_in
        from oddlot.planner.estimate import EstimateInterrupted, estimate, estimates

        settings = JobFile.read(self.workload, self.overrides())
        fleet, in_flight = read_fleet(machines), settings.table.engine.in_flight or 1
        options = {"seed": 0} | settings.run_settings() | {"in_flight": in_flight}
        console = Console(stderr=self.as_json, quiet=self.quiet)
        folder = self.flags["out"] or settings.out

        def told(bought: str, number: int) -> None:
            Console(stderr=True, quiet=self.quiet).print(
                f"simulating {bought} with seed {number}".replace("  ", " ")
            )

        aside = redirect_stdout(sys.stderr) if self.as_json else nullcontext()
        with aside, settings.source.placed_in_any():
            try:
                found = estimate(
                    settings.job(),
                    settings.strategy(),
                    fleet,
                    seeds=seeds,
                    computes=computes,
                    out=folder,
                    on_run_start=told,
                    chaos=self._chaos(names_in(fleet.machines)),
                    **options,
                )
            except EstimateInterrupted as stopped:
                found = stopped.found
        if found:
            shown = estimates(f"{settings.name} on {machines}", found)
            whole = Measurement.get(console, console.options.update(max_width=MAX_COLUMNS), shown).maximum
            console.width = max(console.width, whole)  # a figure is never cut
            console.print(shown, soft_wrap=True)
        self._tell_runs(found, folder, console)
        if not fleet.has_spot:
            console.print("  this fleet has no spot machines: there is nothing to compare")
        if self.as_json:
            plain = {one.bought or "runs": one.plain() for one in found}
            print(json.dumps(without_nan(plain), allow_nan=False))
        for one in found:
            if one.failure:
                sentence = f"all runs {one.bought} failed. First failure: {one.failure}"
                raise JobError(sentence, "all_runs_failed", bought=one.bought, failure=one.failure)
        return sum(len(one.summaries) for one in found)

    def _tell_runs(self, found: "Sequence[Estimate]", folder: str | None, console: "Console") -> None:
        """Print which runs failed or made no update, and where they are stored."""
        from oddlot.history.outcome import FAILED
        from oddlot.run.live_view import say

        summaries = [summary for one in found for summary in one.summaries]
        if failed := [summary["ended"] for summary in summaries if summary["ended"].startswith(FAILED)]:
            told = (
                f"  {len(failed)} of these runs failed and are excluded from medians and ranges. First failure: "
                f"{failed[0].removeprefix(FAILED)}"
            )
            say(console, told)
        if idle := sum(summary["versions"] == 0 for summary in summaries):
            console.print(f"  {idle} of these runs ended before their first update")
        if folder and Path(folder).exists():
            say(console, f"  runs     {folder}")

    def _chaos(self, machines: Sequence[str]) -> "Chaos | None":
        from oddlot.config.faults_file import read_chaos

        return read_chaos(self.chaos, machines) if self.chaos is not None else None

    def _trained(
        self,
        settings: "JobFile",
        place: "Callable[[JobFile], EngineConfig]",
        folder: Path,
        observer: "Observer",
        tally: "Tally",
    ) -> "tuple[Run, int]":
        from oddlot.core.masked_urls import masked
        from oddlot.run.fit import Interrupted, fit
        from oddlot.train.data import Batches

        checkpoints = str(settings.checkpoints)
        if checkpoints.startswith("memory:"):
            url = masked(checkpoints)
            told = f"{url} is lost when this command ends: use a persistent location"
            raise UsageError(told, "not_persistent", url=url)
        job = settings.job()
        tally.size = len(Batches(job.train_data, job.collate))
        try:
            with settings.source.placed_in_any():
                on = place(settings)
                run = fit(
                    job,
                    settings.strategy(),
                    on,
                    out=folder,
                    resume=self.resume,
                    force=self.force,
                    observers=[observer],
                    quiet=True,
                    about=settings.source.about | {"chaos": self.chaos, COMMAND: self.arguments},
                    chaos=self._chaos(on.names),
                    **settings.run_settings(),
                )
        except Interrupted as stopped:
            return stopped.run, stopped.signal
        return run, 0


def _flag(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _sound(about: dict[str, Any]) -> dict[str, Any]:
    """Return the notes of this module in run.json; empty if they are of another form."""
    settings, overrides = about.get("settings"), about.get("overrides", [])
    triples = isinstance(overrides, list) and all(
        isinstance(one, list) and len(one) == 3 for one in overrides
    )
    return about if isinstance(settings, dict) and triples else {}


def without_nan(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
