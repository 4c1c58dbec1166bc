"""Features of a job at its submission. They depend on jobs that had ended by then."""

from math import log, nan

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.history import JobHistory, Key, Match

DAY = 86_400.0
MAX_CODES = 100
"""Number of users, names and virtual clusters with a code, as in Helios. Others have none."""
CATEGORIES = ("user", "bucket", "virtual_cluster")
GROUPS = ("name", "bucket and user", "bucket", "user")
NAMES = (
    *CATEGORIES,
    *("gpus", "cpus", "hour", "weekday", "rolling"),
    *(f"{figure} of {group}" for group in GROUPS for figure in ("mean", "jobs")),
    *("deviation of bucket and user", "last of bucket and user"),
)
"""Names of the features, in their order."""


class Codes:
    """Codes of the first `MAX_CODES` names. Codes never change."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def of(self, name: str) -> float:
        """Return the code of a name, or NaN if it has none."""
        if name and name not in self.codes and len(self.codes) < MAX_CODES:
            self.codes[name] = len(self.codes)
        return float(self.codes.get(name, nan))


class Features:
    """Computes the features of jobs."""

    def __init__(self) -> None:
        self.codes = {name: Codes() for name in CATEGORIES}

    def of(self, job: JobRequest, history: JobHistory, match: Match, rolling: float) -> list[float]:
        """Return the features of a job in the order of `NAMES`. Unknown values are NaN.

        `rolling`: logarithm of the prediction of similar jobs.
        """
        values = [
            self.codes["user"].of(job.user),
            self.codes["bucket"].of(match.bucket),
            self.codes["virtual_cluster"].of(job.virtual_cluster),
            float(job.gpus),
            float(job.cpus),
            job.submitted % DAY // 3_600.0,
            job.submitted // DAY % 7,
            rolling,
        ]
        keys: list[Key] = [
            ("name", job.name),
            ("bucket", match.bucket, job.user),
            ("bucket", match.bucket),
            ("user", job.user),
        ]
        for key in keys:
            stats = history.stats.get(key)
            values += [nan, nan] if stats is None else [stats.mean, log(stats.count)]
        own = history.stats.get(keys[1])
        values += [nan, nan] if own is None else [own.deviation, own.last]
        return values
