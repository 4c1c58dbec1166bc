"""`oddlot report` and `oddlot replay`: what a run's folder tells."""

import json
from pathlib import Path

import pytest

from tests.command import Oddlot


def test_a_run_is_reported_and_replayed(oddlot: Oddlot) -> None:
    ended = oddlot.json(
        "simulate", "digits", "--machines", "fleet.toml", "--until", "epochs>=1", "--out", "run"
    )
    told = oddlot("report", "run")
    assert told.code == 0
    assert told.out.startswith("digits with synchronous: accuracy 0.")
    assert "on the fleet's clock" in told.out
    proof = "exactly once: every one of the 1,437 positions of epoch 0 is in one merged update"
    figures = json.loads(oddlot("report", "run", "--json").out)
    void = ", ".join(f"{count:,} {reason}" for reason, count in figures["wasted"].items()) or "none"
    assert told.out.endswith(f"  proof    {proof}; assigned for nothing: {void}\n")
    assert {name: figures[name] for name in ended} == ended, "every figure is a function of the log"
    assert (figures["exactly_once"], figures["epochs_whole"]) == (True, 1)
    again = oddlot("replay", "run")
    assert (again.code, again.out) == (0, f"run: all {_records(Path('run'))} records are decided the same\n")


def _records(run: Path) -> int:
    return (run / "records.jsonl").read_bytes().count(b"\n") - 1


def test_a_difference_and_what_counts_twice_end_with_exit_code_1(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    log = Path("run/records.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if '"is":"Step"' in line]
    doubled = [*lines[: steps[0] + 1], lines[steps[0]], *lines[steps[0] + 1 :]]
    del doubled[steps[-1] + 1]  # as many versions as the run has said
    log.write_text("".join(doubled))
    answer = oddlot("replay", "run")
    assert answer.code == 1
    assert f"then line {steps[0] + 2} of the log differs. It came about like this:" in answer.err
    answer = oddlot("report", "run")
    assert answer.code == 1
    assert "proof    NOT exactly once: positions 0 to 31 of epoch 0 are in w1:1 and in w1:1" in answer.out


def test_a_hole_in_an_epoch_that_was_to_be_whole_ends_with_exit_code_1(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    log = Path("run/records.jsonl")
    head, _, tail = log.read_text().rpartition('{"is":"Step"')
    name = tail[tail.index("w1:") :].partition('"')[0]
    drop = f'{{"is":"Drop","update":"{name}"}}'
    log.write_text(head + drop + tail[tail.index("}") + 1 :].partition("}")[2])
    answer = oddlot("report", "run")
    assert answer.code == 1
    assert "NOT exactly once: 29 positions of epoch 0 are in no merged update" in answer.out


def test_a_log_that_is_not_whole_is_told(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    log = Path("run/records.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:20]))
    for command in ("report", "replay"):
        answer = oddlot(command, "run")
        assert answer.code == 2
        told = (
            f"records.jsonl has 19 of the {len(lines) - 1} records of the run: restore the file from a copy"
        )
        assert told in answer.err
    starts = [number for number, line in enumerate(lines) if '"is":"Start"' in line]
    for broken in (
        [*lines[: starts[3]], lines[-1], *lines[starts[3] + 1 :]],
        [lines[0].replace('"size":1437', '"size":"a"'), *lines[1:]],
    ):
        log.write_text("".join(broken))
        answer = oddlot("report", "run")
        assert answer.code == 2
        assert "records.jsonl is damaged" in answer.err
    log.write_text("".join([lines[0].replace('"format":1', '"format":9'), *lines[1:]]))
    assert "has format 9, this version of oddlot reads 1" in oddlot("report", "run").err


def test_a_summary_of_another_run_is_told(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    path = Path("run/summary.json")
    path.write_text(path.read_text().replace('"samples_merged": 1437', '"samples_merged": 1438'))
    answer = oddlot("report", "run")
    assert answer.code == 2
    assert "summary.json says samples_merged 1438, the log 1437: restore them from a copy" in answer.err


@pytest.mark.parametrize(
    "text",
    [pytest.param("[" * 200_000, id="nested")]
    + [
        pytest.param(f'{{"ended":"","ended_version":1,"records":1,"seconds":{seconds}}}', id=seconds[:9])
        for seconds in ('"abc"', "Infinity", "9" * 400)
    ],
)
def test_a_damaged_summary_is_told(oddlot: Oddlot, text: str) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    Path("run/summary.json").write_text(text)
    answer = oddlot("report", "run")
    assert (answer.code, "summary.json is damaged: restore it from a copy" in answer.err) == (2, True)


def test_a_place_of_checkpoints_is_told_from_a_run_s_folder(oddlot: Oddlot) -> None:
    oddlot.json(
        *(
            "train",
            "digits",
            "--until",
            "epochs>=1",
            "--workers",
            "1",
            "--out",
            "run",
            "--checkpoints",
            "saved",
        )
    )
    for command in ("report", "replay", "watch"):
        answer = oddlot(command, "saved")
        assert answer.code == 2
        assert "saved has the checkpoints of a run, and is not its folder: resume with" in answer.err


def test_a_run_under_way_is_reported_without_what_it_has_not_written(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    for name in ("summary.json", "model.safetensors"):
        Path("run", name).unlink()
    answer = oddlot("report", "run")
    assert (
        "  ended    nobody is at work on it any more: it was killed, or could not write, after 1.0 epochs"
        in answer.out
    )
    assert "  written  run: records.jsonl, checkpoints\n" in answer.out


@pytest.mark.parametrize("command", ["report", "replay"])
def test_what_is_no_run_is_told(oddlot: Oddlot, command: str) -> None:
    answer = oddlot(command, "nothing")
    assert (answer.code, answer.err) == (2, "oddlot: there is no run in nothing\n")
