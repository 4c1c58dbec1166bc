"""Machines from TOML: what a good file says, and what each bad one is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from oddlot.core.errors import UsageError
from oddlot.machines.delays import (
    Delay,
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
    Trace,
)
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.read import read_machines
from oddlot.machines.toml_file import locate

FLEET = """\
# Three spot machines and an old one.

[[machines]]
name = "spot"
count = 3
seconds_per_sample = 0.002
delay = { kind = "lognormal", cv = 0.3 }
dollars_per_hour = 0.35
lifetime = { kind = "exponential", mean_seconds = 3600 }
seconds_to_return = 120

[[machines]]
name = "old"
joins_at_seconds = 5
link = { megabits_per_second = 100, latency_milliseconds = 20 }
seconds_per_sample = 0.001
[machines.delay]
kind = "trace"
multipliers = [
  1,
  2.5,
]
"""
ONE = '[[machines]]\nname = "a"\nseconds_per_sample = 2'


def read(folder: Path, text: str) -> list[Machine]:
    path = folder / "fleet.toml"
    path.write_text(text)
    return read_machines(path)


def refused(folder: Path, text: str) -> str:
    """The sentence that the file gets, without its folder."""
    with pytest.raises(UsageError) as refusal:
        read(folder, text)
    return str(refusal.value).replace(f"{folder}/", "")


def test_a_fleet_is_read_whole(tmp_path: Path) -> None:
    *spots, old = read(tmp_path, FLEET)
    assert spots == [
        Machine(
            f"spot{number}",
            seconds_per_sample=0.002,
            delay=Lognormal(0.3),
            dollars_per_hour=0.35,
            lifetime=Lifetime(3600, Exponential()),
            seconds_to_return=120,
        )
        for number in (1, 2, 3)
    ]
    assert old == Machine("old", delay=Trace((1, 2.5)), link=Link(100, 20), joins_at_seconds=5)


def test_a_name_and_a_speed_are_enough(tmp_path: Path) -> None:
    assert read(tmp_path, ONE) == [Machine("a", 2.0)]
    assert read(tmp_path, f"{ONE}\ncount = 1") == [Machine("a1", 2.0)]


@pytest.mark.parametrize(
    ("table", "model"),
    [
        ('kind = "deterministic"', Deterministic()),
        ('kind = "exponential"', Exponential()),
        ('kind = "erlang", shape = 4', Erlang(4)),
        ('kind = "shifted_exponential", shift = 0.5', ShiftedExponential(0.5)),
        ('kind = "trace", file = "slow.txt"', Trace((1.0, 1.5))),
    ],
)
def test_every_kind_of_delay_is_read(tmp_path: Path, table: str, model: Delay) -> None:
    (tmp_path / "slow.txt").write_text("1.0\n\n1.5\n")
    text = f"{ONE}\ndelay = {{ {table} }}\nlifetime = {{ {table}, mean_seconds = 9 }}"
    (machine,) = read(tmp_path, text)
    assert (machine.delay, machine.lifetime) == (model, Lifetime(9, model))


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        ("cv = 0.3", "cvs = 0.3", "fleet.toml:7: unknown key `cvs`: did you mean `cv`?"),
        ("lognormal", "log_normal", "fleet.toml:7: unknown kind `log_normal`: did you mean `lognormal`?"),
        ("cv = 0.3", "shape = 2", "fleet.toml:7: unknown key `shape`: the kind lognormal takes cv"),
        (", cv = 0.3", "", "fleet.toml:7: the kind lognormal needs `cv`"),
        (
            "cv = 0.3",
            'cv = "0.3"',
            "fleet.toml:7: `machines[0].delay.cv` is '0.3': it must be a valid number",
        ),
        ('{ kind = "lognormal", cv = 0.3 }', '"lognormal"', "fleet.toml:7: the kind lognormal needs `cv`"),
        ("cv = 0.3", "cv = -1", "fleet.toml:7: cv = -1.0 must be finite and not negative"),
        ("count = 3", "counts = 3", "fleet.toml:5: unknown key `counts`: did you mean `count`?"),
        ("count = 3", "count = 0", "fleet.toml:5: count = 0 must be at least 1"),
        ("count = 3", "count = 1.5", "fleet.toml:5: `machines[0].count` is 1.5: it must be a valid integer"),
        (
            "= 120",
            "= true",
            "fleet.toml:10: `machines[0].seconds_to_return` is True: it must be a valid number",
        ),
        ("= 120", "= -120", "fleet.toml:10: seconds_to_return = -120.0 must be"),
        (
            "mean_seconds",
            "mean_second",
            "fleet.toml:9: unknown key `mean_second`: did you mean `mean_seconds`?",
        ),
        ("exponential", "exp", "fleet.toml:9: unknown kind `exp`"),
        ('name = "old"', "", "fleet.toml:12: `name` is missing in `machines[1]`"),
        ("seconds_per_sample = 0.001", "", "fleet.toml:12: `seconds_per_sample` is missing in `machines[1]`"),
        ('"old"', '"spot2"', "fleet.toml:13: a second machine is called spot2"),
        ('"old"', '"an old one"', "fleet.toml:13: name = 'an old one' must be of letters"),
        ("= 100,", "= 0,", "fleet.toml:15: megabits_per_second = 0.0 must be above 0"),
        (
            '"trace"',
            '"trace"\nfile = "a.txt"',
            "fleet.toml:20: unknown key `multipliers`: the kind trace takes file",
        ),
        ("2.5", "-2.5", "fleet.toml:17: multiplier 2 of the trace is -2.5"),
        ("2.5,\n]", "2.5,\n", "fleet.toml:21: not valid TOML"),
        ("cv = 0.3", "cv =", "fleet.toml:7: not valid TOML"),
        ("[[machines]]", "[[machine]]", "fleet.toml:3: unknown key `machine`: did you mean `machines`?"),
    ],
)
def test_a_bad_file_is_told_the_line_and_the_remedy(
    tmp_path: Path, good: str, bad: str, sentence: str
) -> None:
    assert good in FLEET
    assert sentence in refused(tmp_path, FLEET.replace(good, bad))


def test_all_faults_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = FLEET.replace("0.3 }", "true }").replace("= 5", '= "5"').replace("= 100", '= "slow"')
    assert [line.split(" ")[0] for line in refused(tmp_path, text).splitlines()] == [
        "fleet.toml:7:",
        "fleet.toml:14:",
        "fleet.toml:15:",
    ]


def test_no_machines_no_file_no_text(tmp_path: Path) -> None:
    assert "names no machine" in refused(tmp_path, "machines = []")
    assert "`machines` is missing" in refused(tmp_path, "")
    with pytest.raises(UsageError, match=r"absent\.toml cannot be read: No such file"):
        read_machines(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary\.toml is not a text in UTF-8: byte 0"):
        read_machines(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1.0\nfast\n", "line 2: 'fast' is not a number"),
        ("1.0\n-1\n", "multiplier 2 of the trace is -1.0"),
        ("\n", "a trace needs at least one multiplier"),
        (None, "cannot be read as a trace"),
    ],
)
def test_a_bad_trace_file_is_told_where_it_was_asked_for(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "slow.txt").write_text(content)
    answer = refused(
        tmp_path,
        '[[machines]]\nname = "a"\nseconds_per_sample = 1\ndelay = { kind = "trace", file = "slow.txt" }',
    )
    assert answer.startswith("fleet.toml:4: ")
    assert sentence in answer


def test_keys_are_located_in_every_way_of_writing_them() -> None:
    text = (
        '# top\na.b = 1\n\n[c]\nd = [\n  1,\n  2,\n]\n# e\ne = """\nf = 1\n"""\n[[g]]\nh = 1\n[[g]]\nh = 2\n'
    )
    places = {("a", "b"): 2, ("c",): 4, ("c", "d"): 5, ("c", "d", 1): 5, ("c", "e"): 10, ("g", 1, "h"): 16}
    assert {keys: locate(text, keys) for keys in places} == places
    assert locate(text, ("g", 0, "absent")) == 13, "what is missing is missing from its table"
    assert locate(text, ("c", "member", "d")) == 5, "words that are not keys are passed over"
    assert locate(text, ()) == 1


def test_describing_machines_costs_no_pydantic() -> None:
    program = "import sys, oddlot.machines.machine; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
