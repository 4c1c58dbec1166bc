"""Parking of a Slurm cluster: what is read from its commands, and which commands are run."""

from collections.abc import Sequence

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.commands import ParkMachine, WakeMachine
from oddlot.queue.core.parking import ParkingController, PeakRule, PeakSettings
from oddlot.queue.parking.slurm_power import NODES, WAITING, arguments, observed, tick

SINFO = """\
a1|allocated
a2|mixed#
a3|idle
a4|idle#
a5|idle~
a6|powering_down
a7|powered_down
a8|idle*
a9|drained
b1|down~
b2|idle%
b3|maint
b4|allocated$
"""
SQUEUE = "2|Resources\n1|Priority\n4|JobHeldUser\n1|Dependency\nx|Resources\n"


def test_states_of_sinfo_are_read() -> None:
    seen = observed(SINFO, SQUEUE, 5.0)
    assert seen.busy == ("a1", "a2")
    assert seen.idle == ("a3", "a4")
    assert seen.parked == ("a5", "a6", "a7", "b2")
    assert (seen.waiting, seen.at) == (3, 5.0)


def test_node_of_two_partitions_counts_once() -> None:
    assert observed("a1|idle\na1|idle\n", "", 0.0).idle == ("a1",)


def test_tick_runs_the_commands_of_the_controller() -> None:
    ran = list[Sequence[str]]()

    def run(command: Sequence[str]) -> str:
        ran.append(command)
        return {NODES: "a1|allocated\na2|idle\na3|idle\n", WAITING: ""}.get(tuple(command), "")

    controller = ParkingController(PeakRule(PeakSettings(2, 1)))
    assert tick(controller, run, 0.0) == [ParkMachine("a3")]
    assert ran[2:] == [("scontrol", "update", "nodename=a3", "state=power_down")]
    assert arguments(WakeMachine("a3"))[-1] == "state=power_up"


def test_cluster_without_usable_node_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        tick(ParkingController(PeakRule(PeakSettings(2, 1))), lambda command: "", 0.0)
    assert caught.value.code == "no_nodes"
