"""What a job would take and cost: in Python and on the command line."""

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oddlot import (
    VCASGD,
    Alive,
    EstimateInterrupted,
    Fleet,
    Hub,
    Link,
    Lognormal,
    Machine,
    Offer,
    Simulated,
    Steps,
    Synchronous,
    UsageError,
    Zone,
    estimate,
    fit,
)
from oddlot.asked import Asked
from oddlot.core import words as w
from oddlot.estimating import TOLD, estimates
from oddlot.run_folder import RunFolder
from tests.command import Oddlot
from tests.fits import SAMPLES, a_job, rows
from tests.processes import ROOT

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


def test_the_same_job_is_bought_in_both_ways() -> None:
    """On demand two machines take 0.4 s for 8 samples, 1.2 s an epoch; spot ones are away from 1.05 s to 5 s."""
    told = list[tuple[str, int]]()
    found = estimate(
        a_job(),
        Synchronous(),
        Fleet([ZONE], Hub(dollars_per_hour=36.0)),
        seeds=2,
        maths=False,
        seed=5,
        until="epochs>=1",
        told=lambda *run: told.append(run),
    )
    assert told == [(bought, seed) for bought in ("spot", "on demand") for seed in (5, 6)]
    spot, demand = found
    assert (spot.bought, demand.bought) == ("spot", "on demand")
    assert demand.values("seconds") == pytest.approx([1.2, 1.2])
    assert demand.values("dollars") == pytest.approx([1.2 * 2.01] * 2)
    assert spot.values("seconds") == pytest.approx([5.4, 5.4])
    assert spot.values("dollars") == pytest.approx([2 * (1.05 + 0.4) / 4 + 5.4 / 100] * 2)
    assert spot.values("dollars_lost") == pytest.approx([2 * 0.25 / 4] * 2)
    assert spot.values("seconds_without_workers") == pytest.approx([3.95] * 2)
    assert spot.values("samples_wasted") == [16, 16]
    assert spot.median("accuracy") is None, "nothing was trained"


def test_each_run_is_the_one_of_its_seed() -> None:
    like = Machine("m", 0.1, delay=Lognormal(0.5), link=Link(latency_milliseconds=50))
    (found,) = estimate(
        a_job(), Synchronous(), Fleet([like]), seeds=2, seed=7, in_flight=2, until="epochs>=2"
    )
    alone = [
        fit(a_job(), Synchronous(), Simulated([like], seed, in_flight=2), until="epochs>=2", seed=seed)
        for seed in (7, 8)
    ]
    for figure in ("seconds", "loss"):
        assert [one[figure] for one in found.summaries] == [run.summary[figure] for run in alone]
        assert alone[0].summary[figure] != alone[1].summary[figure]


def test_an_estimate_is_told_in_one_line() -> None:
    found = estimate(a_job(), Synchronous(), Fleet([ZONE]), seeds=2, maths=False, until="epochs>=1")
    assert repr(found[1]) == "<Estimate on demand: 2, medians: time 1.2 s, cost $2.40, epochs 1.0>"


def test_a_warning_is_told_once_at_the_users_line() -> None:
    """Though each run has cause for it, and the filters would have it told each time."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(a_job(), VCASGD(), Simulated([Machine("m", 0.1), Machine("n", 0.1)]), until="epochs>=1")
        estimate(a_job(), VCASGD(), Fleet([Machine("m", 0.1), Machine("n", 0.1)]), seeds=2, until="epochs>=1")
    assert [Path(one.filename) for one in told] == [Path(__file__)] * 2
    assert [str(one.message).partition(" gives")[0] for one in told] == ["VCASGD"] * 2
    assert told[0].lineno + 1 == told[1].lineno


def test_a_fleet_without_zones_has_one_price() -> None:
    (found,) = estimate(
        a_job(), Synchronous(), Fleet([Machine("m", 0.1)]), seeds=1, until="epochs>=1", in_flight=2
    )
    assert found.bought == ""
    assert [column.header for column in estimates("x", [found]).columns] == ["", "runs"]
    assert found.values("seconds") == pytest.approx([SAMPLES * 0.1])
    for seeds in (0, 2.5, True, [1, 2]):
        with pytest.raises(UsageError, match=r"seeds = .* must be a whole number, at least 1"):
            estimate(a_job(), Synchronous(), Fleet([Machine("m", 0.1)]), seeds=seeds)  # type: ignore[arg-type]  # on purpose
    for figure, told in (("dollarz", "did you mean `dollars`"), ("ended", "'ended' is no such figure")):
        with pytest.raises(UsageError, match=told):
            found.median(figure)
    with pytest.raises(UsageError, match=r"is no Fleet: oddlot\.read_fleet"):
        Simulated.of([Machine("m", 0.1)])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match=r"fleet = 'market.toml' is no Fleet: oddlot\.read_fleet"):
        estimate(a_job(), Synchronous(), "market.toml")  # type: ignore[arg-type]  # on purpose


def test_the_command_tells_both_and_the_share(
    oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    asked = (
        "simulate",
        "digits",
        "--machines",
        "fleet.toml",
        "--until",
        "epochs>=2",
        "--seeds",
        "3",
        "--no-maths",
    )
    done = oddlot(*asked)
    lines = done.out.splitlines()
    assert "digits on fleet.toml, medians and ranges of 3 seeds" in lines[0]
    assert lines[1].split() == ["spot", "on", "demand", "ratio"]
    cost = next(line for line in lines if line.strip().startswith("cost"))
    assert float(cost.split()[-1]) < 0.5
    assert done.err.splitlines()[0] == "simulating spot with seed 0"
    assert max(map(len, lines)) > 40, "figures are whole, however narrow the terminal is"
    assert "…" not in done.out
    assert not (tmp_path / "runs").exists(), "it leaves nothing behind"
    plain = oddlot.json(*asked)
    assert plain.keys() == {"spot", "on demand"}
    assert plain["spot"]["starts_lost"] == [0] * 3
    assert any(line.split()[:2] == ["lost", "starting"] for line in lines)
    assert len(plain["spot"]["dollars"]) == 3
    assert max(plain["spot"]["dollars"]) < 0.5 * min(plain["on demand"]["dollars"])
    assert plain["spot"]["accuracy"] == [None] * 3, "in the order of the seeds, whatever is known"
    assert plain["spot"]["ended"] == ["epochs>=2"] * 3
    assert lines[2].split() == ["ended", *["epochs>=2", "(3)"] * 2]


def test_every_run_has_a_folder_if_it_is_wished(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    done = oddlot(
        "simulate",
        "digits",
        "--machines",
        "fleet.toml",
        "--until",
        "epochs>=1",
        "--seeds",
        "1",
        "--out",
        "both",
    )
    assert done.out.splitlines()[-1].split() == ["runs", "both"]
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"spot-0", "on-demand-0"}
    assert "exactly once" in oddlot("report", "both/spot-0", "both/on-demand-0").out
    told = "there is no run in both; some are in folders of it: both/on-demand-0, both/spot-0"
    assert told in oddlot("report", "both").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "0"), "greater than or equal to 1"),
        (("--seeds", "2", "--resume"), "--seeds begins runs of its own"),
        (
            ("--seeds", "2", "--no-maths", "--until", "accuracy>=0.9"),
            "simulating spot with seed 0\noddlot: --until accuracy>=0.9: until = 'accuracy>=0.9' never comes: with",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    oddlot: Oddlot, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words)
    assert done.code == 2
    assert told in done.err


def test_medians_and_ranges_stand_in_the_table() -> None:
    found = estimate(a_job(), Synchronous(), Fleet([ZONE]), seeds=1, maths=False, until="epochs>=1")
    assert estimates("x", found).row_count == len(TOLD) - 2, (
        "nothing of an accuracy, nor of what was handed back"
    )
    measured = [one | {"accuracy": 0.9, "dollars_per_point": 0.01} for one in found[0].summaries]
    assert estimates("x", [replace(found[0], summaries=measured)]).row_count == len(TOLD)
    measured[0]["samples_returned"] = 8
    assert estimates("x", [replace(found[0], summaries=measured)]).row_count == len(TOLD) + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("which", [1, 3, 4])
def test_a_signal_stops_an_estimate_wherever_it_comes(number: signal.Signals, which: int) -> None:
    """Before a run has begun, and after its goal was reached, while its last version is measured."""
    fleet, job = Fleet([ZONE]), replace(a_job(), evaluation=rows(8))
    begun = list[str]()

    def told(bought: str, _: int) -> None:
        begun.append(bought)
        if len(begun) == which:
            os.kill(os.getpid(), number)

    with pytest.raises(EstimateInterrupted) as stopped:
        estimate(job, Synchronous(), fleet, seeds=2, until="epochs>=1", told=told)
    counts = [len(one.summaries) for one in stopped.value.found]
    assert (len(begun), stopped.value.signal, sum(counts)) == (which, number, which - 1)

    def seen(record: w.Record) -> None:
        if isinstance(record.event, w.Evaluated) and len(begun) == which:
            os.kill(os.getpid(), number)

    begun.clear()
    with pytest.raises(EstimateInterrupted) as stopped:
        estimate(
            job,
            Synchronous(),
            fleet,
            seeds=2,
            until="epochs>=1",
            told=lambda bought, _: begun.append(bought),
            observers=[seen],
        )
    assert (len(begun), sum(len(one.summaries) for one in stopped.value.found)) == (which, which)


def test_the_command_tells_what_was_done_before_a_signal(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    words = ("--until", "epochs>=1", "--seeds", "500", "--no-maths")
    command = ("-m", "oddlot", "simulate", "digits", "--machines", str(tmp_path / "fleet.toml"), *words)
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr
    while "with seed 3" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "medians and ranges of " in out.splitlines()[0], "what is known is told"
    assert out.splitlines()[1].split() == ["spot"]
    assert int(err.splitlines()[-1].removeprefix("stopped; runs that were done: ")) >= 3


@pytest.mark.parametrize(("times", "told"), [(1, "stopped; runs that were done: 0"), (2, "killed")])
def test_ctrl_c_while_the_task_is_read(oddlot: Oddlot, tmp_path: Path, times: int, told: str) -> None:
    """As while PyTorch is imported: no run was done, and that is told."""
    strikes = "os.kill(os.getpid(), signal.SIGINT)\n" * times
    (tmp_path / f"early{times}.py").write_text(
        f"import os, signal\nfrom oddlot.tasks.digits import digits\n{strikes}"
    )
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    words = ("--machines", "fleet.toml", "--until", "epochs>=1", "--seeds", "2", "--no-maths")
    stopped = oddlot("simulate", f"early{times}:digits", *words)
    assert stopped.code == 128 + signal.SIGINT
    assert stopped.err.splitlines()[-1] == told


def test_what_a_stopped_estimate_shows() -> None:
    """The numbers of seeds, if they differ; and then no ratio."""
    found = estimate(a_job(), Synchronous(), Fleet([ZONE]), seeds=2, maths=False, until="epochs>=1")
    assert [str(column.header) for column in estimates("x", found).columns][-1] == "ratio"
    some = [found[0], replace(found[1], summaries=found[1].summaries[:1])]
    table = estimates("x", some)
    assert table.title == "x, medians and ranges of 2 and 1 seeds"
    assert [str(column.header) for column in table.columns] == ["", "spot", "on demand"]


def test_no_ratio_of_all_runs_to_those_that_did_not_fail() -> None:
    found = estimate(a_job(), Synchronous(), Fleet([ZONE]), seeds=2, maths=False, until="epochs>=1")
    failed = dict.fromkeys(found[0].summaries[0]) | {"ended": "failed: x"}
    some = replace(found[0], summaries=[found[0].summaries[0], failed])
    *_, ratios = estimates("x", [some, found[1]]).columns
    assert not any(ratios.cells)


def test_a_run_that_fails_is_told_beside_the_others(oddlot: Oddlot, tmp_path: Path) -> None:
    """Its machines never come back; on demand they stay."""
    (tmp_path / "alive.csv").write_text("0,2\n1,0\n")
    falls = 'capacity = { kind = "alive", file = "alive.csv" }'
    lines = [falls if line.startswith("capacity") else line for line in FLEET_FILE.splitlines()]
    (tmp_path / "fleet.toml").write_text("\n".join(lines))
    words = ("--machines", "fleet.toml", "--until", "epochs>=1", "--seeds", "2", "--no-maths")
    done = oddlot("simulate", "digits", *words)
    assert done.code == 3, "whoever buys on the spot market gets nothing"
    ended = next(line for line in done.out.splitlines() if line.startswith("ended"))
    assert ended.split() == ["ended", "failed", "(2)", "epochs>=1", "(2)"]
    told = "of these, 2 failed, whose figures are not in the medians and ranges; the first one: nothing can happen"
    assert told in done.out
    assert "oddlot: all runs spot failed, the first one: nothing can happen any more from 1.0 s" in done.err
    quiet = oddlot("simulate", "digits", *words, "--quiet")
    assert (quiet.code, quiet.out) == (3, "")
    assert quiet.err.startswith("oddlot: all runs spot failed")
    assert all(len(line.split()) < 3 for line in done.out.splitlines() if line.startswith("accuracy"))
    cost = next(line for line in done.out.splitlines() if line.startswith("cost"))
    assert len(cost.split()) == 2, "no ratio of what is not known"
    plain = json.loads(oddlot("simulate", "digits", *words, "--json").out)
    assert plain["spot"]["dollars"] == [None, None]
    (tmp_path / "dies.toml").write_text(
        '[[machines]]\nname = "m"\nseconds_per_sample = 1.0\nlifetime = { kind = "exponential", mean_seconds = 1 }\n'
    )
    done = oddlot("simulate", "digits", "--machines", "dies.toml", *words[2:])
    assert (done.code, done.out) == (3, "")
    assert "nothing can happen any more" in done.err


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the third run."""
    claimed, calls = RunFolder.claimed, list[Path]()

    def full(self: RunFolder, resume: bool, force: bool) -> Any:
        calls.append(self.path)
        if len(calls) == 3:
            raise UsageError("no space left")
        return claimed(self, resume, force)

    monkeypatch.setattr(RunFolder, "claimed", full)
    found = estimate(
        a_job(), Synchronous(), Fleet([ZONE]), seeds=2, maths=False, until="epochs>=1", out=tmp_path / "out"
    )
    assert [one.ended for one in found] == [{"epochs>=1": 2}, {"failed": 1, "epochs>=1": 1}]
    assert found[1].summaries[0].keys() <= found[0].summaries[0].keys()
    assert found[1].summaries[0]["loss"] is None


def test_what_was_not_reached_is_told(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    words = ("--until", "accuracy>=0.9 or dollars<=0.0001", "--seeds", "2", "--no-maths")
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words)
    assert "of these, 4 made no version: their end came before any task was done" in done.out
    assert (
        next(line for line in done.out.splitlines() if line.startswith("ended")).count("dollars<=0.0001 (2)")
        == 2
    )


def test_an_estimate_begins_in_a_folder_of_its_own(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    (tmp_path / "both" / "spot-0").mkdir(parents=True)
    words = ("--until", "epochs>=1", "--seeds", "1", "--no-maths", "--out")
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words, "x" * 300)
    assert (done.code, "File name too long" in done.err) == (2, True)
    for out in ("both", "fleet.toml"):
        done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words, out)
        assert done.code == 2
        assert f"{out} is not empty, and these runs begin anew: name another folder" in done.err


def test_a_folder_that_was_never_made_is_not_named(tmp_path: Path) -> None:
    """Where an estimate was stopped before its first run."""
    asked = Asked("simulate digits", "digits", {}, [], False, False, False, False)
    console = Console(file=StringIO())
    for folder, told in ((tmp_path / "none", ""), (tmp_path, f"  runs     {tmp_path}\n")):
        asked._tell_runs([], str(folder), console)
        assert console.file.getvalue() == told  # type: ignore[attr-defined]
