"""Read logs of jobs."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from oddlot.core.support.errors import UsageError
from oddlot.machines.text_files import checked_path, read_packed
from oddlot.queue.traces.fields import BadRow, Row, delimiter_of
from oddlot.queue.traces.formats import Slurm, TraceFormat, format_of
from oddlot.queue.traces.trace import Trace, TraceJob, TraceProblem

JOBS = ("philly_gpu_jobs.csv", "philly_gpu_jobs.csv.gz", "cluster_log.csv", "cluster_log.csv.gz")
"""Files with jobs that a folder may have."""
PHILLY_NODES = "philly_vc_nodes.csv"
HELIOS_GPUS = "cluster_gpu_number.csv"
GPUS_PER_NODE = 8


def read_trace(path: Path | str, kind: str | None = None, columns: Mapping[str, str] | None = None) -> Trace:
    """Return the jobs of a log.

    Parameters
    ----------
    path
        A file, gzipped if its name ends in `.gz`, or a folder with one of the files `JOBS`.
    kind
        "philly", "helios", "slurm" or "csv". By default, the header line decides.
    columns
        Columns of a plain CSV by field of a job (`PlainCsv.fields`), if they have other names.

    Rows that cannot be used are left out, and listed in `problems`: a duration that is missing or negative, an
    unreadable time, an id that occurred before. Raise UsageError if the file cannot be read, lacks a column, or has no
    usable row.
    """
    path = _file_in(checked_path(path))
    trace = read_packed(path, lambda text: _trace(text, kind, columns))
    return replace(trace, nodes=_nodes_beside(path))


def _file_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = next((path / name for name in JOBS if (path / name).is_file()), None)
    if found is None:
        message = f"{path} is a folder without {', '.join(JOBS[::2])}: pass the file with the jobs"
        raise UsageError(message, "no_trace", path=str(path))
    return found


def _trace(text: str, kind: str | None, columns: Mapping[str, str] | None) -> Trace:
    delimiter = delimiter_of(text.partition("\n")[0])
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == Slurm.delimiter else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    header = [name.strip().lower() for name in next(reader, [])]
    if not any(header):
        raise UsageError("line 1 is empty: a trace starts with a line of column names", "no_header")
    jobs, problems = _jobs(reader, header, format_of(header, kind, columns))
    if not jobs:
        reasons = "; ".join(f"line {one.line}: {one.reason}" for one in problems[:3]) or "it has no rows"
        raise UsageError(
            f"no usable job. {reasons[:1].upper()}{reasons[1:]}", "no_jobs", problems=len(problems)
        )
    jobs.sort(key=lambda job: job.request.submitted)
    return Trace(tuple(jobs), tuple(problems))


def _jobs(
    reader: Iterator[list[str]], header: list[str], form: TraceFormat
) -> tuple[list[TraceJob], list[TraceProblem]]:
    jobs, problems, seen = list[TraceJob](), list[TraceProblem](), dict[str, int]()
    for line, values in _numbered(reader):
        try:
            if len(values) != len(header):
                raise BadRow(f"{len(values)} fields, but the header has {len(header)}")
            job = form.job(dict(zip(header, values, strict=True)))
            if job is None:
                continue
            if not job.request.id:
                job = replace(job, request=replace(job.request, id=f"line {line}"))
            if first := seen.get(job.request.id):
                raise BadRow(f"the job id of line {first} again")
        except BadRow as problem:
            problems.append(TraceProblem(line, str(problem)))
            continue
        seen[job.request.id] = line
        jobs.append(job)
    return jobs, problems


def _numbered(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line of each row, and its fields. Empty lines are skipped."""
    line = getattr(reader, "line_num", 1)
    for values in reader:
        start, line = line + 1, getattr(reader, "line_num", line + 1)
        if values:
            yield start, values


def _nodes_beside(path: Path) -> dict[str, int]:
    """Return the number of nodes by virtual cluster from the file beside a Philly or Helios log, if it is there."""
    if path.name in JOBS[:2] and (path.parent / PHILLY_NODES).is_file():
        return read_packed(path.parent / PHILLY_NODES, _philly_nodes)
    if path.name in JOBS[2:] and (path.parent / HELIOS_GPUS).is_file():
        return read_packed(path.parent / HELIOS_GPUS, _helios_nodes)
    return {}


def _philly_nodes(text: str) -> dict[str, int]:
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    return {name.strip(): _whole(nodes) for name, nodes in (row[:2] for row in rows if len(row) >= 2)}


def _helios_nodes(text: str) -> dict[str, int]:
    """Return the most nodes that each virtual cluster has had. The file has a row of GPUs per day."""
    rows: list[Row] = list(csv.DictReader(io.StringIO(text, newline="")))
    names = [name for name in (rows[0] if rows else {}) if name not in {"date", "total"}]
    return {
        name: nodes
        for name in names
        if (nodes := max(_whole(row[name]) for row in rows) // GPUS_PER_NODE) > 0
    }


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"{text!r} is no number of nodes or GPUs", "invalid_value", given=text)
    return int(text)
