"""User-defined strategies, specified by import path."""

from pathlib import Path

import pytest

from tests.command import Oddlot

MINE = '''
from dataclasses import dataclass

from oddlot.strategies import Strategy, Synchronous


@dataclass
class Mine(Synchronous):
    """Does as Synchronous does."""


class Other:
    """No strategy."""


class Plain(Strategy):
    """No dataclass."""
'''


@pytest.fixture(autouse=True)
def module(oddlot: Oddlot) -> None:
    Path("my_strategies.py").write_text(MINE)


def test_import_path_names_a_custom_strategy(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ["train", "digits", "--strategy", "my_strategies:Mine", "--set", "strategy.samples=50"]
    assert oddlot.json(*begun, "--epochs", "1", "--out", "run")["ended"] == "epochs>=1"
    again = oddlot.json("train", "digits", "--resume", "latest", "--out", "run", "--epochs", "2")
    assert (again["ended"], again["samples_merged"]) == ("epochs>=2", 2 * 1437)
    described = oddlot("strategies", "my_strategies:Mine").out
    assert "strategy.samples" in described


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("my_strategies:Other", "not_a_strategy"),
        ("my_strategies:Missing", "not_a_strategy"),
        ("my_strategies:Plain", "no_dataclass"),
        ("no.such.module:Mine", "strategy_not_importable"),
        ("my_strategies.Mine", "unknown_name"),
    ],
)
def test_invalid_strategy_path_is_rejected(given: str, code: str, oddlot: Oddlot) -> None:
    oddlot.rejects(code, "train", "digits", "--strategy", given, given=given)


def test_job_file_accepts_an_import_path_as_inner_strategy(oddlot: Oddlot) -> None:
    Path("mine.toml").write_text(
        'workload = "digits"\n[strategy]\nname = "backup_tasks"\n'
        'inner = { name = "my_strategies:Mine", samples = 40 }\n'
    )
    assert oddlot.json("train", "mine.toml", "--epochs", "1")["ended"] == "epochs>=1"
