"""Fleet files: the machines of valid files, and the errors of invalid files."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from oddlot.config import toml_errors as toml_file
from oddlot.config.fleet_file import read_fleet
from oddlot.config.toml_errors import locate
from oddlot.core.support.errors import UsageError, UsageErrors
from oddlot.machines import text_files as packed
from oddlot.machines.buying import Buying
from oddlot.machines.capacity import Alive
from oddlot.machines.delay_models import (
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
    Trace,
)
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.market import Fleet, Hub, Offer, Zone, all_machines
from oddlot.machines.time_series import Steps
from tests.machines.files import subject, written
from tests.transcripts import check, raises

FLEET = """\
# Three spot machines, an old one, and a zone.

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

[[offers]]
name = "big"
dollars_per_hour = 3.0
spot_dollars_per_hour = 1.0

[[zones]]
name = "east"
offer = "big"
count = 2
seconds_per_sample = 0.01

[hub]
dollars_per_hour = 0.2
"""
ONE = '[[machines]]\nname = "a"\nseconds_per_sample = 2'
TRACED = f'{ONE}\ndelay = {{ kind = "trace", file = "slow.txt" }}'
SPOT = "offers[0].spot_dollars_per_hour"
OFFER = 'name = "big"\ndollars_per_hour = 3.0'
ALIVE = 'count = 2\ncapacity = { kind = "alive", file = "alive.csv"'
PRICED = '= { kind = "azure", file = "prices.csv", size = "NC6", begin_hours = '
PRICES = "Date,NC6\n2/24/2020,$0.50\n2/29/2020,$0.50\n"


def read(folder: Path, text: str) -> Fleet:
    return read_fleet(written(folder / "fleet.toml", text))


def test_complete_fleet_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, FLEET)
    like = {"delay": Lognormal(0.3), "lifetime": Lifetime(3600, Exponential()), "seconds_to_return": 120}
    spots = [Machine(f"spot{n}", 0.002, dollars_per_hour=0.35, **like) for n in (1, 2, 3)]  # type: ignore[arg-type]
    old = Machine("old", delay=Trace((1, 2.5)), link=Link(100, 20), joins_at_seconds=5)
    zone = Zone("east", Offer("big", 3.0, Steps((0.0,), (1.0,))), 2, Machine("one", 0.01))
    assert found == Fleet([*spots, old, zone], Hub(dollars_per_hour=0.2))
    assert found.has_spot
    demand = read(tmp_path, FLEET.replace("count = 2", "count = 2\non_demand = true"))
    assert not demand.has_spot
    prices = {machine.name: machine.dollars_per_hour for machine in all_machines(demand.machines)}
    assert (prices["east1"], prices["east2"]) == (3.0, 3.0)


def test_buying_policy_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, FLEET).buying is None
    found = read(tmp_path, f"{FLEET}\n[buying]\ndeadline_hours = 6")
    assert found.buying == Buying(6.0)
    assert found.on_demand().buying is None
    found = read(tmp_path, f'{FLEET}\n[buying]\ndeadline_hours = 6\npolicy = "greedy"\nepochs = 3')
    assert found.buying == Buying(6.0, "greedy", 3)
    taken = FLEET.replace('"old"', '"east-on-demand2"')
    read(tmp_path, taken)
    with raises(UsageError, "name_twice", name="east-on-demand2"):
        read(tmp_path, f"{taken}\n[buying]\ndeadline_hours = 6")


def test_name_and_seconds_per_sample_are_enough(tmp_path: Path) -> None:
    assert read(tmp_path, ONE).machines == [Machine("a", 2.0)]
    assert read(tmp_path, f"{ONE}\ncount = 1").machines == [Machine("a1", 2.0)]


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
def test_every_delay_kind_is_read(tmp_path: Path, table: str, model: Any) -> None:
    (tmp_path / "slow.txt").write_text("1.0\n\n1.5\n")
    text = f"{ONE}\ndelay = {{ {table} }}\nlifetime = {{ {table}, mean_seconds = 9 }}"
    assert read(tmp_path, text).machines == [Machine("a", 2, delay=model, lifetime=Lifetime(9, model))]


@pytest.mark.parametrize(
    ("good", "bad", "line", "code", "about"),
    [
        ("cv = 0.3", "cv = 0.3, cvs = 0.3", 7, "unknown_key", "cvs"),
        ("lognormal", "log_normal", 7, "unknown_name", "log_normal"),
        ("cv = 0.3", "cv = 0.3, shape = 2", 7, "unknown_key", "shape"),
        (", cv = 0.3", "", 7, "missing_key", "machines[0].delay.cv"),
        ("cv = 0.3", 'cv = "0.3"', 7, "invalid_value", "machines[0].delay.cv"),
        ('{ kind = "lognormal", cv = 0.3 }', '"lognormal"', 7, "missing_key", "machines[0].delay.cv"),
        ("cv = 0.3", "cv = -1", 7, "invalid_value", "machines[0].delay.cv"),
        ("count = 3", "counts = 3", 5, "unknown_key", "counts"),
        ("count = 3", "count = 0", 5, "invalid_value", "machines[0].count"),
        ("count = 3", "count = 1.5", 5, "invalid_value", "machines[0].count"),
        ("count = 3", "count = 100_000_000", 5, "too_many_machines", None),
        ("= 120", "= true", 10, "invalid_value", "machines[0].seconds_to_return"),
        ("= 120", "= -120", 10, "invalid_value", "machines[0].seconds_to_return"),
        ("3600", "3600, mean_second = 1", 9, "unknown_key", "mean_second"),
        ("exponential", "exp", 9, "unknown_name", "exp"),
        ('name = "old"', "", 12, "missing_key", "machines[1].name"),
        ("seconds_per_sample = 0.001", "", 12, "missing_key", "machines[1].seconds_per_sample"),
        ('"old"', '"spot2"', 13, "name_twice", "spot2"),
        ('"old"', '"an old one"', 13, "invalid_value", "machines[1].name"),
        ("= 100,", "= 0,", 15, "invalid_value", "machines[1].link.megabits_per_second"),
        ('"trace"', '"trace"\nfile = "slow.txt"', 18, "not_one_of", ["multipliers", "file"]),
        ("2.5", "-2.5", 19, "invalid_value", "multipliers"),
        ("2.5,\n]", "2.5,\n", 24, "invalid_toml", None),
        ("cv = 0.3", "cv =", 7, "invalid_toml", None),
        ("= 0.2", "= [0.2,\n", 36, "invalid_toml", None),
        ("[hub]", "[hubs]", 35, "unknown_key", "hubs"),
        ('offer = "big"', 'offer = "bug"', 31, "unknown_name", "bug"),
        ("spot_dollars_per_hour = 1.0", "", 31, "no_spot_price", "big"),
        ("= 1.0", '= { kind = "aws", file = "x", zone = "y" }', 27, "missing_key", f"{SPOT}.instance"),
        ("= 1.0", f"{PRICED}120.5 }}", 27, "begins_after_end", 120.5),
        ("= 1.0", "= true", 27, "no_price", "spot_dollars_per_hour"),
        ("= 1.0", "= -0.5", 27, "invalid_value", "spot_dollars_per_hour"),
        ("count = 2", 'count = 2\ncapacity = "memoryles"', 33, "unknown_name", "memoryles"),
        ("count = 2", f"{ALIVE}, begin_hours = 2.5 }}", 33, "begins_after_end", 2.5),
        ("count = 2", f"{ALIVE}, of = 3 }}", 33, "invalid_value", "of"),
        ("count = 2", "count = 2\non_demand = true\ncapacity = 'always'", 34, "capacity_on_demand", None),
        ("count = 2", "count = 2000000", 32, "too_many_machines", None),
        ("[[zones]]", f"[[offers]]\n{OFFER}\n[[zones]]", 30, "name_twice", "big"),
        ('"old"', '"east"', 30, "name_twice", "east"),
        ('"old"', '"east2"', 30, "name_twice", "east2"),
        ("[hub]", "[buying]\ndeadline_hours = 0\n[hub]", 36, "invalid_value", "buying.deadline_hours"),
        ("[hub]", "[buying]\npolicy = 'greedy'\n[hub]", 35, "missing_key", "buying.deadline_hours"),
        (
            "[hub]",
            "[buying]\ndeadline_hours = 1\npolicy = 'best'\n[hub]",
            37,
            "invalid_value",
            "buying.policy",
        ),
        ("= 0.01", "= 0.01\non_demand = true\n[buying]\ndeadline_hours = 1", 35, "no_spot_zone", None),
    ],
)
def test_invalid_value_is_reported_with_its_line(
    tmp_path: Path, good: str, bad: str, line: int, code: str, about: Any
) -> None:
    files = {"slow.txt": "1.0", "alive.csv": "0,4\n7200,2\n", "prices.csv": PRICES}
    for name, text in files.items():
        written(tmp_path / name, text)
    assert good in FLEET
    with raises(UsageError, code, line=line) as caught:
        read(tmp_path, FLEET.replace(good, bad))
    assert subject(caught.value) == about


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


def test_all_errors_are_reported_in_the_order_of_their_lines(tmp_path: Path) -> None:
    """Unknown kinds, invalid values and unknown keys are reported together."""
    with raises(UsageErrors, "several_errors") as caught:
        read(tmp_path, BAD)
    errors = caught.value.errors
    assert [(error.fields["line"], error.code, subject(error)) for error in errors] == [
        (2, "invalid_value", "machines[0].name"),
        (3, "invalid_value", "machines[0].count"),
        (4, "unknown_key", "cout"),
        (5, "invalid_value", "machines[0].seconds_per_sample"),
        (6, "missing_key", "machines[0].delay.cv"),
        (6, "unknown_key", "cvs"),
        (7, "invalid_value", "machines[0].link.latency_milliseconds"),
        (7, "invalid_value", "machines[0].link.megabits_per_second"),
        (7, "unknown_key", "latency"),
        (8, "invalid_value", "machines[0].lifetime.mean_seconds"),
        (8, "invalid_value", "machines[0].lifetime.shape"),
        (8, "unknown_key", "cv"),
        (9, "invalid_value", "machines[0].dollars_per_hour"),
        (11, "missing_key", "machines[1].seconds_per_sample"),
        (13, "neither_table_nor_name", "delay"),
        (14, "invalid_value", "machines[1].link"),
        (15, "missing_kind", "lifetime"),
        (20, "not_one_of", []),
        (21, "invalid_value", "machines[2].lifetime.multipliers[1]"),
        (22, "invalid_value", "machines[2].seconds_to_return"),
    ]
    meant = {error.fields["given"]: error.fields["nearest"] for error in errors if "nearest" in error.fields}
    assert meant == {"cout": "count", "cvs": "cv", "latency": "latency_milliseconds", "cv": None}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "unreadable_file"),
        (b"", "no_machines"),
        (b"machines = []", "no_machines"),
        (b"\xff\xfe", "not_utf8"),
        (b"machines = " + b"[" * 20_000, "nested_too_deeply"),
    ],
    ids=["absent", "empty", "empty list", "binary", "deep"],
)
def test_empty_or_unreadable_file_is_rejected(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "fleet.toml"
    if content is not None:
        written(path, content)
    with raises(UsageError, code, path=str(path)):
        read_fleet(path)


def test_only_listed_errors_get_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suggestions for all of 600,000 unknown keys would take a minute."""
    suggested = list[str]()
    monkeypatch.setattr(toml_file, "MAX_FAULTS", 2)
    monkeypatch.setattr(toml_file, "nearest", lambda key, _: suggested.append(key))
    with raises(UsageErrors, "several_errors") as caught:
        read(tmp_path, "".join(f"key{at} = 1\n" for at in range(100)))
    assert caught.value.errors[-1].fields["more"] == 98
    assert len(suggested) <= 2


def test_too_large_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless or large files, such as /dev/zero or a model passed by mistake, are rejected."""
    monkeypatch.setattr(packed, "MAX_BYTES", 1_000)
    slow = written(tmp_path / "slow.txt", "1.0\n" * 300)
    with raises(UsageError, "file_too_large", line=4, file=str(slow)):
        read(tmp_path, TRACED)
    monkeypatch.setattr(toml_file, "MAX_LETTERS", 1_000)
    with raises(UsageError, "file_too_large", path=str(tmp_path / "fleet.toml")):
        read(tmp_path, TRACED + "\n" * 1_000)


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (b"1.0\nfast\n", "invalid_line", {"file_line": 2, "given": "fast"}),
        (b"1.0\n-1\n", "invalid_line", {"file_line": 2, "given": "-1"}),
        (b"1.0\n0\n", "invalid_line", {"file_line": 2, "given": "0"}),
        (b"\n", "empty_file", {}),
        (b"1.0\n\xb4", "not_utf8", {"byte": 4}),
        (None, "unreadable_file", {}),
    ],
)
def test_invalid_trace_is_reported_at_its_use(
    tmp_path: Path, content: bytes | None, code: str, fields: dict[str, Any]
) -> None:
    slow, fleet = tmp_path / "slow.txt", tmp_path / "fleet.toml"
    if content is not None:
        written(slow, content)
    with raises(UsageError, code, path=str(fleet), line=4, file=str(slow), **fields):
        read(tmp_path, TRACED)


def test_invalid_trace_of_a_zone_is_reported_at_its_use(tmp_path: Path) -> None:
    alive = written(tmp_path / "alive.csv", "0,4\nx")
    with raises(UsageError, "invalid_line", line=33, file=str(alive), file_line=2, given="x"):
        read(tmp_path, FLEET.replace("count = 2", f"{ALIVE} }}"))


def test_locate_finds_keys_in_every_toml_syntax() -> None:
    text = (
        '# top\na.b = 1\n\n[c]\nd = [\n  1,\n  2,\n]\n# e\ne = """\nf = 1\n"""\n[[g]]\nh = 1\n[[g]]\nh = 2\n'
    )
    places = {("a", "b"): 2, ("c",): 4, ("c", "d"): 5, ("c", "d", 1): 5, ("c", "e"): 10, ("g", 1, "h"): 16}
    assert {keys: locate(text, keys) for keys in places} == places
    assert locate(text, ("g", 0, "absent")) == 13, "what is missing is missing from its table"
    assert locate(text, ("c", "member", "d")) == 5, "words that are not keys are passed over"
    assert locate(text, ()) == 1


TEXTS = r"""a = "\"[" # [
'b]' = 'c" # {'

d = '''
[e]
"''''
f = {g = [
1]}
[[h.i]]
j=1
[h.i.k]
[[h.i]]
[h.i.k]
l=1"""


def test_locate_ignores_syntax_inside_strings() -> None:
    text = TEXTS + '\nm.n = [{x = """\n"""", y = "["}]\no."p q" = 1\n'
    second = ("h", "i", 1, "k")
    places = {("b]",): 2, ("d",): 4, ("f", "g"): 7, ("h",): 9, ("h", "i", 0, "k"): 11, (*second, "l"): 14}
    places |= {(*second, "m", "n"): 15, (*second, "o", "p q"): 17}
    assert {keys: locate(text, keys) for keys in places} == places


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (".".join("a" * 100_000) + " = 1", "nested_too_deeply"),
        (f"[[{'.'.join('a' * 100_000)}]]", "nested_too_deeply"),
        ("x = { " + ". ".join(['"a b"', "b-c"] * 50_000) + " = 1 }", "nested_too_deeply"),
        (f"x = 0x{'f' * 5_000}", "too_many_digits"),
        (f"x = 0x{'f' * 99}", "unknown_key"),
        (f"x = {'9' * 5_000}", "invalid_toml"),
        ('x = "' + "a." * 100 + '" # ' + "a." * 100, "unknown_key"),
    ],
    ids=["key", "heading", "inline", "hex", "shorter hex", "decimal", "text"],
)
def test_pathological_toml_is_rejected_before_parsing(tmp_path: Path, text: str, code: str) -> None:
    with raises(UsageError, code, path=str(tmp_path / "fleet.toml")):
        read(tmp_path, text)


def test_file_is_not_parsed_again_for_each_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters, loads = list[int](), tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        letters.append(len(text))
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    values = ",\n".join(["1"] * 2_000)
    text = f"{ONE}\ndelay = {{ kind = 'trace', multipliers = [\n{values}]}}\n" + f"{ONE}\nbad = 1\n" * 50
    with pytest.raises(UsageErrors) as caught:
        read(tmp_path, text)
    *errors, more = caught.value.errors
    assert [error.fields["line"] for error in errors] == [4 * n + 2_008 for n in range(20)]
    check(more, "more_errors", more=30)
    assert sum(letters) < 5 * len(text)


def test_machine_classes_do_not_import_pydantic() -> None:
    program = "import sys, oddlot.machines.machine; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("begin_hours", [24, 120])
def test_constant_price_lasts_until_the_end_of_its_trace(tmp_path: Path, begin_hours: int) -> None:
    """A constant price lasts until the end of its trace. In many traces, it is constant for months."""
    written(tmp_path / "prices.csv", PRICES)
    *_, zone = read(tmp_path, FLEET.replace("= 1.0", f"{PRICED}{begin_hours} }}")).machines
    assert isinstance(zone, Zone)
    assert zone.prices.seconds[-1] == (120 - begin_hours) * 3600
    assert set(zone.prices.values) == {0.5}


@pytest.mark.parametrize(
    ("table", "capacity"),
    [
        ("", Alive(Steps((0.0, 60.0, 120.0), (0.0, 1.0, 1.0)))),
        (", inverted = true, of = 1", Alive(Steps((0.0, 60.0, 120.0), (1.0, 0.0, 0.0)), of=1)),
    ],
)
def test_skypilot_trace_is_read_and_can_be_inverted(tmp_path: Path, table: str, capacity: Alive) -> None:
    written(tmp_path / "sky.json", '{"metadata": {"gap_seconds": 60}, "data": [0, 1]}')
    trace = f'count = 2\ncapacity = {{ kind = "skypilot", file = "sky.json"{table} }}'
    *_, zone = read(tmp_path, FLEET.replace("count = 2", trace)).machines
    assert isinstance(zone, Zone)
    assert zone.capacity == capacity
