"""Formats of job logs: which columns they have, and how a row becomes a job."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.traces.fields import (
    NOT_ENDED,
    BadRow,
    Row,
    count,
    optional_time,
    present,
    seconds,
    state,
    time,
)
from oddlot.queue.traces.trace import TraceJob

GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?P<model>[^=,:]*))?[=:](?P<count>\d+)")
"""GPUs in Slurm's TRES (`cpu=8,gres/gpu:a100=2`) and GRES (`gpu:a100:2`)."""


class TraceFormat(ABC):
    """A format of a job log."""

    name: ClassVar[str]
    delimiter: ClassVar[str] = ","
    columns: ClassVar[frozenset[str]]
    """Columns that a file of this format must have. They identify it."""

    @abstractmethod
    def job(self, row: Row) -> TraceJob | None:
        """Return the job of a row, or None for a row that is no job. Raise BadRow if it cannot be used."""


class Philly(TraceFormat):
    """Jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019), as published with ElasticFlow."""

    name = "philly"
    columns = frozenset({"job_id", "submit_time", "duration_s", "num_gpus", "vc"})

    def job(self, row: Row) -> TraceJob:
        request = JobRequest(
            id=_id(row["job_id"]),
            submitted=time(present(row, "submit_time"), "time of submission"),
            gpus=_units(count(present(row, "num_gpus"), "GPUs"), 0),
            virtual_cluster=row["vc"].strip(),
        )
        return TraceJob(request, seconds(present(row, "duration_s"), "duration"))


class Helios(TraceFormat):
    """`cluster_log.csv` of SenseTime's Helios clusters (Hu et al., SC 2021)."""

    name = "helios"
    columns = frozenset({"job_id", "user", "vc", "gpu_num", "cpu_num", "state", "submit_time", "duration"})

    def job(self, row: Row) -> TraceJob:
        gpus, cpus = count(present(row, "gpu_num"), "GPUs"), count(present(row, "cpu_num"), "cores")
        _units(gpus, cpus)
        request = JobRequest(
            id=_id(row["job_id"]),
            submitted=time(present(row, "submit_time"), "time of submission"),
            gpus=gpus,
            cpus=cpus,
            user=row["user"].strip(),
            name=row.get("job_name", "").strip(),
            virtual_cluster=row["vc"].strip(),
        )
        queued = present(row, "queue")
        return TraceJob(
            request,
            seconds(present(row, "duration"), "duration"),
            state(present(row, "state")),
            None if queued is None else seconds(queued, "queueing time"),
        )


class Slurm(TraceFormat):
    """Output of `sacct --parsable2`. The lines of job steps are skipped. The partition is the virtual cluster."""

    name = "slurm"
    delimiter = "|"
    columns = frozenset({"jobid", "submit", "state"})

    def job(self, row: Row) -> TraceJob | None:
        number = _id(row["jobid"])
        if "." in number:
            return None
        self._check_ended(row)
        gpus, cpus = self._gpus(row), count(present(row, "alloccpus"), "cores")
        _units(gpus, cpus)
        submitted = time(present(row, "submit"), "time of submission")
        start = optional_time(present(row, "start"))
        request = JobRequest(
            id=number,
            submitted=submitted,
            gpus=gpus,
            cpus=cpus,
            user=row.get("user", "").strip(),
            name=row.get("jobname", "").strip(),
            virtual_cluster=row.get("partition", "").strip(),
        )
        queued = None if start is None else max(0.0, start - submitted)
        return TraceJob(request, self._duration(row, start), state(present(row, "state")), queued)

    @staticmethod
    def _check_ended(row: Row) -> None:
        text = (present(row, "state") or "").split(" ")[0].lower()
        if text in NOT_ENDED:
            raise BadRow(f"the job has not ended: {text}")
        if "start" in row and present(row, "start") is None:
            raise BadRow("the job never started")

    @staticmethod
    def _duration(row: Row, start: float | None) -> float:
        for column in ("elapsedraw", "elapsed"):
            if text := present(row, column):
                return seconds(text, "duration")
        end = optional_time(present(row, "end"))
        if start is None or end is None:
            raise BadRow("no duration")
        if end < start:
            raise BadRow("negative duration")
        return end - start

    @staticmethod
    def _gpus(row: Row) -> int:
        """Return the GPUs that were allocated, or requested if no column has the allocated ones."""
        for column in ("alloctres", "allocgres", "reqtres", "reqgres"):
            found = [
                (one["model"], count(one["count"], "GPUs")) for one in GPUS.finditer(row.get(column, ""))
            ]
            if found:  # the total, or else the sum over the models
                return dict(found).get(None, sum(gpus for _, gpus in found))
        return 0


class PlainCsv(TraceFormat):
    """A table with a header line and a line per job. `names` maps fields of a job to columns with other names."""

    name = "csv"
    columns = frozenset()
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "id": ("id", "job_id", "jobid", "job"),
        "submitted": (
            "submitted",
            "submit_time",
            "submit",
            "submission_time",
            "arrival",
            "arrival_time",
            "timestamp",
        ),
        "duration": (
            "duration",
            "duration_s",
            "duration_seconds",
            "run_time",
            "runtime",
            "elapsed",
            "elapsedraw",
        ),
        "start": ("start", "start_time", "started"),
        "end": ("end", "end_time", "ended", "finish_time"),
        "gpus": ("gpus", "num_gpus", "gpu_num", "num_gpu", "gpu", "gpu_count"),
        "cpus": ("cpus", "num_cpus", "cpu_num", "num_cpu", "cores", "alloccpus"),
        "user": ("user", "user_id", "username", "owner"),
        "name": ("name", "job_name", "jobname", "command"),
        "virtual_cluster": ("virtual_cluster", "vc", "partition", "queue_name", "group", "cluster"),
        "state": ("state", "status"),
        "queued": ("queued", "queue", "wait", "wait_time", "queueing_delay"),
    }
    """Fields of a job, and the columns that may have them. The duration may also come from `start` and `end`."""

    def __init__(self, header: list[str], names: Mapping[str, str] | None = None) -> None:
        given = {field: name.lower() for field, name in (names or {}).items()}
        for field, name in given.items():
            if field not in self.fields:
                raise UnknownName("field of --columns", field, self.fields)
            if name not in header:
                raise no_column(name, header, field)
        found = {
            field: next((alias for alias in aliases if alias in header), None)
            for field, aliases in self.fields.items()
        } | given
        self.column = {field: name for field, name in found.items() if name is not None}
        if "submitted" not in self.column:
            raise no_column("submitted", header, "submitted")
        if "duration" not in self.column and not {"start", "end"} <= self.column.keys():
            raise no_column("duration", header, "duration")
        if not {"gpus", "cpus"} & self.column.keys():
            raise no_column("gpus", header, "gpus")

    def job(self, row: Row) -> TraceJob:
        given = {field: present(row, column) for field, column in self.column.items()}
        gpus, cpus = count(given.get("gpus"), "GPUs"), count(given.get("cpus"), "cores")
        _units(gpus, cpus)
        submitted = time(given.get("submitted"), "time of submission")
        start, end = optional_time(given.get("start")), optional_time(given.get("end"))
        if "duration" in self.column:
            duration = seconds(given["duration"], "duration")
        elif start is None or end is None:
            raise BadRow("no duration")
        elif end < start:
            raise BadRow("negative duration")
        else:
            duration = end - start
        request = JobRequest(
            id=_id(given["id"]) if "id" in self.column else "",
            submitted=submitted,
            gpus=gpus,
            cpus=cpus,
            user=given.get("user") or "",
            name=given.get("name") or "",
            virtual_cluster=given.get("virtual_cluster") or "",
        )
        waited = None if start is None else max(0.0, start - submitted)
        if given.get("queued"):
            waited = seconds(given["queued"], "queueing time")
        return TraceJob(request, duration, state(given.get("state")), waited)


KNOWN: dict[str, TraceFormat] = {one.name: one for one in (Philly(), Helios(), Slurm())}
"""Formats with fixed columns, by name."""


def format_of(
    header: list[str], kind: str | None = None, names: Mapping[str, str] | None = None
) -> TraceFormat:
    """Return the format of a file with this header line, in lower case.

    `kind` is the format's name if it is known. `names`: columns of a plain CSV by field. Raise UsageError if columns
    are missing.
    """
    if kind is not None and kind not in {*KNOWN, PlainCsv.name}:
        raise UnknownName("kind of trace", kind, [*KNOWN, PlainCsv.name])
    if names or kind == PlainCsv.name:
        return PlainCsv(header, names)
    fitting = [one for one in KNOWN.values() if one.columns <= set(header)]
    if kind is not None:
        if KNOWN[kind] not in fitting:
            raise no_column(min(KNOWN[kind].columns - set(header)), header)
        return KNOWN[kind]
    return fitting[0] if fitting else PlainCsv(header)


def no_column(name: str, header: list[str], field: str = "") -> UsageError:
    """Return the error for a missing column. `field` of a job may be in a column with another name."""
    message = f"line 1: no column {name!r}. The file has the columns {', '.join(header[:30])}"
    if field:
        message += f". Pass --columns {field}=COLUMN"
    return UsageError(message, "missing_column", name=name, columns=tuple(header))


def _id(text: str | None) -> str:
    if text is None or not text.strip():
        raise BadRow("no job id")
    return text.strip()


def _units(gpus: int, cpus: int) -> int:
    if not gpus and not cpus:
        raise BadRow("neither GPUs nor cores")
    return gpus
