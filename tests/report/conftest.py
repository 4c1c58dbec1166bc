"""Runs that several tests use."""

from dataclasses import replace
from pathlib import Path

import pytest

import oddlot
from oddlot import Asynchronous, Machine, Simulated, Synchronous
from oddlot.faults import Chaos, Fault
from oddlot.machines import Lifetime
from oddlot.report.run_report import RunReport
from tests.fits import a_job, rows


def unequal(price: float = 3600.0) -> Simulated:
    """Return a fleet of machines with a price. One of them is lost and returns."""
    comes_and_goes = Machine("b", 0.02, dollars_per_hour=price, lifetime=Lifetime(1.0), seconds_to_return=0.5)
    first, last = (Machine(name, speed, dollars_per_hour=price) for name, speed in (("a", 0.01), ("c", 0.03)))
    return Simulated([first, comes_and_goes, last])


@pytest.fixture(scope="session")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with everything that a page shows."""
    folder = tmp_path_factory.mktemp("eventful")
    job = replace(a_job(), eval_data=rows(20), metrics={"accuracy": oddlot.accuracy}, name="sides & <lines>")
    chaos = Chaos([Fault("slow", "a", at_seconds=(1,), factor=1), Fault("corrupt", at_versions=(9,))])
    oddlot.fit(job, Asynchronous(), unequal(), until="epochs>=10", out=folder, chaos=chaos)
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run without evaluations and without prices."""
    folder = tmp_path_factory.mktemp("plain")
    oddlot.fit(a_job(), Synchronous(), unequal(price=0.0), until="epochs>=2", out=folder)
    return folder


@pytest.fixture
def figures(eventful: Path) -> RunReport:
    """Return the figures of the eventful run."""
    return RunReport.read(eventful)
