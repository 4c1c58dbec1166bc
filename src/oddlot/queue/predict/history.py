"""Durations of the jobs that have ended, by user, name and GPUs."""

from dataclasses import dataclass
from math import isfinite

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.duration_stats import KEEP, DurationStats
from oddlot.queue.predict.job_names import NameIndex, bucket_of

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """What a history says about a job."""

    stats: DurationStats | None
    """Durations of the most similar jobs. None without any history."""
    is_named: bool
    """Whether jobs with this or a similar name have ended."""
    bucket: str
    """The bucket of the name or the most similar one. Empty if there is none."""


class JobHistory:
    """Durations of the jobs that have ended.

    Similar jobs are found by the rules of Helios (QSSF Service), with one similar name instead of two.
    """

    def __init__(self, keep: float = KEEP) -> None:
        self.keep = keep
        self.names = NameIndex()
        self.stats: dict[Key, DurationStats] = {}

    def add(self, job: JobRequest, duration: float) -> bool:
        """Add a job that has ended. Return False if its duration is no usable number."""
        if not (isfinite(duration) and duration >= 0):
            return False
        bucket = bucket_of(job.name)
        self.names.add(bucket)
        keys: list[Key] = [(), ("user", job.user), ("units", job.units), ("user", job.user, job.units)]
        if bucket:
            for kind, name in (("name", job.name), ("bucket", bucket)):
                keys += [(kind, name), (kind, name, job.user), (kind, name, job.user, job.units)]
        for key in keys:
            self.stats.setdefault(key, DurationStats()).add(duration, self.keep)
        return True

    def match(self, job: JobRequest) -> Match:
        """Return the durations of the most similar jobs.

        - Jobs with this name: those of the user with the same number of GPUs, else all of the user, else all.
        - No such job: the same with names that differ in numbers only, else with the most similar name.
        - No similar name: jobs of the user, with the same number of GPUs if there are any, else all jobs.
        """
        bucket = bucket_of(job.name)
        if found := self._named("name", job.name, job):
            return Match(found, True, bucket)
        nearest = self.names.nearest(bucket)
        if nearest and (found := self._named("bucket", nearest, job)):
            return Match(found, True, nearest)
        unnamed = (("user", job.user, job.units), ("user", job.user), ("units", job.units), ())
        return Match(next((self.stats[key] for key in unnamed if key in self.stats), None), False, "")

    def pooled(self, job: JobRequest, match: Match) -> float | None:
        """Return the logarithm of the seconds from all similar jobs, or None without any history.

        From the most general jobs to the most similar ones, each mean is mixed with the one before it. A mean of n jobs
        has the weight n / (n + 1), so that a single job does not decide.
        """
        stats = self.stats.get(())
        if stats is None:
            return None
        value = stats.mean
        keys: tuple[Key, ...] = (
            ("units", job.units),
            ("user", job.user),
            ("user", job.user, job.units),
            ("bucket", match.bucket),
            ("bucket", match.bucket, job.user),
        )
        for key in keys:
            if found := self.stats.get(key):
                value = (found.weight * found.mean + value) / (found.weight + 1.0)
        return value

    def _named(self, kind: str, name: str, job: JobRequest) -> DurationStats | None:
        keys = ((kind, name, job.user, job.units), (kind, name, job.user), (kind, name))
        return next((self.stats[key] for key in keys if key in self.stats), None)
