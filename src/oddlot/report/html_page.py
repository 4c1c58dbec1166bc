"""The report page: one HTML file about one or several runs, without scripts or external resources."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from oddlot.core.errors import UsageError
from oddlot.formatting import (
    availability,
    cost,
    duration,
    money,
    overwritten,
    rejected,
    samples,
    traffic,
    went,
)
from oddlot.history.counts import WASTES
from oddlot.report.comparison_plots import OverTime, colors
from oddlot.report.mesh_charts import mesh_charts
from oddlot.report.readable import readable
from oddlot.report.run_report import Figures
from oddlot.report.svg_charts import Bar, bars, lanes
from oddlot.report.timeline import Course, Lane

MARK = '<meta name="generator" content="oddlot">'
"""Marks a page of oddlot, which may be overwritten."""
LONGEST_HEAD = 1_000
MAX_FAULTS = 100
MAX_BARS = 24
MAX_COLUMNS = 3
"""Columns up to which the table of several runs is as wide as the text."""
BAD = ' class="bad"'
MIN_DOLLARS = 1e-9
"""Smaller differences are rounding errors."""
LINKS = {"up": "up", "down": "down", "data": "samples"}
"""Kinds of traffic: the suffix of `bytes_...`, and its name in a legend."""
LOST_WORK = "lost at a resume"
STATES = {
    "starting": "#a78bfa",
    "working": "#2563eb",
    "wasted": "#ea580c",
    "waiting": "#cbd5e1",
    "leaving": "#eab308",
    "left": "#a8a29e",
    "lost": "#fca5a5",
}
FIGURES: dict[str, Callable[[Figures], str]] = {
    "strategy": lambda run: readable(run.settings["strategy"]),
    "ended": lambda run: run.summary["ended"],
    "metrics": lambda run: (
        ", ".join(f"{name} {value:.4f}" for name, value in run.tally.quality.metrics.items()) or "-"
    ),
    "time": lambda run: (
        duration(run.tally.seconds)
        + (" simulated" if run.virtual else "")
        + availability(run.summary, run.virtual)
    ),
    "cost": lambda run: cost(run.tally.summary()) if run.has_prices else "",
    "epochs": lambda run: f"{run.tally.epochs:.1f}",
    "versions": lambda run: f"{run.tally.versions:,}",
    "samples": lambda run: samples(run.tally.summary()),
    "traffic": lambda run: traffic(run.tally.summary()),
    "rejected": lambda run: rejected(run.summary),
    "store": lambda run: overwritten(run.summary),
    "faults": lambda run: run.struck,
    "workers": lambda run: went(
        *(run.summary[figure] for figure in ("workers_lost", "workers_left", "starts_lost"))
    ),
}
"""Rows of the summary table."""
STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --dim: #6b7280; --grid: #e5e7eb; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e7eb; --dim: #9ca3af; --grid: #374151; --paper: #111827; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } .verdict { font-size: 1.1em; }
h2 { font-size: 1.15em; margin-top: 2.2em; border-bottom: 1px solid var(--grid); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
td, th { padding: .25em .8em .25em 0; vertical-align: top; border-bottom: 1px solid var(--grid); }
td { overflow-wrap: anywhere; } th:first-child { white-space: nowrap; } td.number { overflow-wrap: normal; }
.wide { overflow-x: auto; } .wide td { min-width: 9.5em; }
.many { width: max-content; min-width: 100%; max-width: calc(100vw - 3em); position: relative; left: 50%;
  transform: translateX(-50%); } .many td { max-width: 18em; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1.6em 0; min-width: 0; } figcaption { font-weight: 600; }
.chart { overflow-x: auto; } svg { display: block; width: 100%; height: auto; }
.pairs { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1em; } .pairs figure { margin: .8em 0; }
.empty { color: var(--dim); font-size: 13px; } .bad { color: #dc2626; font-weight: 600; }
.legend { font-size: 13px; color: var(--dim); } .training { --is: var(--dim); }
.legend span { margin-right: 1.2em; display: inline-block; }
.swatch { display: inline-block; width: 1em; height: .6em; margin-right: .4em; background: var(--is); }
.swatch.line, .swatch.dashed { background: none; height: 0; border-top: 2px solid var(--is); vertical-align: middle; }
.swatch.dashed { border-top-style: dashed; }
.shared { position: sticky; top: 0; z-index: 1; background: var(--paper); padding: .5em 0; }
.grid { stroke: var(--grid); fill: none; } .tick { font-size: 11px; fill: var(--dim); }
.name { font-size: 12px; fill: var(--dim); } .mark { fill: var(--is); }
.mark.line { fill: none; stroke: var(--is); stroke-width: 1.8; stroke-linejoin: round; }
.mark.point { stroke-width: 6; stroke-linecap: round; }
.mark.dashed { stroke-dasharray: 5 4; }
.moment { --is: #db2777; } .mark.moment { fill: none; stroke: var(--is); stroke-dasharray: 2 3; }
@media (max-width: 700px) {
  .pairs { grid-template-columns: 1fr; } .pairs .tick, .pairs .name { font-size: 13px; } svg.wide { width: 740px; }
  .shared { position: static; } td, th { padding-right: .5em; } .wide td { min-width: 8em; }
  .chart, div.wide { background:
    linear-gradient(to left, var(--paper) 1em, transparent) right / 3em 100% no-repeat local,
    linear-gradient(to left, var(--dim), transparent) right / .5em 100% no-repeat; }
}
.fault { --is: #111827; } @media (prefers-color-scheme: dark) { .fault { --is: #f9fafb; } }
"""


def page(runs: Sequence[Figures]) -> str:
    """Return the page. Several runs share their charts over time."""
    courses = [Course.of(run.records, run.tally.size, run.tally.seconds) for run in runs]
    names, longest = _names(runs), max(course.seconds for course in courses)
    title = f"{names[0]} in {runs[0].folder}" if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>{escape(title)}</h1>", _verdict(runs, names), _summary(runs, names)]
    # The legend stays visible while the section is.
    body += ["<section>", *OverTime(runs, courses, names).plots(), "</section>"]
    for run, course, name in zip(runs, courses, names, strict=True):
        several = f"<h2>{escape(name)}</h2>{_sentence(run.verdict, not run.proof.is_exactly_once)}"
        body += [several if len(runs) > 1 else "<h2>Machines</h2>", *_machines(run, course, longest)]
        body += mesh_charts(run.records, longest)
    classes = [f".c{number} {{ --is: {color}; }}" for number, color in enumerate(colors(len(runs)))]
    classes += [f".{state} {{ --is: {color}; }}" for state, color in STATES.items()]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"{MARK}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{' '.join(classes)}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def write_page(runs: Sequence[Figures], path: Path) -> None:
    """Write the page. Raise UsageError as `check_place` does."""
    check_place(path)
    try:
        path.write_text(page(runs), encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def check_place(path: Path) -> None:
    """Raise UsageError if no page can be written there, or if another file would be overwritten."""
    try:
        if not path.parent.is_dir():
            told = f"cannot write {path}: the folder {path.parent} does not exist"
            raise UsageError(told, "missing_folder", path=str(path), folder=str(path.parent))
        if path.is_dir():
            told = f"cannot write {path}: it is a folder. Name a file"
            raise UsageError(told, "not_a_file", path=str(path))
        if path.is_file() and path.stat().st_size and not _is_page(path):
            told = f"{path} exists and is not a page of oddlot. Name another file"
            raise UsageError(told, "not_a_page", path=str(path))
    except OSError as error:
        raise _unwritable(path, error) from None
    if path.suffix.lower() not in {".html", ".htm"}:
        told = f"{path} does not end in .html: a report page is HTML. Open it in a browser to print or convert it"
        raise UsageError(told, "not_html", path=str(path))


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = error.strerror
    return UsageError(f"cannot write {path}: {reason}", "unwritable_file", path=str(path), reason=reason)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(LONGEST_HEAD)


def _names(runs: Sequence[Figures]) -> list[str]:
    """Return distinct names of the runs."""
    titles = [run.title for run in runs]
    return [
        f"{title} ({run.folder})" if titles.count(title) > 1 else title
        for title, run in zip(titles, runs, strict=True)
    ]


def _summary(runs: Sequence[Figures], names: Sequence[str]) -> str:
    """Return the summary table, with a column per run. Several runs have a row with the result of their audits."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names) if len(runs) > 1 else ""
    body = [
        f"<tr><th>{what}</th>{''.join(f'<td>{_breakable(tell(run))}</td>' for run in runs)}</tr>"
        for what, tell in FIGURES.items()
        if any(map(tell, runs))
    ]
    if len(runs) > 1:
        body.append(f"<tr><th>audit</th>{''.join(map(_audit, runs))}</tr>")
    kind = "wide many" if len(runs) > MAX_COLUMNS else "wide"
    return (
        f"<div class='{kind}'><table>{f'<tr><th></th>{head}</tr>' * bool(head)}{''.join(body)}</table></div>"
    )


def _breakable(text: str) -> str:
    """Return the text as HTML that may break after brackets and `=`, as in `AdaptiveK(k=1)`."""
    return re.sub(r"(\w[(=])(?=\w)", r"\1<wbr>", escape(text))


def _verdict(runs: Sequence[Figures], names: Sequence[str]) -> str:
    """Return the verdict on a run or, on several, whether all passed the audit."""
    if len(runs) == 1:
        return _sentence(runs[0].verdict, not runs[0].proof.is_exactly_once)
    if failed := [name for run, name in zip(runs, names, strict=True) if not run.proof.is_exactly_once]:
        told = (
            f"{len(failed):,} of {len(runs):,} runs did not merge samples exactly once: {', '.join(failed)}."
        )
        return _sentence(told, bad=True)
    return _sentence(
        f"In all {len(runs):,} runs, every sample of each complete epoch was merged exactly once.", bad=False
    )


def _sentence(text: str, bad: bool) -> str:
    return f'<p class="verdict{" bad" * bad}">{escape(text)}</p>'


def _audit(run: Figures) -> str:
    """Return a table cell with the result of the audit."""
    return f"<td{BAD * (not run.proof.is_exactly_once)}>{escape(str(run.proof))}</td>"


def _machines(run: Figures, course: Course, longest: float) -> Iterator[str]:
    """Yield the charts of one run. All runs have the same time axis, up to `longest`."""
    machines = dict(sorted(course.lanes.items(), key=lambda item: _in_order(item[0])))
    spells = {name: lane.spells for name, lane in machines.items()}
    faults = {name: lane.faults for name, lane in machines.items()}
    resumes = [(at, "resumed") for at in course.resumed]
    yield lanes("What each machine did over time", spells, faults, longest, resumes, key="lanes")
    has_hub = not any(record.peer for record in run.records)
    if has_hub:  # a peer merges its own updates at once
        yield bars("Staleness of merged updates, in versions", list(_staleness(course)), key="staleness")
    rest = {"skipped": run.tally.samples.skipped, "returned": run.tally.samples.returned}
    reasons = {"merged": run.tally.samples.merged, **run.tally.samples.wasted, **rest}
    told = [
        Bar(why, {"": count}, f"{count:,} {WASTES.get(why, '')}".rstrip()) for why, count in reasons.items()
    ]
    wasted = run.tally.samples.wasted.total()
    yield bars("Why samples were wasted" if wasted else "Samples merged", told, key="waste")
    if has_hub:
        yield bars("Bytes sent per machine", list(_links(run, machines)), key="bytes")
    bill = {name: lane.dollars for name, lane in machines.items()}
    bill |= {"hub": run.tally.cost.dollars_of_hub} if run.tally.cost.dollars_of_hub else {}
    lost = run.tally.dollars - sum(bill.values())
    bill |= {LOST_WORK: lost} if lost > MIN_DOLLARS else {}
    paid = [Bar(name, {"": dollars}, money(dollars)) for name, dollars in bill.items()]
    if run.has_prices:
        yield bars("Dollars per machine", paid, key="bill")
    yield _faults(run)


def _in_order(name: str) -> tuple[str, int, str]:
    """Sort key that puts east10 after east9 and before west1."""
    kind = name.rstrip("0123456789")
    number = name[len(kind) :]
    return kind, len(number), number


def _links(run: Figures, machines: Mapping[str, Lane]) -> Iterator[Bar]:
    """Yield the bytes of each machine, and the sum of the bytes of work that a resume lost."""
    rest = {name: getattr(run.tally.traffic, f"bytes_{name}") for name in LINKS}
    for machine, lane in machines.items():
        sent = {name: getattr(lane.traffic, f"bytes_{name}") for name in LINKS}
        rest = {name: count - sent[name] for name, count in rest.items()}
        yield _link(machine, sent)
    yield _link(LOST_WORK, rest)


def _link(machine: str, sent: Mapping[str, int]) -> Bar:
    told = traffic({f"bytes_{name}": count for name, count in sent.items()})
    return Bar(machine, {LINKS[name]: count for name, count in sent.items() if count or name != "data"}, told)


def _staleness(course: Course) -> Iterator[Bar]:
    """Yield a bar per staleness or, if there are many, per range."""
    most = max(course.staleness, default=0)
    width = most // MAX_BARS + 1
    for first in range(0, most + 1, width):
        count = sum(course.staleness[behind] for behind in range(first, first + width))
        name = f"{first}" if width == 1 else f"{first}-{first + width - 1}"
        yield Bar(name, {"": count}, f"{count:,} update{'s' * (count != 1)}")


def _faults(run: Figures) -> str:
    """Return a table of the injected faults; empty if there were none."""
    if not run.faults:
        return ""
    rows = [
        f'<tr><td class="number">{now:,.2f} s</td><td>{escape(fault.kind)}</td>'
        f"<td>{escape(fault.node or 'hub')}</td><td>{escape(fault.fault)}</td></tr>"
        for now, fault in run.faults
    ]
    more = f"<p>{len(rows) - MAX_FAULTS:,} more faults are not shown.</p>" if len(rows) > MAX_FAULTS else ""
    return f"<h2>Injected faults</h2><table>{''.join(rows[:MAX_FAULTS])}</table>{more}"
