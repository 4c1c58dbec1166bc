"""The report page of a mesh: exchanges between peers, and distances between their models."""

import re
from pathlib import Path

import pytest

from oddlot import Gossip
from oddlot.core.events import Averaged, ModelReceived
from oddlot.report.html_page import page
from oddlot.report.run_report import RunReport
from tests.fits import a_job, fleet, rows
from tests.run.test_mesh import gossiped


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    folder: Path = tmp_path_factory.mktemp("mesh")
    gossiped(Gossip(topology="ring"), out=folder)
    return RunReport.read(folder)


def test_exchange_matrix_counts_each_pair(figures: RunReport) -> None:
    (matrix,) = re.findall(r'data-plot="exchange-matrix".*?</figure>', page([figures]))
    found = {
        (to, sender): int(count)
        for to, sender, count in re.findall(r'title="(\w+) from (\w+): ([\d,]+) models', matrix)
    }
    received = [(r.peer, r.event.model.sender) for r in figures.records if isinstance(r.event, ModelReceived)]
    assert {pair: count for pair, count in found.items() if count} == {p: received.count(p) for p in received}
    assert len(found) == 16


def test_rate_and_disagreement_are_drawn(figures: RunReport) -> None:
    drawn = page([figures])
    assert 'data-plot="exchange-rate"' in drawn
    (chart,) = re.findall(r'data-plot="disagreement".*?</figure>', drawn)
    (path,) = re.findall(r'd="M([^"]*)"', chart.replace('class="grid"', ""))[-1:]
    assert path.count("L") + 1 == sum(isinstance(r.event, Averaged) for r in figures.records)


def test_number_of_exchanges_is_shown(figures: RunReport) -> None:
    assert f"{figures.tally.exchanges:,} exchanges between peers" in page([figures])


def test_hub_run_has_no_exchange_charts(tmp_path: Path) -> None:
    from oddlot import Synchronous, fit

    fit(a_job(eval_data=rows(8)), Synchronous(), fleet(), until="epochs>=1", out=tmp_path)
    assert "exchange-matrix" not in page([RunReport.read(tmp_path)])
