"""The sizes of a run without gradients."""

import pytest

from oddlot import Asynchronous, JobError, Machine, Simulated, UsageError, fit
from oddlot.machines import Link
from oddlot.planner.run_shape import RunShape
from tests.transcripts import raises


def test_time_depends_on_the_sizes() -> None:
    """A link with 1 MB/s sends weights and an update of 2 MB each, and the samples of each shard."""
    shape = RunShape(samples=40, batch=10, model_bytes=2_000_000, sample_bytes=100_000)
    engine = Simulated([Machine("m", 0.1, link=Link(megabits_per_second=8))], computes=False)
    seconds = {
        shards: fit(
            shape.job(), Asynchronous(), engine, until="epochs>=1", shards=shards, quiet=True
        ).summary["seconds"]
        for shards in (1, 4)
    }
    assert seconds[1] == pytest.approx(4 * (2 + 1 + 2), rel=1e-3)
    assert seconds[4] == pytest.approx(seconds[1] + 40 * 0.1, rel=1e-3)


def test_large_data_occupy_no_memory() -> None:
    assert RunShape(samples=10**12, sample_bytes=10**6).job().train_data[0].untyped_storage().nbytes() == 1


def test_sizes_are_positive_and_the_job_is_not_trained() -> None:
    with raises(UsageError, "invalid_value", name="samples"):
        RunShape(samples=0)
    with raises(JobError, "shape_without_gradients"):
        fit(
            RunShape(samples=8).job(),
            Asynchronous(),
            Simulated([Machine("m", 0.1)]),
            until="epochs>=1",
            quiet=True,
        )
