"""Tests of the Ray engine on a small cluster: a complete run, a lost node, and `check_engine`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.ray.nodes import Nodes, cluster
from oddlot import Synchronous
from oddlot.codecs import Half
from oddlot.testing import check_engine
from tests.engines.ray.scenes import on_ray, scene, slow_job
from tests.fits import a_job, trained

LOST_AFTER_SECONDS = 10.0
"""Seconds without a sign of life until a worker counts as lost."""
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with cluster(workers=1) as made:
        yield made


@pytest.mark.ray
@pytest.mark.usefixtures("nodes")
def test_engine_suite_passes() -> None:
    check_engine(lambda workers: on_ray(workers, in_flight=1, lost_after_seconds=10.0))


@pytest.mark.usefixtures("nodes")
def test_run_merges_every_sample(tmp_path: Path) -> None:
    """Folders of the runtime environment are sent over the program's existing connection."""
    module = tmp_path / "my_module"
    module.mkdir()
    (module / "__init__.py").touch()
    folders = {"working_dir": str(tmp_path), "py_modules": [str(module)]}
    evaluated = torch.randn(8, 2), torch.zeros(8).long()
    on = on_ray(runtime_env=folders)
    run, _ = trained(a_job(eval_data=evaluated), Synchronous(), on, codec=Half("bf16"))
    assert run.summary["samples_merged"] == run.summary["samples_assigned"]
    assert run.loss is not None


def test_workers_of_a_lost_node_are_replaced(nodes: Nodes) -> None:
    """On a busy machine, a silent worker may already have been replaced on another node."""
    (added,) = nodes.alive
    with scene(slow_job(0.2), on_ray(num_cpus=1, lost_after_seconds=LOST_AFTER_SECONDS)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0)  # the hub's node is used last
        run.work()
        run.until(lambda: len(run.on_node(added.node_id)) > 0)
        lost = run.on_node(added.node_id)
        nodes.kill(added)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.is_back(node))  # type: ignore[misc]  # on another node
        run.finish()
