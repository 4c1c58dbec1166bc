"""Machines from TOML: what a good file says, and what each bad one is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from oddlot.core.errors import UsageError
from oddlot.machines import packed, toml_file
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
from oddlot.machines.market import Hub, Zone, all_machines
from oddlot.machines.read_fleet import read_fleet
from oddlot.machines.steps import Steps
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
    return list(all_machines(read_fleet(path).machines))


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
        ("cv = 0.3", "cvs = 0.3", "fleet.toml:7: unknown key `cvs` of Lognormal: did you mean `cv`?"),
        ("lognormal", "log_normal", "fleet.toml:7: unknown delay `log_normal`: did you mean `lognormal`?"),
        ("cv = 0.3", "shape = 2", "fleet.toml:7: unknown key `shape` of Lognormal: there are: cv, kind"),
        (", cv = 0.3", "", "fleet.toml:7: `cv` is missing in `machines[0].delay`"),
        (
            "cv = 0.3",
            'cv = "0.3"',
            "fleet.toml:7: `machines[0].delay.cv` is '0.3': it must be a valid number",
        ),
        (
            '{ kind = "lognormal", cv = 0.3 }',
            '"lognormal"',
            "fleet.toml:7: `cv` is missing in `machines[0].delay`",
        ),
        (
            "cv = 0.3",
            "cv = -1",
            "fleet.toml:7: `machines[0].delay.cv` is -1: it must be from 0 to 1,000",
        ),
        ("count = 3", "counts = 3", "fleet.toml:5: unknown key `counts` of Machine: did you mean `count`?"),
        ("count = 3", "count = 0", "fleet.toml:5: `machines[0].count` is 0: it must be at least 1"),
        ("count = 3", "count = 1.5", "fleet.toml:5: `machines[0].count` is 1.5: it must be a valid integer"),
        (
            "= 120",
            "= true",
            "fleet.toml:10: `machines[0].seconds_to_return` is True: it must be a valid number",
        ),
        ("= 120", "= -120", "fleet.toml:10: `machines[0].seconds_to_return` is -120: it must be"),
        (
            "mean_seconds",
            "mean_second",
            "fleet.toml:9: unknown key `mean_second` of Exponential: did you mean `mean_seconds`?",
        ),
        ("exponential", "exp", "fleet.toml:9: unknown lifetime `exp`"),
        ('name = "old"', "", "fleet.toml:12: `name` is missing in `machines[1]`"),
        ("seconds_per_sample = 0.001", "", "fleet.toml:12: `seconds_per_sample` is missing in `machines[1]`"),
        ('"old"', '"spot2"', "fleet.toml:13: a second machine or zone is called spot2"),
        ('"old"', '"an old one"', "fleet.toml:13: `machines[1].name` is 'an old one': it must be of letters"),
        ("= 100,", "= 0,", "fleet.toml:15: `machines[1].link.megabits_per_second` is 0: it must be above 0"),
        (
            '"trace"',
            '"trace"\nfile = "slow.txt"',
            "fleet.toml:18: a trace has either `multipliers` or a `file` with them",
        ),
        (
            "2.5",
            "-2.5",
            "fleet.toml:19: multipliers = (1.0, -2.5) must be finite and above 0, each: number 2 is -2.5",
        ),
        ("2.5,\n]", "2.5,\n", "fleet.toml:21: not valid TOML"),
        ("cv = 0.3", "cv =", "fleet.toml:7: not valid TOML"),
        ("[[machines]]", "[[machine]]", "fleet.toml:3: unknown key `machine`: did you mean `machines`?"),
    ],
)
def test_a_bad_file_is_told_the_line_and_the_remedy(
    tmp_path: Path, good: str, bad: str, sentence: str
) -> None:
    assert good in FLEET
    (tmp_path / "slow.txt").write_text("1.0")
    assert sentence in refused(tmp_path, FLEET.replace(good, bad))


BAD = """\
[[machines]]
name = "a b"
count = 0
cout = 3
seconds_per_sample = -0.002
delay = { kind = "lognormal", cvs = 0.3 }
link = { megabits_per_second = 0, latency = 3, latency_milliseconds = -1 }
lifetime = { kind = "erlang", shape = 0, mean_seconds = 0, cv = 1 }
dollars_per_hour = "1"

[[machines]]
name = "b"
delay = 3
link = 5
lifetime = { cv = 1 }

[[machines]]
name = "c"
seconds_per_sample = 1
delay = "trace"
lifetime = { kind = "trace", mean_seconds = 3, multipliers = [1, "b", -1] }
seconds_to_return = -4
"""


def test_all_faults_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    """Those of kind, of value and of name together: nobody mends a file in instalments."""
    told = [line.removeprefix("fleet.toml:").split(": ")[:2] for line in refused(tmp_path, BAD).splitlines()]
    assert [(int(line), words.partition(" is ")[0]) for line, words in told] == [
        (2, "`machines[0].name`"),
        (3, "`machines[0].count`"),
        (4, "unknown key `cout` of Machine"),
        (5, "`machines[0].seconds_per_sample`"),
        (6, "`cv`"),
        (6, "unknown key `cvs` of Lognormal"),
        (7, "`machines[0].link.latency_milliseconds`"),
        (7, "`machines[0].link.megabits_per_second`"),
        (7, "unknown key `latency` of Link"),
        (8, "`machines[0].lifetime.mean_seconds`"),
        (8, "`machines[0].lifetime.shape`"),
        (8, "unknown key `cv` of Erlang"),
        (9, "`machines[0].dollars_per_hour`"),
        (11, "`seconds_per_sample`"),
        (13, "delay = 3"),
        (14, "`machines[1].link`"),
        (15, "lifetime needs `kind`"),
        (20, "a trace has either `multipliers` or a `file` with them"),
        (21, "`machines[2].lifetime.multipliers[1]`"),
        (22, "`machines[2].seconds_to_return`"),
    ]


def test_more_machines_than_anybody_has_are_refused_at_once(tmp_path: Path) -> None:
    answer = refused(tmp_path, f"{ONE}\ncount = 100_000_000")
    assert answer == "fleet.toml:4: these are more than 1,000,000 machines: take fewer"


def test_no_machines_no_file_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="path = 3 must be a file's path"):
        read_fleet(3)  # type: ignore[arg-type]
    assert "names no machine" in refused(tmp_path, "machines = []")
    assert "names no machine" in refused(tmp_path, "")
    with pytest.raises(UsageError, match=r"absent\.toml cannot be read: No such file"):
        read_fleet(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary\.toml is not a text in UTF-8: byte 0"):
        read_fleet(tmp_path / "binary.toml")
    (tmp_path / "deep.toml").write_text(f"machines = {'[' * 20_000}")
    with pytest.raises(UsageError, match=r"deep\.toml is not valid TOML: it has too many brackets"):
        read_fleet(tmp_path / "deep.toml")


def test_files_without_an_end_are_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/zero, or a model under a wrong name."""
    monkeypatch.setattr(packed, "MOST_BYTES", 1_000)
    (tmp_path / "slow.txt").write_text("1.0\n" * 300)
    one = '[[machines]]\nname = "a"\nseconds_per_sample = 1\ndelay = { kind = "trace", file = "slow.txt" }'
    assert "slow.txt has more than 1,000 bytes: that is no trace" in refused(tmp_path, one)
    monkeypatch.setattr(toml_file, "MOST_LETTERS", 1_000)
    assert "fleet.toml has more than 1,000 letters" in refused(tmp_path, one + "\n" * 1_000)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1.0\nfast\n", "line 2: 'fast' is no number that is finite"),
        ("1.0\n-1\n", "line 2: '-1' is no number that is finite and above 0"),
        ("1.0\n0\n", "line 2: '0' is no number that is finite and above 0"),
        ("\n", "slow.txt holds no multipliers: write one number a line"),
        ("1.0\n\xb4", "is not a text in UTF-8: byte 4 is wrong"),
        (None, "slow.txt cannot be read: No such file"),
    ],
)
def test_a_bad_trace_file_is_told_where_it_was_asked_for(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "slow.txt").write_text(content, encoding="latin-1")
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


MARKET = """\
[[offers]]
name = "big"
dollars_per_hour = 3.0
spot_dollars_per_hour = 1.0

[[zones]]
name = "east"
offer = "big"
count = 2
seconds_per_sample = 0.01
"""


def test_a_market_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(f"{MARKET}on_demand = true\n[hub]\ndollars_per_hour = 0.2\n")
    found = read_fleet(tmp_path / "fleet.toml")
    assert found.hub == Hub(dollars_per_hour=0.2)
    assert [(machine.name, machine.dollars_per_hour) for machine in all_machines(found.machines)] == [
        ("east1", 3.0),
        ("east2", 3.0),
    ]
    assert not found.has_spot


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('offer = "big"', 'offer = "bug"', "fleet.toml:8: no offer is called 'bug': did you mean `big`"),
        ("spot_dollars_per_hour = 1.0", "", "fleet.toml:8: big has no spot price"),
        (
            "spot_dollars_per_hour = 1.0",
            'spot_dollars_per_hour = { kind = "aws" }',
            "`offers[0].spot_dollars",
        ),
        ("count = 2", 'count = 2\ncapacity = "memoryles"', "unknown capacity `memoryles`: did you mean"),
        (
            "[[zones]]",
            '[[offers]]\nname = "big"\ndollars_per_hour = 1\n[[zones]]',
            "second offer is called big",
        ),
        ("count = 2", "count = 2\non_demand = true\ncapacity = 'always'", "machines on demand stay"),
        (
            "= 0.01",
            f"= 0.01\n{ONE}".replace('"a"', '"east"'),
            "machine or zone is called east: give each its own name",
        ),
        (
            "= 0.01",
            f"= 0.01\n{ONE}".replace('"a"', '"east2"'),
            "machine or zone is called east2 (one of the zone east): give each its own name",
        ),
        (
            "spot_dollars_per_hour = 1.0",
            "spot_dollars_per_hour = true",
            "is neither a number nor a table with a price",
        ),
        ("spot_dollars_per_hour = 1.0", "spot_dollars_per_hour = -0.5", "it must be finite and not negative"),
        ("count = 2", "count = 2000000", "these are more than 1,000,000 machines"),
    ],
)
def test_a_bad_market_is_told_the_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert told in refused(tmp_path, MARKET.replace(old, new))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("begin_hours = 2.5", "begin_hours = 2.5: "),
        ("of = 3", "of = 3 is less than the 4 that were alive once"),
    ],
)
def test_a_trace_is_not_read_beyond_what_it_says(tmp_path: Path, options: str, told: str) -> None:
    (tmp_path / "alive.csv").write_text("0,4\n7200,2\n")
    capacity = f'count = 2\ncapacity = {{ kind = "alive", file = "alive.csv", {options} }}'
    assert f"fleet.toml:10: {told}" in refused(tmp_path, MARKET.replace("count = 2", capacity))


def priced(begin_hours: float) -> str:
    price = f'{{ kind = "azure", file = "prices.csv", size = "NC6", begin_hours = {begin_hours} }}'
    return MARKET.replace("hour = 1.0", f"hour = {price}")


def test_a_price_may_stay_as_it_is_until_its_record_ends(tmp_path: Path) -> None:
    """Many records have one price over months."""
    (tmp_path / "prices.csv").write_text("Date,NC6\n2/24/2020,$0.50\n2/29/2020,$0.50\n")
    (tmp_path / "fleet.toml").write_text(priced(24))
    (found,) = read_fleet(tmp_path / "fleet.toml").machines
    assert isinstance(found, Zone)
    assert found.prices == Steps((0.0, 96 * 3600.0), (0.5, 0.5))
    (tmp_path / "fleet.toml").write_text(priced(120))
    read_fleet(tmp_path / "fleet.toml")
    told = refused(tmp_path, priced(120.5))
    assert "fleet.toml:4: begin_hours = 120.5: " in told
    assert "prices.csv ends after 120.0 hours" in told
