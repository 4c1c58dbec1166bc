"""`--chaos`: fault injection from the command line, into worker processes and in the simulator."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.command import Oddlot

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.parametrize(
        ("command", "machine"),
        [("train digits --workers 2", "w2"), ("simulate digits --machines fleet.toml", "spot2")],
        ids=["train", "simulate"],
    ),
]
CHAOS = """\
[[faults]]
kind = "drop"
machine = "MACHINE"
at_versions = [3]

[[faults]]
kind = "slow"
at_versions = [5]
factor = 0.5
"""


def test_injected_faults_are_reported(oddlot: Oddlot, command: str, machine: str) -> None:
    Path("chaos.toml").write_text(CHAOS.replace("MACHINE", machine))
    answer = oddlot(*command.split(), "--until", "epochs>=1", "--out", "run", "--chaos", "chaos.toml")
    *_, faults = answer.out.splitlines()
    assert sorted(re.findall(r"\d \w+", faults)) == ["1 drop", "1 slow"]
    found = json.loads(oddlot("report", "run", "--json").out)
    assert (found["injected_faults"], found["exactly_once"]) == ({"drop": 1, "slow": 1}, True)
    *_, faults = oddlot("report", "run").out.splitlines()
    assert sorted(re.findall(r"\d \w+", faults)) == ["1 drop", "1 slow"]


def test_unknown_machine_is_reported_with_its_line(oddlot: Oddlot, command: str, machine: str) -> None:
    Path("chaos.toml").write_text(CHAOS.replace("MACHINE", f"{machine}x"))
    asked = (*command.split(), "--chaos")
    found: dict[str, Any] = {"kind": "machine", "nearest": machine, "path": "chaos.toml", "line": 3}
    oddlot.rejects("unknown_name", *asked, "chaos.toml", **found)
    oddlot.rejects("unreadable_file", *asked, "absent.toml", path="absent.toml")
