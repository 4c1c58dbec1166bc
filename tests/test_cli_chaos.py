"""`--chaos`: faults on purpose from the command line, on worker processes and in the simulator."""

from pathlib import Path

import pytest

from tests.command import FLEET, Oddlot

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


@pytest.fixture(params=["train", "simulate"])
def command(request: pytest.FixtureRequest) -> tuple[list[str], str]:
    """A command, and one of its machines."""
    if request.param == "train":
        return ["train", "digits", "--workers", "2"], "w2"
    Path("fleet.toml").write_text(FLEET)
    return ["simulate", "digits", "--machines", "fleet.toml"], "spot2"


def test_faults_strike_and_are_reported(oddlot: Oddlot, command: tuple[list[str], str]) -> None:
    words, machine = command
    Path("chaos.toml").write_text(CHAOS.replace("MACHINE", machine))
    oddlot.json(*words, "--until", "epochs>=2", "--out", "run", "--chaos", "chaos.toml")
    answer = oddlot("report", "run")
    assert "\n  faults   1 drop, 1 slow\n" in answer.out or "\n  faults   1 slow, 1 drop\n" in answer.out
    assert "proof    exactly once" in answer.out


def test_a_machine_that_is_not_there_is_told_with_the_line(
    oddlot: Oddlot, command: tuple[list[str], str]
) -> None:
    words, machine = command
    Path("chaos.toml").write_text(CHAOS.replace("MACHINE", f"{machine}x"))
    answer = oddlot(*words, "--chaos", "chaos.toml")
    assert answer.code == 2
    assert f"chaos.toml:3: no machine is called '{machine}x': did you mean `{machine}`?" in answer.err
    answer = oddlot(*words, "--chaos", "absent.toml")
    assert (answer.code, "absent.toml cannot be read: No such file" in answer.err) == (2, True)
