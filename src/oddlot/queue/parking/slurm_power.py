"""Parking of a Slurm cluster by its power saving.

`slurm.conf` needs `SuspendProgram` and `ResumeProgram`, which switch machines off and on, and a long `SuspendTime` such
as 31536000, because the controller decides. Slurm disables power saving with `SuspendTime=INFINITE`. This module starts
no process: the caller passes a function that runs a command.
"""

from collections.abc import Callable, Sequence
from math import ceil

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.commands import ParkMachine, WakeMachine
from oddlot.queue.core.parking import Forecast, MachinesObserved, ParkingController

NODES = ("sinfo", "--noheader", "--Node", "--format", "%N|%T|%c")
"""Names, states and cores of all nodes."""
WAITING = ("squeue", "--noheader", "--states", "PENDING", "--format", "%D|%r|%C|%b")
"""Numbers of nodes of pending jobs, the reasons why they wait, their cores, and their GPUs per node."""
BUSY = ("allocated", "mixed", "completing")
IDLE = ("idle",)
OFF = ("powered_down", "powering_down", "power_down")
NEEDS_NODES = ("Resources", "Priority", "Nodes", "ReqNodeNotAvail")
"""Reasons of jobs that wait for nodes."""
SUFFIXES = {"~": "off", "%": "off", "!": "off", "#": "on", "@": "on"}
"""Marks of Slurm after a state: powered down, powering down, power down requested; powering up, rebooting."""
UNUSABLE = "*$-^"
"""Marks of nodes that do not respond, are reserved or in maintenance."""
Run = Callable[[Sequence[str]], str]
"""Runs a command and returns its output."""


def observed(nodes: str, waiting: str, now: float, forecast: Forecast | None = None) -> MachinesObserved:
    """Return the machines of the outputs of `NODES` and `WAITING`. Drained, failed and reserved nodes are left out."""
    kinds: dict[str, set[str]] = {"busy": set(), "idle": set(), "parked": set()}
    cores = list[int]()
    for line in nodes.splitlines():
        name, state, count, *_ = [*line.strip().split("|"), "", ""]
        if name and (kind := _kind(state.lower())):
            kinds[kind].add(name)
            cores.append(int(count) if count.isdecimal() else 1)
    busy, idle, parked = (tuple(sorted(names)) for names in kinds.values())
    return MachinesObserved(now, busy, idle, parked, _waiting(waiting, min(cores, default=1)), forecast)


def arguments(command: ParkMachine | WakeMachine) -> tuple[str, ...]:
    """Return the command line that performs a command."""
    state = "power_down" if isinstance(command, ParkMachine) else "power_up"
    return "scontrol", "update", f"nodename={command.machine}", f"state={state}"


def tick(
    controller: ParkingController, run: Run, now: float, forecast: Forecast | None = None
) -> list[ParkMachine | WakeMachine]:
    """Observe the cluster, perform the controller's commands, and return them.

    Raise UsageError if the cluster has no usable node.
    """
    seen = observed(run(NODES), run(WAITING), now, forecast)
    if not (seen.busy or seen.idle or seen.parked):
        raise UsageError("sinfo shows no node that can be used: check that slurmctld runs", "no_nodes")
    commands = controller.handle(seen)
    for command in commands:
        run(arguments(command))
    return commands


def _kind(state: str) -> str | None:
    """Return "busy", "idle", "parked" or None for a state of sinfo, such as `idle~`."""
    word = state.rstrip("".join(SUFFIXES) + UNUSABLE)
    marks = state[len(word) :]
    if any(mark in UNUSABLE for mark in marks):
        return None
    power = {SUFFIXES[mark] for mark in marks}
    if word in OFF or ("off" in power and word in IDLE):
        return "parked"
    if word in BUSY:
        return "busy"
    return "idle" if word in IDLE else None


def _waiting(text: str, cores: int) -> int:
    """Return the nodes that pending jobs need. Jobs without GPU share nodes of this number of cores."""
    of_gpus, nodes, needed = 0, [0], 0
    for line in text.splitlines():
        count, why, cpus, gpus, *_ = [*line.strip().split("|"), "", "", ""]
        if not count.isdecimal() or not why.startswith(NEEDS_NODES):
            continue
        if "gpu" in gpus or not cpus.isdecimal():
            of_gpus += int(count)
        else:
            nodes.append(int(count))
            needed += int(cpus)
    return of_gpus + min(sum(nodes), max(*nodes, ceil(needed / max(1, cores))))
