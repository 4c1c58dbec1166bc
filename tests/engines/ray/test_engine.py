"""The Ray engine on a small cluster: the suite of failure scenarios, whole runs, and the losses of workers."""

import signal
from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous, JobError, Ray, Synchronous
from oddlot.core.events import Joined, Lost
from oddlot.testing import check_engine
from tests.engines.ray.clusters import Nodes, cluster
from tests.fits import a_job, trained
from tests.transcripts import raises

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster() as made:
        yield made


def on_ray(workers: int = 2, **settings: object) -> Ray:
    return Ray(workers, num_cpus=0.25, **settings)


def test_the_suite_of_failures(nodes: Nodes) -> None:
    check_engine(lambda workers: on_ray(workers, in_flight=1))


@pytest.mark.parametrize("codec", ["plain", "bf16"])
def test_a_run_counts_every_sample_and_replays(nodes: Nodes, codec: str) -> None:
    run, _ = trained(a_job(eval_data=(torch.randn(8, 2), torch.zeros(8).long())), Synchronous(), on_ray(), codec=codec)
    assert run.summary["samples_merged"] == run.summary["samples_assigned"]
    assert run.loss is not None
