"""Estimates of time and cost, in Python and on the command line."""

import json
import os
import re
import signal
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oddlot import VCASGD, Job, Machine, Simulated, Synchronous, UsageError, estimate, fit
from oddlot.cli.estimate_command import tell_runs
from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.support.errors import UnknownName
from oddlot.history.folder_owner import claim
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import FAILED
from oddlot.machines import Alive, Buying, Fleet, Hub, Link, Lognormal, Offer, Steps, Zone
from oddlot.planner.estimate import SHOWN, Estimate, EstimateInterrupted, estimates
from tests.command import Oddlot
from tests.fits import SAMPLES, a_job, rows
from tests.machines.files import short_id
from tests.transcripts import raises, transcribe

OFFER = Offer("big", dollars_per_hour=3600.0, spot_dollars_per_hour=Steps((0.0,), (900.0,)))
FALLS = Alive(Steps((0.0, 1.05, 5.0), (2.0, 0.0, 2.0)))
ZONE = Zone("east", OFFER, 2, Machine("any", seconds_per_sample=0.05), FALLS)
FLEET_FILE = """\
[[offers]]
name = "big"
dollars_per_hour = 3.0
spot_dollars_per_hour = 1.0

[[zones]]
name = "east"
offer = "big"
count = 2
seconds_per_sample = 0.01
delay = { kind = "lognormal", cv = 0.3 }
capacity = { kind = "memoryless", mean_seconds = 60 }
"""
SIMULATE = ("simulate", "digits", "--machines", "fleet.toml")
EPOCH = (*SIMULATE, "--no-compute", "--until", "epochs>=1")


def estimated(fleet: Fleet, job: Job | None = None, seeds: int = 2, **settings: Any) -> list[Estimate]:
    """Return the estimates for one epoch."""
    return estimate(job or a_job(), Synchronous(), fleet, seeds=seeds, until="epochs>=1", **settings)


@pytest.fixture(scope="module")
def both() -> list[Estimate]:
    """Return the estimates of a job on spot machines and on demand, with two seeds each."""
    message, fleet = list[tuple[str, int]](), Fleet([ZONE], Hub(dollars_per_hour=36.0))
    found = estimated(fleet, seed=5, computes=False, on_run_start=lambda *run: message.append(run))
    assert message == [(bought, seed) for bought in ("spot", "on demand") for seed in (5, 6)]
    return found


@pytest.fixture
def market(oddlot: Oddlot, tmp_path: Path) -> Oddlot:
    """Return the command line in a folder with a fleet file that has a spot zone."""
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    return oddlot


def test_estimates_compare_spot_and_on_demand(both: list[Estimate]) -> None:
    """On demand, two machines take 0.4 s for 8 samples and 1.2 s per epoch. Spot machines are lost from 1.05 to 5 s."""
    spot, demand = both
    assert (spot.bought, demand.bought) == ("spot", "on demand")
    assert demand.values("seconds") == pytest.approx([1.2, 1.2])
    assert demand.values("dollars") == pytest.approx([1.2 * 2.01] * 2)
    assert spot.values("seconds") == pytest.approx([5.4, 5.4])
    assert spot.values("dollars") == pytest.approx([2 * (1.05 + 0.4) / 4 + 5.4 / 100] * 2)
    assert spot.values("dollars_lost") == pytest.approx([2 * 0.25 / 4] * 2)
    assert spot.values("seconds_without_workers") == pytest.approx([3.95] * 2)
    assert spot.values("availability") == pytest.approx([1.45 / 5.4] * 2)
    assert spot.values("workers_mean") == pytest.approx([2 * 1.45 / 5.4] * 2)
    assert spot.values("samples_wasted") == [16, 16]
    assert spot.median("accuracy") is None, "nothing was trained"
    transcribe(repr(demand))


def test_each_run_of_an_estimate_uses_its_seed() -> None:
    like = Machine("m", 0.1, delay=Lognormal(0.5), link=Link(latency_milliseconds=50))
    (found,) = estimated(Fleet([like]), seed=7, in_flight=2)
    alone = [
        fit(a_job(), Synchronous(), Simulated([like], seed, in_flight=2), until="epochs>=1", seed=seed)
        for seed in (7, 8)
    ]
    for figure in ("seconds", "loss"):
        assert [one[figure] for one in found.summaries] == [run.summary[figure] for run in alone]
        assert alone[0].summary[figure] != alone[1].summary[figure]


def test_warning_is_shown_once_at_the_users_line() -> None:
    """Each run causes the warning, and the filters would print it every time."""
    machines = [Machine("m", 0.1), Machine("n", 0.1)]
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        fit(a_job(), VCASGD(), Simulated(machines), until="epochs>=1")
        estimate(a_job(), VCASGD(), Fleet(machines), seeds=2, until="epochs>=1")
    assert [Path(one.filename) for one in message] == [Path(__file__)] * 2
    assert [getattr(one.message, "code", "") for one in message] == ["few_shards"] * 2
    assert message[0].lineno + 1 == message[1].lineno


def test_fleet_without_zones_has_one_estimate() -> None:
    (found,) = estimated(Fleet([Machine("m", 0.1)]), seeds=1, in_flight=2)
    assert found.bought == ""
    assert len(estimates("x", [found]).columns) == 2
    assert found.values("seconds") == pytest.approx([SAMPLES * 0.1])
    for figure, nearest in (("dollarz", "dollars"), ("ended", "seconds")):
        with raises(UnknownName, "unknown_name", given=figure, nearest=nearest):
            found.median(figure)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("seeds", 0),
        ("seeds", 2.5),
        ("seeds", True),
        ("seeds", [1, 2]),
        ("fleet", "market.toml"),
        ("out", 3),
    ],
)
def test_invalid_settings_are_rejected(name: str, given: Any) -> None:
    with raises(UsageError, "invalid_value", name=name, given=given):
        estimated(**{"fleet": Fleet([ZONE]), name: given})


def test_simulated_of_an_invalid_fleet_is_rejected() -> None:
    with raises(UsageError, "invalid_value", name="fleet", given="market.toml"):
        Simulated.of("market.toml")  # type: ignore[arg-type]  # on purpose


def test_estimate_with_a_deadline_has_a_third_column(both: list[Estimate]) -> None:
    """Spot machines are lost from 1.05 to 5 s. The policy buys on demand, and meets a deadline of 3 s."""
    fleet = Fleet([ZONE], Hub(dollars_per_hour=36.0), Buying(3 / 3600))
    spot, demand, policy = estimated(fleet, seed=5, computes=False)
    assert [one.summaries for one in (spot, demand)] == [one.summaries for one in both]
    assert (policy.bought, spot.deadline_met, demand.deadline_met) == ("fill_in", 0.0, 1.0)
    assert policy.deadline_met == 1.0
    assert spot.median("dollars") < policy.median("dollars") < demand.median("dollars")  # type: ignore[operator]
    table = estimates("x", [spot, demand, policy])
    assert [[*column.cells][1] for column in table.columns] == ["deadline met", "0 %", "100 %", "100 %"]
    failed = dict.fromkeys(spot.summaries[0]) | {"ended": "failed: x"}
    assert replace(policy, summaries=[policy.summaries[0], failed]).plain()["deadline_met"] == [0.5]
    assert "deadline_met" not in both[0].plain()


def test_command_prints_both_estimates_and_their_ratio(
    market: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = market(*EPOCH, "--seeds", "3")
    transcribe(done.out)
    transcribe(done.err)
    assert max(map(len, done.out.splitlines())) > 40, "figures are whole, however narrow the terminal is"
    plain = market.json(*EPOCH, "--seeds", "3")
    assert not (tmp_path / "runs").exists(), "it leaves nothing behind"
    assert plain.keys() == {"spot", "on demand"}
    assert plain["spot"]["starts_lost"] == [0] * 3
    assert len(plain["spot"]["dollars"]) == 3
    assert max(plain["spot"]["dollars"]) < 0.5 * min(plain["on demand"]["dollars"])
    assert plain["spot"]["accuracy"] == [None] * 3, "in the order of the seeds, whatever is known"
    assert plain["spot"]["ended"] == ["epochs>=1"] * 3


def test_out_option_saves_every_run(market: Oddlot, tmp_path: Path) -> None:
    done = market(*EPOCH, "--seeds", "1", "--out", "both")
    transcribe(done.out.splitlines()[-1])
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"spot-0", "on-demand-0"}
    for run in ("both/spot-0", "both/on-demand-0"):
        assert json.loads(market("report", run, "--json").out)["exactly_once"]
    market.rejects("no_run", "report", "both", inside=["both/on-demand-0", "both/spot-0"])


LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "code", "fields"),
    [
        ("--resume latest", "not_with_seeds", {"flag": "--resume"}),
        ("--until accuracy>=0.9", "goal_without_compute", {"flag": "--until accuracy>=0.9"}),
        (f"--out {LONG}", "unusable_folder", {"path": LONG}),
        ("--out both", "folder_not_empty", {"path": "both"}),
        ("--out fleet.toml", "folder_not_empty", {"path": "fleet.toml"}),
    ],
    ids=short_id,
)
def test_invalid_options_with_seeds_are_rejected(
    market: Oddlot, tmp_path: Path, words: str, code: str, fields: dict[str, Any]
) -> None:
    (tmp_path / "both" / "spot-0").mkdir(parents=True)
    market.rejects(code, *SIMULATE, "--seeds", "2", "--no-compute", *words.split(), **fields)


def test_zero_seeds_are_rejected(market: Oddlot) -> None:
    market.rejects("invalid_value", *SIMULATE, "--seeds", "0", flag="--seeds 0")


def test_unknown_values_are_left_out_of_the_table(both: list[Estimate]) -> None:
    """Accuracy and returned samples may be unknown, and the ratio is if some runs are incomplete."""
    spot, demand = both
    assert estimates("x", [spot]).row_count == len(SHOWN) - 2
    measured = [one | {"accuracy": 0.9, "dollars_per_point": 0.01} for one in spot.summaries]
    assert estimates("x", [replace(spot, summaries=measured)]).row_count == len(SHOWN)
    measured[0]["samples_returned"] = 8
    assert estimates("x", [replace(spot, summaries=measured)]).row_count == len(SHOWN) + 1
    assert "4.50" in [*estimates("x", both).columns[3].cells], "5.4 s and 1.2 s"
    failed = dict.fromkeys(spot.summaries[0]) | {"ended": "failed: x"}
    partly_failed = replace(spot, summaries=[spot.summaries[0], failed])
    assert not any(estimates("x", [partly_failed, demand]).columns[3].cells)
    stopped = estimates("x", [spot, replace(demand, summaries=demand.summaries[:1])])
    assert len(stopped.columns) == 3
    assert re.findall(r"\d+", str(stopped.title)) == ["2", "1"], "seeds"


@pytest.mark.parametrize(
    ("number", "which"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 3), (signal.SIGINT, 4)]
)
@pytest.mark.parametrize("at_its_end", [False, True])
def test_signal_stops_an_estimate_at_any_run(number: signal.Signals, which: int, at_its_end: bool) -> None:
    """The signal arrives before a run starts, or during the last evaluation after it has reached its goal."""
    begun = list[str]()

    def strike() -> None:
        if len(begun) == which:
            os.kill(os.getpid(), number)

    def message(bought: str, _: int) -> None:
        begun.append(bought)
        if not at_its_end:
            strike()

    def seen(record: Record) -> None:
        if at_its_end and isinstance(record.event, Evaluated):
            strike()

    job = replace(a_job(), eval_data=rows(8))
    with pytest.raises(EstimateInterrupted) as stopped:
        estimated(Fleet([ZONE]), job, on_run_start=message, callbacks=[seen])
    done = sum(len(one.summaries) for one in stopped.value.found)
    assert (len(begun), stopped.value.signal, done) == (which, number, which - 1 + at_its_end)


def test_command_prints_the_runs_before_a_signal(market: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two seeds on spot and one on demand, there is no ratio."""
    begun = list[int]()

    def stopped(*given: Any, **settings: Any) -> Any:
        begun.append(settings["seed"])
        if len(begun) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return fit(*given, **settings)

    monkeypatch.setattr("oddlot.planner.estimate.fit", stopped)
    done = market(*EPOCH, "--seeds", "2")
    assert done.code == 128 + signal.SIGINT
    transcribe(done.out)
    assert number_of(done.err) == 3
    transcribe(done.err.splitlines()[-1])


def number_of(text: str) -> int | None:
    """Return the number in the last line of the output."""
    numbers = re.findall(r"\d+", text.splitlines()[-1])
    return int(numbers[0]) if numbers else None


@pytest.mark.parametrize(("times", "done"), [(1, 0), (2, None)])
def test_ctrl_c_while_importing_the_workload_stops_the_estimate(
    market: Oddlot, tmp_path: Path, times: int, done: int | None
) -> None:
    """No run is complete yet, and the output has a message about it. A second Ctrl-C exits at once."""
    strikes = "os.kill(os.getpid(), signal.SIGINT)\n" * times
    (tmp_path / f"early{times}.py").write_text(
        f"import os, signal\nfrom oddlot.workloads.digits import digits\n{strikes}"
    )
    stopped = market("simulate", f"early{times}:digits", *EPOCH[2:], "--seeds", "2")
    assert stopped.code == 128 + signal.SIGINT
    assert number_of(stopped.err) == done
    transcribe(stopped.err.splitlines()[-1])


def test_failed_runs_are_listed_separately(market: Oddlot, tmp_path: Path) -> None:
    """Spot machines never return, and all runs on spot fail. On demand, all runs complete."""
    (tmp_path / "alive.csv").write_text("0,2\n1,0\n")
    falls = 'capacity = { kind = "alive", file = "alive.csv" }'
    lines = [falls if line.startswith("capacity") else line for line in FLEET_FILE.splitlines()]
    (tmp_path / "fleet.toml").write_text("\n".join(lines))
    asked = (*EPOCH, "--seeds", "2")
    transcribe(market.rejects("all_runs_failed", *asked, exit_code=3, bought="spot").out)
    quiet = market.rejects("all_runs_failed", *asked, "--quiet", exit_code=3)
    assert (quiet.out, quiet.err) == ("", f"oddlot: {quiet.error}\n")
    plain = json.loads(market(*asked, "--json").out)
    assert all(why.startswith(FAILED) for why in plain["spot"]["ended"])
    assert plain["on demand"]["ended"] == ["epochs>=1"] * 2
    assert plain["spot"]["dollars"] == [None, None]
    (tmp_path / "fleet.toml").write_text(
        '[[machines]]\nname = "m"\nseconds_per_sample = 1.0\nlifetime = { kind = "exponential", mean_seconds = 1 }\n'
    )
    assert not market.rejects("stalled", *asked, exit_code=3, machines=0).out


def test_unusable_run_folder_fails_only_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the third run starts."""
    calls = list[Path]()

    def full(folder: RunFolder, resume: bool, force: bool) -> Any:
        calls.append(folder.path)
        if len(calls) == 3:
            raise UsageError("no space left")
        return claim(folder, resume, force)

    monkeypatch.setattr("oddlot.run.fit.claim", full)
    found = estimated(Fleet([ZONE]), computes=False, out=tmp_path / "out")
    assert [one.ended for one in found] == [{"epochs>=1": 2}, {"failed": 1, "epochs>=1": 1}]
    assert found[1].summaries[0].keys() <= found[0].summaries[0].keys()
    assert found[1].summaries[0]["loss"] is None


def test_unreached_goal_is_reported(market: Oddlot) -> None:
    until = ("--until", "accuracy>=0.9 or dollars<=0.0001", "--seeds", "2", "--no-compute")
    done = market(*SIMULATE, *until)
    assert number_of(done.out) == 4
    transcribe(done.out)
    plain = market.json(*SIMULATE, *until)
    assert [one["ended"] for one in plain.values()] == [["dollars<=0.0001"] * 2] * 2
    assert [one["epochs"] for one in plain.values()] == [[0, 0]] * 2


def test_missing_out_folder_is_not_mentioned(tmp_path: Path) -> None:
    """The estimate is stopped before its first run."""
    for folder, is_named in ((tmp_path / "none", False), (tmp_path, True)):
        said = StringIO()
        tell_runs([], str(folder), Console(file=said))
        assert (str(folder) in said.getvalue()) is is_named
