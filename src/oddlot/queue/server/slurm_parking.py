"""The loop that parks and wakes the nodes of Slurm."""

import logging
import threading
from collections.abc import Callable
from time import time

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.commands import ParkMachine, WakeMachine
from oddlot.queue.core.parking import ParkingController, ParkingRule
from oddlot.queue.parking.slurm_power import tick
from oddlot.queue.server.slurm_commands import SlurmError, run

log = logging.getLogger("oddlot.queue")


def park_slurm(
    rule: ParkingRule,
    every: float,
    report: Callable[[ParkMachine | WakeMachine], None],
    stopped: threading.Event | None = None,
) -> None:
    """Observe the nodes of Slurm every `every` seconds, and power them down and up, until `stopped` is set.

    `report` is called with each command. Errors of Slurm are logged, and the next tick tries again, as when no node can
    be used. Raise SlurmError if a command of the first tick fails.
    """
    stopped = stopped or threading.Event()
    controller, first = ParkingController(rule), True
    while True:
        try:
            for command in tick(controller, lambda command: run(*command), time()):
                report(command)
        except UsageError as error:
            if first and isinstance(error, SlurmError):
                raise
            log.warning("%s", error)
        first = False
        if stopped.wait(every):
            return
