"""Parking of a Slurm cluster: what is read from its commands, and which commands are run."""

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.commands import ParkMachine, WakeMachine
from oddlot.queue.core.parking import ParkingController, PeakRule, PeakSettings
from oddlot.queue.parking.slurm_power import NODES, WAITING, arguments, observed, tick
from oddlot.queue.server import slurm_parking
from oddlot.queue.server.slurm_commands import SlurmError
from oddlot.queue.server.slurm_parking import park_slurm
from tests.queue.server.queue_servers import wait_for
from tests.queue.server.slurm_cluster import reason_to_skip, slurm_cluster, submit
from tests.transcripts import raises

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


@pytest.mark.parametrize(
    ("jobs", "waiting"),
    [
        (["1|Resources|1|N/A"] * 64, 4),
        (["1|Resources|1|N/A"] * 65, 5),
        (["1|Priority|1|gres:gpu:1"] * 64, 64),
        (["3|Priority|3|N/A", "1|Priority|1|N/A"], 3),
        (["2|Resources|2000|N/A"], 2),
        (["1|Priority|16|N/A", "1|Priority|1|gres/gpu:1", "1|Dependency|16|N/A"], 2),
    ],
)
def test_small_waiting_jobs_share_nodes(jobs: list[str], waiting: int) -> None:
    nodes = "a1|allocated|16\na2|idle~|64\na3|drained|1\n"
    assert observed(nodes, "\n".join(jobs), 0.0).waiting == waiting


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
    with raises(UsageError, "no_nodes"):
        tick(ParkingController(PeakRule(PeakSettings(2, 1))), lambda command: "", 0.0)


def test_loop_reports_commands_and_survives_later_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "#!/bin/sh\necho $0 $* >> {folder}/log\n"
    scripts = {"sinfo": "echo 'a1|allocated'; echo 'a2|idle'", "squeue": "", "scontrol": ""}
    for name, line in scripts.items():
        path = tmp_path / name
        path.write_text(program.format(folder=tmp_path) + line + "\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stopped, found = threading.Event(), list[object]()

    def report(command: object) -> None:
        found.append(command)
        if len(found) == 1:  # the next tick fails, and the one after it succeeds
            (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncp {tmp_path}/good {tmp_path}/sinfo\nexit 1\n")
        else:
            stopped.set()

    (tmp_path / "good").write_text((tmp_path / "sinfo").read_text())
    (tmp_path / "good").chmod(0o755)
    park_slurm(PeakRule(PeakSettings(2, 0)), 0.01, report, stopped)
    assert found == [ParkMachine("a2")] * 2
    assert "scontrol update nodename=a2 state=power_down" in (tmp_path / "log").read_text()
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SlurmError):
        park_slurm(PeakRule(PeakSettings(2, 0)), 0.01, report)


def test_loop_waits_for_usable_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, found = threading.Event(), list[object]()
    outputs = iter(["a1|drained\n", "", "a1|drained\n", "", "a1|idle\n", "", ""])
    monkeypatch.setattr(slurm_parking, "run", lambda *_: next(outputs))

    def report(command: object) -> None:
        found.append(command)
        stopped.set()

    park_slurm(PeakRule(PeakSettings(1, 0)), 0.0, report, stopped)
    assert found == [ParkMachine("a1")]


@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
def test_real_cluster_is_parked_and_woken_for_a_job(tmp_path: Path) -> None:
    log, cluster = tmp_path / "log", tmp_path / "cluster"
    suspend, resume = tmp_path / "suspend.sh", tmp_path / "resume.sh"
    suspend.write_text(f"#!/bin/sh\necho suspend $1 >> {log}\n")
    restart = f"kill $(cat {cluster}/slurmd.pid)\nsleep 1\nslurmd -b -f {cluster}/slurm.conf\n"
    resume.write_text(
        f"#!/bin/sh\necho resume $1 >> {log}\nexport PATH=$PATH:/usr/sbin:/usr/bin:/bin\n"
        f"export SLURM_CONF={cluster}/slurm.conf\n{restart}"
    )
    for program in (suspend, resume):
        program.chmod(0o755)
    power = f"SuspendProgram={suspend}\nResumeProgram={resume}\nSuspendTime=31536000\n"

    def run(command: Sequence[str]) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def logged() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    with slurm_cluster(cluster, power + "SuspendTimeout=2\nResumeTimeout=60\n"):
        controller = ParkingController(PeakRule(PeakSettings(window=1, buffer=0)))
        assert tick(controller, run, 0.0) == [ParkMachine("localhost")]
        wait_for(lambda: logged() == ["suspend localhost"], "the node is switched off")
        assert observed(run(NODES), "", 0.0).parked == ("localhost",)
        submit("waits", "true")
        wait_for(lambda: observed(run(NODES), run(WAITING), 1.0).waiting == 1, "the job waits")
        assert tick(controller, run, 1.0) == [WakeMachine("localhost")]
        wait_for(lambda: logged()[1:] == ["resume localhost"], "the node is switched on")
        wait_for(
            lambda: run(NODES).strip() in {"localhost|idle|1", "localhost|allocated|1"}, "the node is on"
        )
