"""Write docs/results/*.md and the table of README.md from docs/results/*.json: `python -m benchmarks.results`."""

import ast
import json
from collections.abc import Iterator, Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

from benchmarks.figures import BENCHMARKS, Benchmark
from benchmarks.goal_plots import goal_plot
from benchmarks.report import RESULTS, ROOT

BEGIN, END = "<!-- results -->", "<!-- /results -->"
NOTE = "<!-- Written by `make results`. Do not edit. -->"
HIGHLIGHTS = (
    ("overhead", "single_worker_20ms"),
    (
        "ray",
        "preempted_time_over_ray_train",
        "accuracy",
        "ray_train_accuracy",
        "preempted_time_to_accuracy_over_ray_train",
    ),
    ("gossip", "time_ratio", "time_ratio_overlapped", "accuracy_gap_points", "accuracy_gap_points_cifar10"),
    ("simulator", "updates_per_second_1000"),
    ("faults", "goodput_all"),
    ("stragglers", "real_joint_over_synchronous", "real_joint_over_best_rival"),
    ("vc_asgd", "saving_newest", "saving_over_fedavg_4_spot", "bill_saving_p3_min", "saving_default_mode"),
    (
        "planner",
        "speedup_over_synchronous",
        "speedup_over_defaults_min",
        "prediction_error_dollars",
        "spot_saving",
    ),
    ("queue", "jct_gain_backfill_75", "jct_gain_75", "learnt_over_oracle", "real_jct_gain"),
    ("slide", "speedup_over_dense_670k_clusters", "speedup_over_dense_670k_lsh"),
)
"""Rows of README.md's table: a benchmark, a key, and further keys with figures in the same row."""
PLOTS = ROOT / "docs" / "plots"
GOALS = "_goals"
"""Suffix of plots of figures relative to their goals."""
GOALS_CAPTION = (
    "Figures relative to their goals (2x: twice as good). To the right of the line, a goal is met."
)
EARLIER = {
    "date": "{}",
    "version": "oddlot {}",
    "commit": "commit `{}`",
    "processor": "{}",
    "cores": "{} cores",
    "command": "`{}`",
}
"""Format of the details of an earlier run that measured a figure."""
MET = {True: "yes", False: "**no**", None: ""}
Saved = dict[str, Any]
"""Contents of a file in docs/results."""


def main() -> None:
    """Write all pages, and the table in README.md if README.md has the two markers."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    if BEGIN in text and END in text:
        readme.write_text(with_rows(text, read()), encoding="utf-8")
    else:
        print(f"README.md is not changed: it has no lines {BEGIN} and {END}.")


def read(folder: Path = RESULTS) -> dict[str, Saved]:
    """Return the saved figures of all benchmarks with a file, in the order of `BENCHMARKS`."""
    paths = {name: folder / f"{name}.json" for name in BENCHMARKS}
    return {
        name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()
    }


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """Return the text of each generated page, by file name."""
    saved = read(folder)
    found = {f"{name}.md": page(name, one, notes(folder, name)) for name, one in saved.items()}
    found["index.md"] = index(saved)
    return {name: "\n".join(lines).rstrip() + "\n" for name, lines in found.items()}


def files(folder: Path = RESULTS) -> dict[Path, str]:
    """Return the text of each generated page and plot, by path."""
    plots = {f"{name}{GOALS}": goals(name, one) for name, one in read(folder).items()}
    drawn = {PLOTS / f"{name}.svg": text for name, text in plots.items() if text}
    return {folder / name: text for name, text in pages(folder).items()} | drawn


def goals(name: str, saved: Saved) -> str:
    """Return the plot of the figures relative to their goals. Empty for a benchmark with its own plots."""
    about = BENCHMARKS[name]
    message = {key: value(one) for key, one in saved["figures"].items() if one["n"]}
    return "" if about.plots else goal_plot(about, saved, message)


def with_rows(text: str, saved: dict[str, Saved]) -> str:
    """Return `text` with the table of `HIGHLIGHTS` between the two markers."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, *highlights(saved), END + after])


def highlights(saved: dict[str, Saved]) -> Iterator[str]:
    """Yield the lines of README.md's table."""
    rows = []
    for name, *keys in HIGHLIGHTS:
        measured = {key: one for key, one in saved.get(name, {"figures": {}})["figures"].items() if one["n"]}
        if keys[0] in measured:
            shown = {key: measured[key] for key in keys if key in measured}
            what = "<br>".join(BENCHMARKS[name].figures[key].what for key in shown)
            columns = zip(*((value(one), goal(one), MET[one["met"]]) for one in shown.values()), strict=True)
            rows.append((BENCHMARKS[name].title, what, *map("<br>".join, columns)))
    yield from table(("benchmark", "measures", "median (range)", "goal", "met"), rows)


def page(name: str, saved: Saved, written: str) -> Iterator[str]:
    """Yield the lines of a benchmark's page: a sentence and plots, figures, method, notes, keys.

    `written` is the text of the notes.
    """
    about = BENCHMARKS[name]
    first, *rest = introduction(name)
    plots = dict(about.plots or ({f"{name}{GOALS}": GOALS_CAPTION} if goals(name, saved) else {}))
    yield from (NOTE, "", f"# {about.title}", "", first)
    for plot, caption in plots.items():
        yield from ("", f"![{caption}](../plots/{plot}.svg)", "", f"*{caption}*")
    yield ""
    yield from figures(about, saved)
    missing = [about.figures[key].what for key, one in saved["figures"].items() if not one["n"]]
    if missing:
        yield from ("", "Not measured:", "", *(f"- {what}" for what in missing))
    yield from ("", "## How it was measured", "", *(rest[1:] if rest[:1] == [""] else rest), "")
    how = {
        "command": f"`{saved['command']}`",
        "date": saved["date"],
        "version": f"oddlot {saved['version']}, commit `{saved['commit']}`",
        "processor": f"{saved['processor']}, {saved['cores']} cores",
    }
    yield from table(("", ""), list(how.items()))
    if written:
        yield from ("", "## Notes", "", written.rstrip())
    yield from (
        "",
        "## Keys",
        "",
        f"The names of the figures in `docs/results/{name}.json`, in the order of the table:",
        "",
    )
    yield from keys(saved)


def figures(about: Benchmark, saved: Saved) -> Iterator[str]:
    """Yield the table of figures."""
    rows = [
        (about.figures[key].what, value(one), goal(one).replace(" ", "&nbsp;"), MET[one["met"]])
        for key, one in saved["figures"].items()
        if one["n"]
    ]
    yield from table(("measures", "median (range)", "goal", "met"), rows)


def keys(saved: Saved) -> Iterator[str]:
    """Yield a list of the keys of the figures, with the differences of an earlier run (see `EARLIER`)."""
    for key, one in saved["figures"].items():
        earlier = "".join(f", {text.format(one[name])}" for name, text in EARLIER.items() if name in one)
        yield f"- `{key}` (n = {one['n']}{earlier})"


def index(saved: dict[str, Saved]) -> Iterator[str]:
    """Yield the lines of the index page."""
    yield from (NOTE, "", "# Results", "", "The benchmarks of oddlot, their figures and their goals.", "")
    rows = []
    for name, one in saved.items():
        met = [figure["met"] for figure in one["figures"].values() if figure["met"] is not None]
        left = sum(bool(figure["goal"]) and not figure["n"] for figure in one["figures"].values())
        goals = f"{sum(met)} of {len(met)}" + (f", {left} not measured" if left else "")
        rows.append((f"[{BENCHMARKS[name].title}]({name}.md)", introduction(name)[0], goals, one["date"]))
    yield from table(("benchmark", "measures", "goals met", "date"), rows)
    if lost := list(missed(saved)):
        yield from ("", "Goals that are missed:", "")
        yield from table(("benchmark", "measures", "median (range)", "goal"), lost)
    yield from ("", "How to read the pages:", "")
    yield "- Most figures are ratios to an alternative that runs in turn with oddlot on the same machine."
    yield "- `X / Y` is a ratio: the value of X divided by the value of Y."
    yield "- `n` is the number of values. The median and the range are those of the `n` values."
    yield "- A run that does not reach its accuracy, error or quality counts as the worst value. If the median run does"
    yield "  not reach it, the figure is `not reached`, and the goal is missed. `Not measured`: there was no run."
    yield "- A commit that ends in `-dirty` had uncommitted changes."
    yield "- Figures without a goal are for information."
    yield "- Results differ between machines, and on a machine that runs other programs."
    yield from ("", "To run a benchmark and write its figures and pages:", "")
    yield from (
        "<!-- not run: takes minutes -->",
        "```bash",
        "python -m benchmarks.hub --quick --save",
        "make results",
        "```",
    )
    yield from ("", "`--quick` runs fewer rounds. `--smoke` runs a few seconds and measures nothing.", "")
    yield from ("```{toctree}", ":hidden:", "", *saved, "```", "")


def missed(saved: dict[str, Saved]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each figure that misses its goal."""
    for name, about in saved.items():
        for key, one in about["figures"].items():
            if one["met"] is False:
                what = BENCHMARKS[name].figures[key].what
                yield f"[{BENCHMARKS[name].title}]({name}.md)", what, value(one), goal(one)


def introduction(name: str) -> list[str]:
    """Return the lines of the benchmark's docstring above its command."""
    path = ROOT / "benchmarks" / name / "__main__.py"
    path = path if path.exists() else ROOT / "benchmarks" / f"{name}.py"
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    end = next(at for at, line in enumerate(lines) if "python -m benchmarks" in line)
    return "\n".join(lines[:end]).strip().splitlines()


def notes(folder: Path, name: str) -> str:
    """Return the hand-written notes on a benchmark, or an empty text."""
    path = folder / f"{name}.notes.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def value(one: Saved) -> str:
    """Return the median with range and unit, such as `0.962 (0.957-0.963)`. Equal values have no range.

    If some runs did not reach the figure, the text has the number of runs that did.
    """
    unit = f" {one['unit']}" if one["unit"] else ""
    count = f", reached by {one['reached']} of {one['n']} runs" if "reached" in one else ""
    if one["median"] is None:
        return f"not reached ({one['reached']} of {one['n']} runs)"
    middle, low, high = numbers(one["median"], one["low"], one["high"])
    if low == high:
        return middle + unit + count
    return f"{middle} ({low}{' to ' if one['low'] < 0 else '-'}{high}){unit}{count}"


def goal(one: Saved) -> str:
    """Return `≥ 0.92` for `>= 0.92`, with thousands separators."""
    if not one["goal"]:
        return ""
    comparison, _, bound = one["goal"].partition(" ")
    return (
        f"{ {'>=': '≥', '<=': '≤'}[comparison] } {f'{float(bound):,.0f}' if float(bound) >= 1000 else bound}"
    )


def numbers(*values: float) -> list[str]:
    """Format numbers with equal decimals and at most three significant digits."""
    largest = float(f"{max(map(abs, values)):.2e}")
    digits = 2 - floor(log10(largest)) if largest else 0
    texts = [f"{round(one, digits):,.{max(digits, 0)}f}" for one in values]
    while "." in texts[0] and all(text.endswith(("0", ".")) for text in texts):
        texts = [text[:-1] for text in texts]
    return texts


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
