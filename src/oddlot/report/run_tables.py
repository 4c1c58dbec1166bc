"""The tables of a report page: figures of runs with their ratios, and settings and provenance of runs."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any

from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.support.text import (
    availability,
    best_weights,
    combined,
    cost,
    duration,
    overwritten,
    printable,
    rejected,
    samples,
    traffic,
    went,
)
from oddlot.history.run_folder import EFFECTIVE_BATCH, ENGINE, RUN, STARTED
from oddlot.history.segments import FIRST_VERSION, STAGE, STATE_KEPT, Segment, segments_of
from oddlot.report.run_report import RunReport
from oddlot.strategies.registry import BY_NAME, WRAPPERS

NAMES = {kind.__name__: name for name, kind in {**BY_NAME, **WRAPPERS}.items()}
NAMES |= {kind.__name__: kind.__name__.lower() for kind in (SGD, Adam, AdamW)}
NAMES |= {"ByGradients": "gradients", "ByPlateau": "plateau", "ByError": "error"}
"""Names of classes in job files."""


def readable(settings: str) -> str:
    """Return `FastestK(k=2, samples=None)` as `fastest_k: k = 2`. Other texts are returned unchanged.

    Settings that are None are omitted, as in a job file.
    """
    try:
        call = ast.parse(settings, mode="eval").body
        return printable(_text(call) if isinstance(call, ast.Call) else settings)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return printable(settings)


def _text(call: ast.Call, inside: bool = False) -> str:
    """Return the name and settings of a dataclass. With `inside`, the settings are in brackets."""
    name = ast.unparse(call.func)
    settings = [f"{one.arg} = {_value(one.value)}" for one in call.keywords if not _is_none(one.value)]
    message = ", ".join([*map(_value, call.args), *settings])
    name = NAMES.get(name, name)
    if not message:
        return name
    return f"{name} ({message})" if inside else f"{name}: {message}"


def _value(value: ast.expr) -> str:
    """Return the text of a setting's value."""
    if isinstance(value, ast.Call):
        return _text(value, inside=True)
    if isinstance(value, ast.Tuple | ast.List):
        return f"[{', '.join(map(_value, value.elts))}]"
    if isinstance(value, ast.Constant):
        return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)
    return ast.unparse(value)


def _is_none(value: ast.expr) -> bool:
    """Return whether a value is None."""
    return isinstance(value, ast.Constant) and value.value is None


MAX_COLUMNS = 3
"""Largest number of columns of a comparison table that is as wide as the text."""
MAX_METRICS = 3
"""Largest number of metrics in the headline."""
BAD = ' class="bad"'


@dataclass(frozen=True)
class Row:
    """A row of the table of figures."""

    tell: Callable[[RunReport], str]
    """Function that returns the figure of a run as text. Empty if the run does not have it."""
    number: Callable[[RunReport], float | None] | None = None
    """Function that returns the number for the ratio to the first run, or None for no ratio."""
    is_of_clock: bool = False
    """Whether the number is comparable only between runs with the same kind of clock, real or simulated."""


def _time(run: RunReport) -> str:
    return (
        duration(run.tally.seconds)
        + (" simulated" if run.virtual else "")
        + availability(run.summary, run.virtual)
    )


def _speed(run: RunReport) -> float | None:
    return run.tally.samples.merged / run.tally.seconds if run.tally.seconds else None


def _bytes(run: RunReport) -> float:
    kinds = ("bytes_exchanged",) if "exchanges" in run.summary else ("bytes_up", "bytes_down", "bytes_data")
    return float(sum(run.summary[kind] for kind in kinds))


FIGURES = {
    "ended": Row(lambda run: run.summary["ended"]),
    "time": Row(_time, lambda run: run.tally.seconds, is_of_clock=True),
    "cost": Row(
        lambda run: cost(run.tally.summary()) if run.has_prices else "",
        lambda run: run.tally.dollars if run.has_prices else None,
    ),
    "epochs": Row(lambda run: f"{run.tally.epochs:.1f}", lambda run: run.tally.epochs),
    "versions": Row(lambda run: f"{run.tally.versions:,}", lambda run: run.tally.versions),
    "best weights": Row(lambda run: best_weights(run.summary)),
    "samples per second": Row(lambda run: f"{_speed(run) or 0.0:,.4g}", _speed, is_of_clock=True),
    "samples": Row(lambda run: samples(run.tally.summary())),
    "traffic": Row(lambda run: traffic(run.tally.summary()), _bytes),
    "rejected": Row(lambda run: rejected(run.summary)),
    "combine": Row(lambda run: combined(run.summary)),
    "store": Row(lambda run: overwritten(run.summary)),
    "faults": Row(lambda run: run.injected_faults),
    "workers": Row(
        lambda run: went(*(run.summary[figure] for figure in ("workers_lost", "workers_left", "starts_lost")))
    ),
}
"""Rows of the table of figures, after the metrics."""


def headline(run: RunReport) -> str:
    """Return the most important figures of a run, in large letters."""
    metrics = run.tally.quality.metrics
    names = [name for name in metrics if name != "loss"][:MAX_METRICS]
    figures = {name: f"{metrics[name]:.4f}" for name in names}
    figures |= {"loss": f"{metrics['loss']:.4f}"} if "loss" in metrics else {}
    if not metrics and (training := run.tally.quality.training_loss) is not None:
        figures = {"training loss": f"{training:.4f}"}
    figures |= {"time": duration(run.tally.seconds) + (", simulated" if run.virtual else "")}
    figures |= {"epochs": f"{run.tally.epochs:.1f}"}
    figures |= {"cost": cost(run.tally.summary())} if run.has_prices else {}
    shown = []
    for name, text in figures.items():
        first, comma, rest = text.partition(", ")
        more = f"<small>{escape(rest)}</small>" if comma else ""
        shown.append(f"<div><dt>{escape(name)}</dt><dd>{escape(first)}{more}</dd></div>")
    return f"<dl>{''.join(shown)}</dl>"


def figures_table(runs: Sequence[RunReport], names: Sequence[str]) -> str:
    """Return the table of figures, with a column per run and the ratio of each later run to the first.

    With several runs, one row shows their verdicts.
    """
    several = len(runs) > 1
    rows = _metrics(runs) | FIGURES
    body = [_row(what, row, runs, names) for what, row in rows.items() if any(map(row.tell, runs))]
    if several:
        verdicts = [
            _cells(str(run.proof), None, name, number, bad=not run.proof.is_exactly_once)
            for number, (run, name) in enumerate(zip(runs, names, strict=True))
        ]
        body.append(f"<tr><th>verdict</th>{''.join(verdicts)}</tr>")
    ratio = '<th class="ratio">ratio</th>'
    head = "".join(f"<th>{escape(name)}</th>{ratio * (number > 0)}" for number, name in enumerate(names))
    return _table(head if several else "", body, len(runs))


def how_table(runs: Sequence[RunReport], names: Sequence[str]) -> str:
    """Return a table with the date, command, versions and settings of the runs."""
    tables = [provenance(run.settings) for run in runs]
    keys = dict.fromkeys(key for each in tables for key in each)
    several = len(runs) > 1
    body = []
    for key in keys:
        cells = [
            f"<td{_of(name) * several}>{_breakable(each.get(key, ''))}</td>"
            for each, name in zip(tables, names, strict=True)
        ]
        body.append(f"<tr><th>{escape(key)}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return _table(head if several else "", body, len(runs))


def provenance(settings: dict[str, Any]) -> dict[str, str]:
    """Return the date, command, versions and settings of a run from run.json. Missing entries are omitted."""
    started, engine, run = (
        found if isinstance(found := settings.get(key), dict) else {} for key in (STARTED, ENGINE, RUN)
    )
    versions = {"oddlot": "oddlot", "torch": "PyTorch", "python": "Python"}
    shapes = settings.get("parameters")
    optimizer = str(settings.get("optimizer", ""))
    rate = re.search(r"\blr=([^,)]+)", optimizer)
    schedule = settings.get("lr_schedule")
    found = {
        "date": str(started.get("date", "")).replace("T", " ").replace("+00:00", " UTC"),
        "started by": started.get("command"),
        "host": started.get("host"),
        "software": ", ".join(f"{label} {started[key]}" for key, label in versions.items() if key in started),
        "workload": _workload(settings),
        "parameters": _parameters(shapes),
        "strategy": readable(settings["strategy"]),
        "optimizer": readable(optimizer),
        "learning rate": f"{rate[1]}, {readable(str(schedule))}" if rate and schedule else rate and rate[1],
        "batch": settings.get("batch_size"),
        "effective batch": settings.get(EFFECTIVE_BATCH),
        "workers": _workers(engine),
        "seed": settings.get("seed"),
        "goal": run.get("until"),
        "codec": run.get("codec"),
        "merge rule": run.get("combine"),
        "gates": ", ".join(map(str, run.get("gates") or [])),
    }
    return {key: printable(str(value)) for key, value in found.items() if value is not None and value != ""}


def segment_rows(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each segment of a run with several segments, from run.json. Empty for other runs."""
    try:
        segments = segments_of(settings)
        return [_segment(one) for one in segments] if len(segments) > 1 else []
    except DAMAGED:
        return []


def _segment(segment: Segment) -> dict[str, str]:
    kept = segment.get(STATE_KEPT)
    found = {
        "stage": str(segment.get(STAGE, "")),
        "from version": f"{segment[FIRST_VERSION]:,}",
        "strategy": readable(str(segment["strategy"])),
        "optimizer": readable(str(segment.get("optimizer", ""))),
        "schedule": readable(str(segment.get("lr_schedule", ""))),
        "batch": str(segment.get("batch_size", "")),
        "optimizer state": "" if kept is None else "kept" if kept else "new",
    }
    return {key: printable(value) for key, value in found.items()}


def segments_text(settings: dict[str, Any]) -> list[str]:
    """Return a line for each segment of a run with several segments. Empty for other runs."""
    named = {"stage", "from version", "batch", "optimizer state"}
    return [
        "; ".join(f"{key} {value}" if key in named else value for key, value in row.items() if value)
        for row in segment_rows(settings)
    ]


def segments_table(settings: dict[str, Any]) -> str:
    """Return the table of the segments of a run. Empty for a run with one segment."""
    rows = segment_rows(settings)
    if not rows:
        return ""
    keys = [key for key in rows[0] if any(row[key] for row in rows)]
    head = "".join(f"<th>{escape(key)}</th>" for key in keys)
    body = [f"<tr>{''.join(f'<td>{_breakable(row[key])}</td>' for key in keys)}</tr>" for row in rows]
    return f'<div class="segments"><table><tr class="head">{head}</tr>{"".join(body)}</table></div>'


def _workload(settings: dict[str, Any]) -> str:
    count = settings.get("samples")
    return f"{settings['job']}, {count:,} training samples" if isinstance(count, int) else settings["job"]


def _parameters(shapes: Any) -> str:
    """Return the number of parameters and of tensors. Empty if the shapes are unknown."""
    try:
        count = sum(prod(shape) for shape in shapes.values())
        return f"{count:,} in {len(shapes):,} tensors"
    except (AttributeError, TypeError, ValueError):
        return ""


def _workers(engine: dict[str, Any]) -> str:
    count, kind = engine.get("workers"), engine.get("kind")
    return f"{count} (engine: {kind})" if count and kind else ""


def _metrics(runs: Sequence[RunReport]) -> dict[str, Row]:
    """Return a row for each metric of any run, with the loss last."""
    found = [name for run in runs for name in run.tally.quality.metrics]
    names = sorted(dict.fromkeys(found), key=lambda name: name == "loss")
    return {name: _metric(name) for name in names}


def _metric(name: str) -> Row:
    def number(run: RunReport) -> float | None:
        return run.tally.quality.metrics.get(name)

    def tell(run: RunReport) -> str:
        value = number(run)
        return "" if value is None else f"{value:.4f}"

    return Row(tell, number)


def _row(what: str, row: Row, runs: Sequence[RunReport], names: Sequence[str]) -> str:
    first = row.number(runs[0]) if row.number else None
    cells = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        is_like_first = not row.is_of_clock or run.virtual == runs[0].virtual
        value = row.number(run) if row.number and is_like_first else None
        ratio = value / first if first and value is not None else None
        cells.append(_cells(row.tell(run), ratio, name if len(runs) > 1 else "", number))
    return f"<tr><th>{escape(what)}</th>{''.join(cells)}</tr>"


def _cells(text: str, ratio: float | None, name: str, number: int, bad: bool = False) -> str:
    """Return the table cell of a run and, for later runs, the cell with the ratio to the first run."""
    cell = f"<td{_of(name) * bool(name)}{BAD * bad}>{_breakable(text)}</td>"
    if not number:
        return cell
    return f'{cell}<td class="ratio number">{"" if ratio is None else f"{ratio:.3g}x"}</td>'


def _of(name: str) -> str:
    return f' data-run="{escape(name)}"'


def _table(head: str, body: Sequence[str], runs: int) -> str:
    kind = ("runs many" if runs > MAX_COLUMNS else "runs") if runs > 1 else "one"
    first = f'<tr class="head"><th></th>{head}</tr>' if head else ""
    return f'<div class="{kind}"><table>{first}{"".join(body)}</table></div>'


def _breakable(text: str) -> str:
    """Return the text as HTML with allowed line breaks after brackets and `=`, as in `AdaptiveK(k=1)`."""
    return re.sub(r"(\w[(=])(?=\w)", r"\1<wbr>", escape(text))
