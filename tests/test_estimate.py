"""What a job would take and cost: in Python and on the command line."""

import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from oddlot import (
    Alive,
    Fleet,
    Hub,
    Interrupted,
    Link,
    Lognormal,
    Machine,
    Offer,
    Run,
    Simulated,
    Steps,
    Synchronous,
    UsageError,
    Zone,
    estimate,
    fit,
)
from oddlot.estimate import TOLD, estimates
from tests.command import Oddlot
from tests.fits import SAMPLES, a_job

estimating = import_module("oddlot.estimate")  # whose name is that of its function
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


def test_a_fleet_without_zones_has_one_price() -> None:
    (found,) = estimate(
        a_job(), Synchronous(), Fleet([Machine("m", 0.1)]), seeds=1, until="epochs>=1", in_flight=2
    )
    assert found.bought == ""
    assert found.values("seconds") == pytest.approx([SAMPLES * 0.1])
    with pytest.raises(UsageError, match="seeds = 0 must be at least 1"):
        estimate(a_job(), Synchronous(), Fleet([Machine("m", 0.1)]), seeds=0)


def test_the_command_tells_both_and_the_share(oddlot: Oddlot, tmp_path: Path) -> None:
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
    assert not (tmp_path / "runs").exists(), "it leaves nothing behind"
    plain = oddlot.json(*asked)
    assert plain.keys() == {"spot", "on demand"}
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "0"), "greater than or equal to 1"),
        (("--seeds", "2", "--resume"), "--seeds begins runs of its own"),
        (
            ("--seeds", "2", "--no-maths", "--until", "accuracy>=0.9"),
            "with maths=False (--no-maths) nothing is trained",
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
    assert estimates("x", found).row_count == len(TOLD) - 1, "nothing of an accuracy"
    measured = [one | {"accuracy": 0.9, "dollars_per_point": 0.01} for one in found[0].summaries]
    assert estimates("x", [replace(found[0], summaries=measured)]).row_count == len(TOLD) + 1


def test_a_stop_says_how_many_runs_were_done(
    oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    fit, calls = estimating.fit, list[int]()

    def stopped_in_the_third(*words: Any, **options: Any) -> Run:
        calls.append(1)
        run: Run = fit(*words, **options)
        if len(calls) == 3:
            raise Interrupted(run, signal.SIGTERM)
        return run

    monkeypatch.setattr(estimating, "fit", stopped_in_the_third)
    words = ("--until", "epochs>=1", "--seeds", "2", "--no-maths")
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words)
    assert done.code == 128 + signal.SIGTERM
    assert done.err.splitlines()[-1] == "stopped: 2 runs were done"
    assert "medians and ranges of 2 seeds" in done.out.splitlines()[0], "what is known is told"
    assert done.out.splitlines()[1].split() == ["spot"]


def test_what_was_not_reached_is_told(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    words = ("--until", "accuracy>=0.9 or dollars<=0.0001", "--seeds", "2", "--no-maths")
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words)
    assert "of these, 4 made no version: their end came before any task was done" in done.out
    assert (
        next(line for line in done.out.splitlines() if line.startswith("ended")).count("dollars<=0.0001 (2)")
        == 2
    )


def test_a_stop_in_the_first_run_tells_that_nothing_was_done(
    oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    fit = estimating.fit

    def stopped(*words: Any, **options: Any) -> Run:
        raise Interrupted(fit(*words, **options), signal.SIGTERM)

    monkeypatch.setattr(estimating, "fit", stopped)
    words = ("--until", "epochs>=1", "--seeds", "2", "--no-maths", "--out", "both")
    done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words)
    assert done.code == 128 + signal.SIGTERM
    assert done.out == ""
    assert done.err.splitlines()[-1] == "stopped: 0 runs were done"


def test_an_estimate_begins_in_a_folder_of_its_own(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE)
    (tmp_path / "both" / "spot-0").mkdir(parents=True)
    words = ("--until", "epochs>=1", "--seeds", "1", "--no-maths", "--out")
    for out in ("both", "fleet.toml"):
        done = oddlot("simulate", "digits", "--machines", "fleet.toml", *words, out)
        assert done.code == 2
        assert f"{out} is not empty, and these runs begin anew: name another folder" in done.err
