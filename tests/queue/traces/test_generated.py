"""The generated trace of recurrent jobs."""

from collections import Counter
from math import log
from statistics import pstdev

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.predict.job_names import bucket_of
from oddlot.queue.traces.generated import RecurrentJobs


def test_trace_has_the_promised_load_shares_and_noise() -> None:
    settings = RecurrentJobs(jobs=20_000, seed=4)
    trace = settings.trace()
    assert trace == RecurrentJobs(jobs=20_000, seed=4).trace()
    assert trace != RecurrentJobs(jobs=20_000, seed=5).trace()
    times = [job.request.submitted for job in trace.jobs]
    assert times == sorted(times)
    work = sum(job.duration * job.request.gpus for job in trace.jobs)
    assert work / (settings.nodes * 8 * times[-1]) == pytest.approx(0.75, rel=0.1)
    counts = Counter(bucket_of(job.request.name) for job in trace.jobs).most_common(2)
    assert counts[0][1] > counts[1][1]
    groups = dict[tuple[str, str], list[float]]()
    for job in trace.jobs:
        groups.setdefault((bucket_of(job.request.name), job.request.user), []).append(log(job.duration))
    largest = max(groups.values(), key=len)
    assert pstdev(largest) == pytest.approx(1.0, abs=0.1)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(UsageError):
        RecurrentJobs(jobs="many")  # type: ignore[arg-type]
