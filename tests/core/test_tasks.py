"""Ids of tasks, nodes and machines: parsing returns the parts that they were made of."""

import pytest

from oddlot.core.tasks import machine_of, node_of, task_name, worker_name


@pytest.mark.parametrize(
    ("machine", "life", "node"), [("w1", 1, "w1"), ("w1", 12, "w1.12"), ("eu-3", 2, "eu-3.2")]
)
def test_ids_round_trip_to_their_parts(machine: str, life: int, node: str) -> None:
    assert worker_name(machine, life) == node
    assert machine_of(node) == machine
    assert node_of(task_name(node, 17)) == node


def test_invalid_task_id_has_no_node() -> None:
    assert node_of("nonsense") == ""
