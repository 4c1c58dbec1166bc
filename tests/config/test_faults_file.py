"""Fault files: the plans of valid files, and the errors of invalid files."""

from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot.config.faults_file import read_chaos
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.faults import plan as chaos
from oddlot.faults.plan import Chaos, Fault
from tests.fits import a_job, fleet, local
from tests.machines.files import subject, written
from tests.transcripts import raises

FILE = """\
seed = 7

[[faults]]
kind = "kill"
every_seconds = 5

[[faults]]
kind = "slow"
machine = "w1"
at_seconds = [0, 2.5]
factor = 5
for_seconds = 60

[[faults]]
kind = "leave"
file = "notices.txt"
"""


def read(folder: Path, text: str) -> Chaos:
    written(folder / "notices.txt", "1.5\n\n20\n")
    return read_chaos(written(folder / "chaos.toml", text))


def test_faults_and_seed_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, FILE) == Chaos(
        [
            Fault("kill", every_seconds=5),
            Fault("slow", "w1", at_seconds=(0, 2.5), factor=5, for_seconds=60),
            Fault("leave", at_seconds=(1.5, 20.0)),
        ],
        seed=7,
    )


@pytest.mark.parametrize(
    ("good", "bad", "line", "code", "about"),
    [
        ('"kill"', '"kil"', 4, "invalid_value", "faults[0].kind"),
        ("every_seconds = 5", "every_seconds = 0", 5, "invalid_value", "faults[0].every_seconds"),
        ("every_seconds = 5", "per_hour = 1e9", 5, "invalid_value", "faults[0].per_hour"),
        ("every_seconds = 5", "", 4, "not_one_of", []),
        ("= 5\n\n", "= 5\nper_hour = 2\n\n", 4, "not_one_of", ["every_seconds", "per_hour"]),
        ("= 5\n\n", "= 5\nfactor = 2\n\n", 6, "setting_of_another_kind", "factor"),
        ("[0, 2.5]", "[0, -2.5]", 10, "invalid_value", "faults[1].at_seconds"),
        ("factor = 5", "", 8, "missing_setting", "factor"),
        ("machine", "machin", 9, "unknown_key", "machin"),
        ('"notices.txt"', '"notices.txt"\nat_seconds = [1]', 16, "not_one_of", ["at_seconds", "file"]),
        ("notices", "absent", 16, "unreadable_file", None),
        ('"notices.txt"', "3", 16, "invalid_value", "file"),
        ('"notices.txt"', '""', 16, "invalid_value", "file"),
        ("seed = 7", "seed = -7", 1, "invalid_value", "seed"),
        ("[[faults]]", "[[fault]]", 3, "unknown_key", "fault"),
    ],
)
def test_invalid_value_is_reported_with_its_line(
    tmp_path: Path, good: str, bad: str, line: int, code: str, about: Any
) -> None:
    assert good in FILE
    with raises(UsageError, code, line=line) as caught:
        read(tmp_path, FILE.replace(good, bad))
    assert subject(caught.value) == about


def test_file_without_faults_is_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "no_faults", path=str(tmp_path / "chaos.toml")):
        read(tmp_path, "seed = 7\n")


LEAVE = '[[faults]]\nkind = "leave"\nfile = "trace.csv"\n'


def test_preemption_trace_gives_a_fault_per_lost_machine(tmp_path: Path) -> None:
    """Published traces have lines with a time and the number of available instances from then on."""
    trace = "0,8\n12.5,6\n30,7\n\n31,7\n60.25,6\n"
    for text in (trace, f"time,alive\n{trace}"):
        written(tmp_path / "trace.csv", text)
        assert read(tmp_path, LEAVE).faults == [Fault("leave", at_seconds=(12.5, 12.5, 60.25))]


@pytest.mark.parametrize(
    ("trace", "code", "given"),
    [
        ("1\nnan\n", "invalid_line", "nan"),
        ("0,8\n12.5\n", "invalid_line", "12.5"),
        ("0,8\n12.5,2.5\n", "fractional_count", 2.5),
        ("5,8\n0,6\n", "times_out_of_order", 0),
    ],
)
def test_invalid_trace_is_reported_with_the_lines_of_both_files(
    tmp_path: Path, trace: str, code: str, given: object
) -> None:
    file = written(tmp_path / "trace.csv", trace)
    with raises(UsageError, code, line=3, file=str(file), file_line=2, given=given):
        read(tmp_path, LEAVE)


def test_trace_with_too_many_lost_machines_is_rejected(tmp_path: Path) -> None:
    file = written(tmp_path / "trace.csv", "0,1e15\n1,0\n")
    with raises(UsageError, "too_many_machines", file=str(file), machines=10**15):
        read(tmp_path, LEAVE)


def test_too_many_faults_are_rejected_before_validating_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "MAX_FAULTS", 2)
    fault = Fault("kill", every_seconds=5)
    with raises(UsageError, "too_many_faults", given=3, most=2):
        read(tmp_path, FILE.replace("kind", "kin"))
    with raises(UsageError, "too_many_faults", given=3, most=2):
        Chaos([fault] * 3)
    Chaos([fault] * 2)


def test_faults_have_unique_names() -> None:
    trace = Fault("leave", at_seconds=[0.5 * n for n in range(9)])  # type: ignore[arg-type]  # users pass lists
    slow = Fault("slow", "w1", per_hour=60, factor=2.5, for_seconds=3)
    names = [name for name, _ in Chaos([trace, slow, trace]).named()]
    assert names == [
        "leave at_seconds=0,0.5,...6 more...,4",
        "slow w1 per_hour=60 for_seconds=3 factor=2.5",
        "leave at_seconds=0,0.5,...6 more...,4 #2",
    ]


def test_unknown_machine_is_reported_with_its_line(tmp_path: Path) -> None:
    read(tmp_path, FILE)
    with raises(UnknownName, "unknown_name", line=9, given="w1", nearest="w2"):
        read_chaos(tmp_path / "chaos.toml", ["w2"])
    assert read_chaos(tmp_path / "chaos.toml", ["w1"]) == read(tmp_path, FILE)


def test_kill_hub_without_out_is_rejected() -> None:
    kills = Chaos([Fault("kill_hub", at_versions=(1,))])
    with raises(UsageError, "missing_setting", name="out") as caught:
        oddlot.fit(a_job(), oddlot.Synchronous(), fleet(2), until="epochs>=1", chaos=kills)
    assert caught.value.key == "chaos"


def test_unknown_machine_raises_before_the_start() -> None:
    kills = Chaos([Fault("kill", "w9", at_seconds=(1,))])
    for on, nearest in ((local(2), "w2"), (fleet(2), None)):
        with raises(UnknownName, "unknown_name", given="w9", nearest=nearest):
            oddlot.fit(a_job(), oddlot.Synchronous(), on, until="epochs>=1", chaos=kills)
