"""What may go wrong on purpose: what good files say, and what each bad one is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

import oddlot
from oddlot.core.errors import UsageError
from oddlot.machines.chaos import Chaos, Fault
from oddlot.machines.read_chaos import read_chaos
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
    (folder / "bad.txt").write_text("1\nnan\n")
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
            "chaos.toml:5: `faults[0].every_seconds` is 0: it must be finite and at least 0.001",
        ),
        (
            "every_seconds = 5",
            "per_hour = 1e9",
            "chaos.toml:5: `faults[0].per_hour` is 1000000000.0: it must be above 0 and at most 3,600,000",
        ),
        (
            "every_seconds = 5",
            "",
            "chaos.toml:4: a fault has one of at_seconds, at_versions, every_seconds, per_hour (or a `file` of times)",
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
        ("notices", "absent", "chaos.toml:16: absent.txt cannot be read: No such file"),
        ("notices", "bad", "chaos.toml:16: bad.txt: line 2: 'nan' is no number that is finite"),
        ('"notices.txt"', "3", "chaos.toml:16: file = 3 must be the path of a text file"),
        ('"notices.txt"', '""', "chaos.toml:16: file = '' must be the path of a text file"),
        ("seed = 7", "seed = -7", "chaos.toml:1: `seed` is -7: it must be a whole number from 0"),
        ("[[faults]]", "[[fault]]", "chaos.toml:3: unknown key `fault`: did you mean `faults`?"),
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
        (lambda: Fault("kill", at_versions=(0.5,)), "at_versions = (0.5,) must be a list of whole numbers"),  # type: ignore[arg-type]
        (lambda: Fault("kill", at_versions=(True,)), "at_versions = (True,) must be a list of whole numbers"),
        (lambda: Fault("kill_hub", "w1", at_versions=(1,)), "kill_hub strikes the hub, which is no machine"),
        (lambda: Fault("delay", at_seconds=(5,)), "delay needs `delay_seconds`"),
        (lambda: Fault("slow", at_seconds=(5,), factor=0.0), "factor = 0.0 must be finite and above 0"),
        (
            lambda: Fault("kill", at_seconds=(5,), for_seconds=1),
            "for_seconds is not for kill, but for freeze and slow",
        ),
        (lambda: Chaos(["kill"]), "faults must be a list of oddlot.Fault"),  # type: ignore[list-item]
        (lambda: read_chaos(3), "path = 3 must be a file's path"),  # type: ignore[arg-type]
        (lambda: read_chaos("a\0b"), r"path = 'a\x00b' must be a file's path"),
        (lambda: read_chaos(""), "path = '' must be a file's path"),
    ],
)
def test_an_impossible_fault_is_told(make: Callable[[], object], told: str) -> None:
    with pytest.raises(UsageError) as refusal:
        make()
    assert told in str(refusal.value)


def test_a_preemption_trace_is_struck_wherever_machines_were_lost(tmp_path: Path) -> None:
    """As published traces have it: how many instances were alive from when on."""
    trace = "0,8\n12.5,6\n30,7\n\n31,7\n60.25,6\n"
    for text in (trace, f"time,alive\n{trace}"):
        (tmp_path / "trace.csv").write_text(text)
        chaos = read(tmp_path, '[[faults]]\nkind = "leave"\nfile = "trace.csv"\n')
        assert chaos.faults == [Fault("leave", at_seconds=(12.5, 12.5, 60.25))]
    for bad, told in {
        "0,8\n12.5\n": "line 2: '12.5' is not `time,alive`",
        "0,8\n12.5,2.5\n": "how many are alive must be a whole number",
        "5,8\n0,6\n": "the times of a trace must not go back",
    }.items():
        (tmp_path / "trace.csv").write_text(bad)
        with pytest.raises(UsageError, match=rf"chaos\.toml:3: .*trace\.csv: .*{told}"):
            read(tmp_path, '[[faults]]\nkind = "leave"\nfile = "trace.csv"\n')


def test_faults_have_names_that_tell_them_apart() -> None:
    trace = Fault("leave", at_seconds=[0.5 * n for n in range(9)])  # type: ignore[arg-type]  # as people write it
    slow = Fault("slow", "w1", per_hour=60, factor=2.5, for_seconds=3)
    names = [name for name, _ in Chaos([trace, slow, trace]).named()]
    assert names == [
        "leave at_seconds=0,0.5,...6 more...,4",
        "slow w1 per_hour=60 for_seconds=3 factor=2.5",
        "leave at_seconds=0,0.5,...6 more...,4 #2",
    ]


def test_an_unknown_machine_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    read(tmp_path, FILE)
    with pytest.raises(UsageError, match=r"chaos\.toml:9: no machine is called 'w1': did you mean"):
        read_chaos(tmp_path / "chaos.toml", ["w2"])
    assert read_chaos(tmp_path / "chaos.toml", ["w1"]) == read(tmp_path, FILE)


def test_the_hub_is_not_killed_with_all_that_is_not_saved() -> None:
    chaos = Chaos([Fault("kill_hub", at_versions=(1,))])
    with pytest.raises(
        UsageError, match="kill_hub ends this process with all that is not saved: name a folder"
    ):
        oddlot.fit(a_job(), oddlot.Synchronous(), fleet(2), until="epochs>=1", chaos=chaos)


def test_an_unknown_machine_is_told_before_anything_starts() -> None:
    chaos = Chaos([Fault("kill", "w9", at_seconds=(1,))])
    for on, names in ((local(2), "w1, w2"), (fleet(2), "m0, m1")):
        with pytest.raises(UsageError, match=rf"no machine is called 'w9': .*{names}"):
            oddlot.fit(a_job(), oddlot.Synchronous(), on, until="epochs>=1", chaos=chaos)
