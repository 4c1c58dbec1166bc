"""Tests of the warning about too many local workers for the number of cores."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from oddlot import Local, Machine
from oddlot.engines.local import config as on_local
from tests.transcripts import warns


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_local, "cores", lambda: 3)
    monkeypatch.setattr(on_local, "ForkClient", lambda: SimpleNamespace(close=list))


def test_too_many_workers_warn() -> None:
    with ExitStack() as closing, warns("many_workers", workers=13, cores=3):
        Local(13).begin(closing)


@pytest.mark.parametrize("on", [Local(12), Local(13, as_if=tuple(Machine(f"m{i}", 1.0) for i in range(13)))])
def test_few_or_paced_workers_do_not_warn(on: Local) -> None:
    """Workers with `as_if` wait most of the time, and cause no warning."""
    with ExitStack() as closing:
        on.begin(closing)
