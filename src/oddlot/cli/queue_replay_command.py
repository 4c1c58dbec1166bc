"""`oddlot queue replay`: a log of jobs under other policies."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oddlot.cli.options import find_modules_here
from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from oddlot.queue.core.machines import Machine
    from oddlot.queue.replay.replay import Replay
    from oddlot.queue.replay.replay_figures import ReplayFigures
    from oddlot.queue.traces.trace import Trace, TraceJob, TraceProblem

DEFAULT_POLICIES = "fifo,fifo_backfill,qssf,qssf_backfill"
SHOWN_PROBLEMS = 5
CPUS_PER_NODE = 64
MAX_COLUMNS = 1000
"""Largest width of a table, in columns."""


def replay(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Log of jobs: a file, or a folder with one.")
    ],
    policies: Annotated[
        str, typer.Option(metavar="A,B", help="Policies, by name or import path.")
    ] = DEFAULT_POLICIES,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="philly, helios, slurm or csv. Default: by the header.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="FIELD=NAME,...", help="Columns of a CSV with other names.")
    ] = None,
    load: Annotated[
        float | None, typer.Option(metavar="X", help="Size clusters so that the jobs use this share.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Machines of each virtual cluster.")
    ] = None,
    per_node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="GPUs of a machine.", show_default="8")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day of submission, YYYY-MM-DD.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day of submission.")] = None,
    clusters: Annotated[
        str | None, typer.Option(metavar="A,B", help="Virtual clusters to replay. Default: all.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="All virtual clusters share the machines.")
    ] = False,
    predictions: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="exact, error, rolling or learnt. Default: learnt, or error without names."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the prediction errors.")] = 0,
    longest_wait: Annotated[
        float | None, typer.Option(metavar="H", help="Hours after which a waiting job comes first.")
    ] = None,
    by_cluster: Annotated[bool, typer.Option("--by-cluster", help="A row per virtual cluster too.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a log of jobs on simulated machines, under other policies.

    Machines come from --load, --nodes, or the log. Jobs without GPU are left out, unless no job has a GPU: then cores
    count. The policies sjf and srtf know the true durations.
    """
    from oddlot.queue.core.policy_registry import policy_of
    from oddlot.queue.replay.replay import replay as replayed
    from oddlot.queue.replay.replay_figures import figures_of
    from oddlot.queue.replay.replay_pages import write_page, write_plot
    from oddlot.queue.traces.read_trace import read_trace
    from oddlot.report.html_page import check_place, check_plot_place

    find_modules_here()
    chosen = [policy_of(name.strip()) for name in policies.split(",") if name.strip()]
    if not chosen:
        raise UsageError("--policies names no policy", "no_policies")
    if html is not None:
        check_place(html)
    if svg is not None:
        check_plot_place(svg)
    read = read_trace(trace, kind, pairs(columns))
    jobs, left_out, unit = _jobs(read, since, until, clusters)
    machines = _machines(
        read, jobs, load, nodes, per_node or (8 if unit == "GPUs" else CPUS_PER_NODE), shared
    )
    predicted = predictions or ("learnt" if any(job.request.name for job in jobs) else "error")
    wait = None if longest_wait is None else 3600 * longest_wait
    replays = [replayed(jobs, policy, machines, predicted, seed, wait) for policy in chosen]
    done = _Replayed(read, replays, [figures_of(one) for one in replays], predicted, unit, left_out)
    if as_json:
        typer.echo(json.dumps(done.as_json()))
    else:
        done.show(by_cluster)
    if html is not None:
        write_page(replays, done.figures, html)
    if svg is not None:
        write_plot(replays, svg)


@dataclass(frozen=True)
class _Replayed:
    """What the command shows."""

    read: "Trace"
    replays: "Sequence[Replay]"
    figures: "Sequence[ReplayFigures]"
    predictions: str
    unit: str
    """"GPUs" or "cores"."""
    left_out: int
    """Number of jobs without GPU."""

    def as_json(self) -> dict[str, Any]:
        """Return all figures as values of JSON."""
        policies = zip(self.figures, self.replays, strict=True)
        return {
            "predictions": self.predictions,
            "unit": self.unit,
            "jobs_without_gpu": self.left_out,
            "problems": [{"line": one.line, "reason": one.reason} for one in self.read.problems],
            "policies": [{**one.as_json(), "replay_seconds": replay.seconds} for one, replay in policies],
        }

    def show(self, by_cluster: bool) -> None:
        """Print a table, the gains over the first policy, and what was left out."""
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table

        from oddlot.queue.replay.replay_table import replay_table

        console = Console(soft_wrap=True)
        first, shown = self.figures[0], replay_table(self.figures, by_cluster)
        title = f"{first.jobs:,} jobs, {first.gpus:,} {self.unit}, predictions: {self.predictions}"
        table = Table(title=title, title_justify="left")
        for number, head in enumerate(shown.heads):
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in shown.rows:
            table.add_row(*map(printable, row))
        wide = Measurement.get(console, console.options.update(width=MAX_COLUMNS), table).maximum
        Console(width=max(console.width, wide)).print(table)
        console.print(shown.note)
        for one in self.figures[1:]:
            gain = first.mean_completion / one.mean_completion
            queued = f", queued {first.mean_queued / one.mean_queued:.2f}" if one.mean_queued else ""
            console.print(f"{first.policy} / {one.policy}: completion {gain:.2f}{queued}", markup=False)
        if self.left_out:
            console.print(f"left out: {counted(self.left_out, 'job')} without GPU")
        show_problems(console, self.read.problems)


def show_problems(console: "Console", problems: "Sequence[TraceProblem]") -> None:
    """Print why the first lines were left out, and the number of the others."""
    for problem in problems[:SHOWN_PROBLEMS]:
        console.print(f"left out: line {problem.line}: {printable(problem.reason)}", markup=False)
    if len(problems) > SHOWN_PROBLEMS:
        console.print(f"left out: {len(problems) - SHOWN_PROBLEMS:,} more lines (--json lists all)")


def _jobs(
    read: "Trace", since: str | None, until: str | None, clusters: str | None
) -> "tuple[list[TraceJob], int, str]":
    """Return the jobs to replay, how many without GPU were left out, and the name of their unit."""
    first = _day(since, "--from").timestamp() if since else float("-inf")
    last = (_day(until, "--to") + timedelta(days=1)).timestamp() if until else float("inf")
    names = {name.strip() for name in clusters.split(",")} if clusters else None
    known = {job.request.virtual_cluster for job in read.jobs}
    if names and names - known:
        shown = ", ".join(sorted(known)[:20])
        message = f"the trace has no virtual cluster {min(names - known)!r}. It has: {shown}"
        raise UsageError(message, "unknown_cluster", cluster=min(names - known))
    jobs = [
        job
        for job in read.jobs
        if first <= job.request.submitted < last and (names is None or job.request.virtual_cluster in names)
    ]
    with_gpus = [job for job in jobs if job.request.gpus]
    if with_gpus:
        return with_gpus, len(jobs) - len(with_gpus), "GPUs"
    by_cores = [
        replace(job, request=replace(job.request, gpus=max(1, job.request.cpus), cpus=0)) for job in jobs
    ]
    if not by_cores:
        raise UsageError("no job of the trace was submitted on these days", "no_jobs")
    return by_cores, 0, "cores"


def _machines(
    read: "Trace",
    jobs: "Sequence[TraceJob]",
    load: float | None,
    nodes: int | None,
    per_node: int,
    shared: bool,
) -> "dict[str, list[Machine]]":
    from oddlot.queue.replay.replay import machines_for_load, machines_of

    if load is not None and not 0 < load <= 1:
        raise UsageError(f"--load is {load}: it must be above 0 and at most 1", "bad_load", load=load)
    if load is not None and nodes is not None:
        raise UsageError("--load and --nodes exclude each other", "load_and_nodes")
    names = sorted({job.request.virtual_cluster for job in jobs})
    if load is not None:
        machines = machines_for_load(jobs, load, gpus=per_node)
    elif nodes is not None:
        machines = {name: machines_of(name, nodes, per_node) for name in names}
    elif all(name in read.nodes for name in names):
        machines = {name: machines_of(name, read.nodes[name], per_node) for name in names}
    else:
        missing = [name for name in names if name not in read.nodes]
        known = [name for name in names if name in read.nodes]
        message = (
            f"the numbers of machines of {len(missing)} of {len(names)} virtual clusters are not known (such as "
            f"{missing[0]!r}): pass --load or --nodes"
        )
        if known:
            message += f", or the others as --clusters {','.join(known)}"
        raise UsageError(message, "no_machines", virtual_cluster=missing[0])
    return {"": [machine for pool in machines.values() for machine in pool]} if shared else machines


def _day(text: str, flag: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        message = f"{flag} is {printable(text)!r}: write a day as YYYY-MM-DD"
        raise UsageError(message, "bad_day", flag=flag, text=text) from None


def pairs(columns: str | None) -> dict[str, str] | None:
    """Return the columns by field of the option `--columns`. Raise UsageError if it is invalid."""
    if columns is None:
        return None
    pairs = dict(one.split("=", 1) for one in columns.split(",") if "=" in one)
    if not pairs or len(pairs) != len(columns.split(",")):
        raise UsageError("--columns needs FIELD=NAME,FIELD=NAME", "bad_columns", columns=columns)
    return {field.strip(): name.strip() for field, name in pairs.items()}
