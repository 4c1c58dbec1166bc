"""What may go wrong on purpose: what good files say, and what each bad one is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

import oddlot
from oddlot.core.errors import UsageError
from oddlot.machines.chaos import Chaos, Fault
from oddlot.machines.read import read_chaos
from tests.fits import a_job, fleet, local

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
    (folder / "notices.txt").write_text("1.5\n\n20\n")
    (folder / "chaos.toml").write_text(text)
    return read_chaos(folder / "chaos.toml")


def test_a_file_says_what_is_to_go_wrong(tmp_path: Path) -> None:
    assert read(tmp_path, FILE) == Chaos(
        [
            Fault("kill", every_seconds=5),
            Fault("slow", "w1", at_seconds=(0, 2.5), factor=5, for_seconds=60),
            Fault("leave", at_seconds=(1.5, 20.0)),
        ],
        seed=7,
    )


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        (
            '"kill"',
            '"kil"',
            "chaos.toml:4: `faults[0].kind` is 'kil': it must be a kind of fault: did you mean `kill`?",
        ),
        (
            "every_seconds = 5",
            "every_seconds = 0",
            "chaos.toml:5: `faults[0].every_seconds` is 0: it must be finite",
        ),
        (
            "every_seconds = 5",
            "",
            "chaos.toml:4: a fault has one of at_seconds, at_versions, every_seconds, per_hour",
        ),
        ("every_seconds = 5", "every_seconds = 5\nper_hour = 2", "chaos.toml:4: a fault has one of"),
        (
            "every_seconds = 5",
            "every_seconds = 5\nfactor = 2",
            "chaos.toml:6: factor is not for kill, but for slow",
        ),
        (
            "[0, 2.5]",
            "[0, -2.5]",
            "chaos.toml:10: `faults[1].at_seconds` is [0, -2.5]: it must be a list of numbers",
        ),
        ("factor = 5", "", "chaos.toml:8: slow needs `factor`"),
        ("machine", "machin", "chaos.toml:9: unknown key `machin` of Fault: did you mean `machine`?"),
        ("notices", "absent", "chaos.toml:16: file = "),
        ("seed = 7", "seed = -7", "chaos.toml:1: `seed` is -7: it must be a whole number from 0"),
        ("[[faults]]", "[[fault]]", "chaos.toml:1: `faults` is missing"),
    ],
)
def test_a_bad_file_is_told_the_line_and_the_remedy(tmp_path: Path, good: str, bad: str, told: str) -> None:
    assert good in FILE
    with pytest.raises(UsageError) as refusal:
        read(tmp_path, FILE.replace(good, bad))
    assert told in str(refusal.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: Fault("explode"),
            "kind = 'explode' must be a kind of fault: there are: corrupt, delay, drop",
        ),
        (lambda: Fault("kill", at_seconds=5), "at_seconds = 5 must be a list of numbers"),  # type: ignore[arg-type]
        (lambda: Fault("delay", at_seconds=(5,)), "delay needs `delay_seconds`"),
        (
            lambda: Fault("kill", at_seconds=(5,), for_seconds=1),
            "for_seconds is not for kill, but for freeze and slow",
        ),
        (lambda: Chaos(["kill"]), "faults must be a list of oddlot.Fault"),  # type: ignore[list-item]
        (lambda: read_chaos(3), "path = 3 must be a file's path"),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_fault_is_told(make: Callable[[], object], told: str) -> None:
    with pytest.raises(UsageError) as refusal:
        make()
    assert told in str(refusal.value)


def test_an_unknown_machine_is_told_before_anything_starts() -> None:
    chaos = Chaos([Fault("kill", "w9", at_seconds=(1,))])
    for on, names in ((local(2), "w1, w2"), (fleet(2), "m0, m1")):
        with pytest.raises(UsageError, match=rf"no machine is called 'w9': .*{names}"):
            oddlot.fit(a_job(), oddlot.Synchronous(), on, until="epochs>=1", chaos=chaos)
