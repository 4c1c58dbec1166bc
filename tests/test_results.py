"""Pages of results agree with their JSON files, and `--save` writes such files."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import report, results
from benchmarks.figures import BENCHMARKS, Benchmark, Figure, is_met
from benchmarks.goal_plots import goal_plot
from benchmarks.report import NOT_REACHED, Size, entry, finish, median_and_range, parse, parser

SAVED = results.read()
RUN_KEYS = {"version", "commit", "date", "processor", "cores", "command"}
KEYS = {"benchmark", "figures"} | RUN_KEYS
FIGURE_KEYS = {"median", "low", "high", "n", "goal", "met", "unit"}
OPTIONAL_KEYS = RUN_KEYS | {"reached"}


def test_every_result_file_belongs_to_a_benchmark() -> None:
    assert SAVED
    assert {path.stem for path in report.RESULTS.glob("*.json")} <= BENCHMARKS.keys()
    assert {path.name.partition(".")[0] for path in report.RESULTS.glob("*.notes.md")} <= BENCHMARKS.keys()


@pytest.mark.parametrize("name", SAVED)
def test_result_file_has_all_keys(name: str) -> None:
    saved = SAVED[name]
    assert saved.keys() == KEYS
    assert saved["benchmark"] == name
    assert "--smoke" not in saved["command"]
    assert list(saved["figures"]) == list(BENCHMARKS[name].figures)
    for figure in saved["figures"].values():
        assert figure.keys() >= FIGURE_KEYS
        assert figure.keys() - FIGURE_KEYS <= OPTIONAL_KEYS


@pytest.mark.parametrize("name", SAVED)
def test_goals_match_the_benchmark_and_met_is_correct(name: str) -> None:
    for key, figure in SAVED[name]["figures"].items():
        about, middle = BENCHMARKS[name].figures[key], figure["median"]
        assert (figure["goal"] or "", figure["unit"]) == (about.goal, about.unit), key
        assert (middle is None) == (2 * figure.get("reached", figure["n"]) <= figure["n"]), key
        assert figure["met"] == (is_met(about.goal, middle) if about.goal and figure["n"] else None), key
        assert middle is None or figure["low"] <= middle <= figure["high"], key


def test_result_pages_are_up_to_date() -> None:
    for path, text in results.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make results`"


@pytest.mark.parametrize("name", SAVED)
def test_result_page_has_title_sentence_plot_and_keys(name: str) -> None:
    _, title, sentence, plot, *rest = results.pages()[f"{name}.md"].split("\n\n")
    assert (title[:2], sentence[-1:], plot[:2]) == ("# ", ".", "![")
    assert (report.RESULTS / plot.partition("](")[2].rstrip(")")).exists()
    before, _, keys = "\n\n".join(rest).partition("## Keys")
    assert not [key for key in BENCHMARKS[name].figures if f"`{key}`" in before.partition("## Notes")[0]]
    assert re.findall("^- `(\\w+)`", keys, re.MULTILINE) == list(BENCHMARKS[name].figures)


def test_goal_plot_shows_which_goals_are_met() -> None:
    """Goals that are met are to the right of the line. Values beyond the axis are drawn at its ends."""
    about = Benchmark("t", {"a": Figure("A.", ">= 2"), "b": Figure("B.", "<= 4"), "c": Figure("C.", "<= 1")})
    values = {"a": [1.0, 1.5, 3.0], "b": [2.0], "c": [-1.0]}
    saved = {"figures": {key: entry(figure, values[key]) for key, figure in about.figures.items()}}
    root = ET.fromstring(goal_plot(about, saved, dict.fromkeys("abc", "x")))
    dots = [float(each.attrib["cx"]) for each in root.iter() if "cx" in each.attrib]
    (line,) = (each.attrib["d"] for each in root.iter() if each.get("class") == "goal")
    at_goal = float(line[1:].split()[0])
    assert [dot > at_goal for dot in dots] == [False, True, True]
    assert dots[2] == max(dots) <= 860


def test_readme_results_are_up_to_date() -> None:
    text = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert results.BEGIN in text
    assert results.with_rows(text, SAVED) == text, "README.md: run `make results`"


def test_every_plot_exists() -> None:
    for benchmark in BENCHMARKS.values():
        for plot in benchmark.plots or {}:
            assert (report.ROOT / "docs" / "plots" / f"{plot}.svg").exists()


def test_rows_replace_the_text_between_markers() -> None:
    text = f"# Title\n\n{results.BEGIN}\nold\n{results.END}\n\nEnd\n"
    once = results.with_rows(text, SAVED)
    assert once.startswith(f"# Title\n\n{results.BEGIN}\n| benchmark |")
    assert once.endswith(f" |\n{results.END}\n\nEnd\n")
    assert "old" not in once
    assert results.with_rows(once, SAVED) == once
    assert all(set(keys) <= BENCHMARKS[name].figures.keys() for name, *keys in results.HIGHLIGHTS)


def test_index_lists_missed_goals_and_highlights() -> None:
    missed = [
        (name, key)
        for name, one in SAVED.items()
        for key in one["figures"]
        if one["figures"][key]["met"] is False
    ]
    rows = list(results.missed(SAVED))
    assert [row[1] for row in rows] == [BENCHMARKS[name].figures[key].what for name, key in missed]
    assert all(" | ".join(row) in results.pages()["index.md"] for row in rows)
    table = "\n".join(results.highlights(SAVED))
    for name, *keys in results.HIGHLIGHTS:
        shown = [SAVED[name]["figures"][key] for key in keys if SAVED[name]["figures"][key]["n"]]
        assert f"| {'<br>'.join(results.value(one) for one in shown)} |" in table


@pytest.mark.parametrize(
    ("goal", "values", "middle", "low", "met", "text"),
    [
        ("<= 2", [1.0, NOT_REACHED, 1.5], 1.5, 1.0, True, "1.5 (1.0-1.5), reached by 2 of 3 runs"),
        (">= 2", [3.0, NOT_REACHED, 2.5], 2.5, 2.5, True, "2.5 (2.5-3.0), reached by 2 of 3 runs"),
        ("<= 2", [NOT_REACHED, 1.0], None, 1.0, False, "not reached (1 of 2 runs)"),
        (">= 2", [NOT_REACHED], None, None, False, "not reached (0 of 1 runs)"),
        ("", [2.0, 3.0, -NOT_REACHED], 2.0, 2.0, None, "2 (2-3), reached by 2 of 3 runs"),
    ],
)
def test_goal_not_reached_counts_as_the_worst_value(
    goal: str, values: list[float], middle: float | None, low: float | None, met: bool | None, text: str
) -> None:
    about = Benchmark("t", {"a": Figure("A.", goal)})
    one = entry(about.figures["a"], values)
    assert (one["median"], one["low"], one["n"], one["met"]) == (middle, low, len(values), met)
    assert results.value(one) == text
    saved = {"figures": {"a": one}}
    assert text in "".join(results.figures(about, saved))
    assert bool(goal_plot(about, saved, {"a": text})) == bool(goal)
    assert "reached" not in entry(about.figures["a"], [])
    assert median_and_range([1.0, NOT_REACHED, 1.5], 1) == "1.5 (1.0 to 1.5), 2 of 3"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1.7, 1.42, 1.9), ["1.70", "1.42", "1.90"]),
        ((14_308.4, 13_202.1, 15_000), ["14,300", "13,200", "15,000"]),
        ((0.21, 0.19, 0.23), ["0.21", "0.19", "0.23"]),
        ((-0.026, -0.042, 0.039), ["-0.026", "-0.042", "0.039"]),
        ((1.0,), ["1"]),
        ((0.0,), ["0"]),
        ((100.0, 90.0, 110.0), ["100", "90", "110"]),
        ((0.934, 0.799, 1.1), ["0.93", "0.80", "1.10"]),
        ((0.9996, 0.99), ["1.00", "0.99"]),
    ],
)
def test_numbers_have_three_digits_and_equal_decimals(values: tuple[float, ...], text: list[str]) -> None:
    assert results.numbers(*values) == text


def test_smoke_run_is_not_saved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["hub", "--smoke", "--save"])
    with pytest.raises(SystemExit):
        parse(parser("hub", "", ""))
    assert "--save: figures of --smoke mean nothing" in capsys.readouterr().err


def test_save_keeps_figures_that_were_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["hub", "--quick", "--save"])
    options = parse(parser("hub", "", ""))
    assert options.size is Size.QUICK
    finish(options, {"memory_factor_100m": 1.05, "merge_bandwidth_share_25m": [0.5, 0.8, 0.72]})
    assert json.loads(capsys.readouterr().out) == {
        "memory_factor_100m": 1.05,
        "merge_bandwidth_share_25m": 0.72,
    }
    first = json.loads((tmp_path / "hub.json").read_text())
    assert first.keys() == KEYS
    assert first["command"] == "python -m benchmarks.hub --quick"
    assert first["figures"]["merge_bandwidth_share_100m"]["n"] == 0

    first |= (earlier := {"date": "2020-01-01", "version": "0.0.1", "command": "python -m benchmarks.hub"})
    (tmp_path / "hub.json").write_text(json.dumps(first))
    finish(options, {"memory_factor_100m": NOT_REACHED})
    assert json.loads(capsys.readouterr().out) == {"memory_factor_100m": "not reached"}
    finish(options, {"memory_factor_100m": 1.25})
    saved = json.loads((tmp_path / "hub.json").read_text())
    figures = saved["figures"]
    assert figures["memory_factor_100m"] == entry(BENCHMARKS["hub"].figures["memory_factor_100m"], [1.25])
    assert figures["memory_factor_100m"]["met"] is False
    kept = figures["merge_bandwidth_share_25m"]
    assert kept == {**first["figures"]["merge_bandwidth_share_25m"], **earlier}
    assert (kept["low"], kept["median"], kept["high"], kept["n"], kept["met"]) == (0.5, 0.72, 0.8, 3, True)
    line = "- `merge_bandwidth_share_25m` (n = 3, 2020-01-01, oddlot 0.0.1, `python -m benchmarks.hub`)"
    assert line in "\n".join(results.page("hub", saved, ""))
