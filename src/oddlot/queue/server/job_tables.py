"""Jobs as text, for the command line."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from oddlot.core.support.text import counted, duration

COLUMNS = ("job", "state", "user", "name", "needs", "waited", "starts", "ends", "attempt")
ENDED = ("job", "state", "user", "name", "needs", "waited", "ran", "ended", "exit")
MAX_NAME = 32
DAY = 86_400.0


def queue_table(found: Mapping[str, Any]) -> list[str]:
    """Return the queue as lines: machines, open jobs, and ended jobs."""
    now = found["now"]
    lines = [_machine(one) for one in found["machines"]]
    if found["jobs"]:
        lines += ["", *_table(COLUMNS, [_open_row(job, now) for job in found["jobs"]])]
    else:
        lines += ["no open jobs"]
    if found["ended"]:
        lines += ["", *_table(ENDED, [_ended_row(job, now) for job in found["ended"]])]
    return lines


def job_lines(job: Mapping[str, Any], *, env: bool = False) -> list[str]:
    """Return everything about a job as lines. `env`: with its environment variables, and not only their number."""
    now = max(filter(None, (job["submitted"], job["started"], job["ended"])))
    lines = [
        f"job {job['id']}: {job['name']}",
        f"  state       {_state(job)}{', ' + job['reason'] if job['reason'] else ''}",
        f"  user        {job['user']}",
        f"  needs       {needs(job)}",
        f"  submitted   {clock(job['submitted'], now)}, waited {duration(job['waiting_seconds'])}",
        f"  predicted   {duration(job['predicted_seconds'])} ({' to '.join(map(duration, job['predicted_range']))})",
    ]
    if job["virtual_cluster"]:
        lines.insert(3, f"  cluster     {job['virtual_cluster']}")
    if job["expected_end"]:
        lines.append(f"  starts      {_span(job['expected_start'], now)}")
        lines.append(f"  ends        {_span(job['expected_end'], now)}")
    if "command" in job:
        lines.append(f"  command     {' '.join(job['command'])}")
        lines.append(f"  folder      {job['cwd']}")
        lines += [f"  limit       {name} {value:,}" for name, value in job["limits"].items()]
    lines.append(f"  requeue     {'yes' if job['requeue'] else 'no'}")
    lines += [f"  attempt {one['attempt']:<3} {_attempt(one, now, job['reason'])}" for one in job["attempts"]]
    variables = sorted(job.get("env", {}).items())
    if variables and not env:
        return [*lines, f"  env         {counted(len(variables), 'variable')} (--env prints them)"]
    return lines + [f"  env         {name}={value}" for name, value in variables]


def needs(job: Mapping[str, Any]) -> str:
    """Return GPUs and cores as text."""
    parts = [counted(job["gpus"], "GPU")] if job["gpus"] else []
    return ", ".join([*parts, counted(job["cpus"], "core")] if job["cpus"] or not parts else parts)


def clock(at: float, now: float) -> str:
    """Return a local time: with the date if it is not today's."""
    moment, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    if moment.date() == today.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%Y-%m-%d %H:%M}"


def _machine(one: Mapping[str, Any]) -> str:
    used = f"{one['cpus'] - one['free_cpus']} of {counted(one['cpus'], 'core')} in use"
    gpus = f"{one['gpus'] - one['free_gpus']} of {counted(one['gpus'], 'GPU')}, " if one["gpus"] else ""
    return f"{one['id']}: {gpus}{used}"


def _state(job: Mapping[str, Any]) -> str:
    return f"{job['state']}, exit code {job['exit']}" if job["exit"] is not None else str(job["state"])


def _open_row(job: Mapping[str, Any], now: float) -> list[str]:
    is_running = job["state"] in {"running", "stopping"} and job["started"]
    starts = clock(job["started"], now) if is_running else _span(job["expected_start"], now)
    own = [str(job["id"]), job["state"], job["user"], job["name"][:MAX_NAME], needs(job)]
    waited = duration(job["waiting_seconds"])
    return [*own, waited, starts, _span(job["expected_end"], now), str(job["attempt"] or "")]


def _ended_row(job: Mapping[str, Any], now: float) -> list[str]:
    ran = duration(job["ran_seconds"]) if job["started"] else ""
    own = [str(job["id"]), job["state"], job["user"], job["name"][:MAX_NAME], needs(job)]
    exit_code = "" if job["exit"] is None else str(job["exit"])
    return [*own, duration(job["waiting_seconds"]), ran, clock(job["ended"], now), exit_code]


def _span(times: Sequence[float] | None, now: float) -> str:
    """Return an expected time, with its range."""
    if times is None:
        return "unknown"
    low, middle, high = times
    if high - low < 1:
        return clock(middle, now)
    return f"{clock(middle, now)} ({clock(low, now)} to {clock(high, now)})"


def _attempt(one: Mapping[str, Any], now: float, shown: str) -> str:
    """Return an attempt as text. Its reason is left out if it is `shown` already."""
    parts = [one["state"], f"started {clock(one['started'], now)}"]
    if one["ended"]:
        parts.append(f"ran {duration(one['ended'] - one['started'])}")
    if one["exit"] is not None:
        parts.append(f"exit code {one['exit']}")
    if one["machines"]:
        parts.append(f"on {', '.join(one['machines'])}")
    if one["gpus"]:
        parts.append(_indices("GPU", one["gpus"]))
    if one["cores"]:
        parts.append(_indices("core", one["cores"]))
    if one["reason"] not in {"", shown}:
        parts.append(one["reason"])
    return ", ".join(parts)


def _indices(noun: str, indices: Sequence[int]) -> str:
    return f"{noun}{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *rows]
    ]
