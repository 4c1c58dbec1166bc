"""Advice at the end of a run with tasks that take longer than its machines last."""

import pytest

from oddlot import VCASGD, Asynchronous, Strategy
from tests.engines.market import alive, run, zone
from tests.fits import a_job
from tests.transcripts import warns

SHORT = alive((0.0, 2.0), (0.9, 0.0), period=1.0)
"""Capacity of two machines for 0.9 s of each second."""


@pytest.mark.parametrize(
    ("strategy", "shards"), [(VCASGD(), 9), (Asynchronous(samples=12), None)], ids=["shards", "samples"]
)
def test_long_tasks_warn_with_a_suggested_size(strategy: Strategy, shards: int | None) -> None:
    """A task of 12 samples takes 0.6 s, and every second task is lost.

    Ten tasks per machine lifetime need 28 shards, but five minibatches per task allow only 9.
    """
    with warns("tasks_outlive_machines", shards=shards) as caught:
        found = run(zone(SHORT), strategy=strategy, until="epochs>=4", shards=4, job=a_job(batch_size=1))
    summary = found.summary
    assert caught.fields["share"] == summary["wasted"]["lost"] / summary["samples_assigned"]
    assert caught.fields["share"] == pytest.approx(0.5, abs=0.05)
    assert caught.fields["task_seconds"] == pytest.approx(0.6)
    assert caught.fields["machine_seconds"] == pytest.approx(0.9, rel=0.1)


@pytest.mark.parametrize(
    ("samples", "epochs", "wasted"), [(12, 1, 3 / 7), (4, 8, 1 / 5)], ids=["few losses", "small tasks"]
)
def test_few_losses_or_little_waste_do_not_warn(samples: int, epochs: int, wasted: float) -> None:
    """A warning would raise an error. Of each lifetime of 0.9 s, 0.3 s or 0.1 s are lost."""
    found = run(zone(SHORT, count=1), strategy=Asynchronous(samples=samples), until=f"epochs>={epochs}")
    assert found.summary["samples_wasted"] / found.summary["samples_assigned"] == pytest.approx(
        wasted, rel=0.05
    )
