"""The report page: an HTML file about one or several runs, without external resources."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import money, share, traffic
from oddlot.history.run_outcome import FAILED
from oddlot.history.sample_counts import WASTES
from oddlot.report.comparison_plots import OverTime, colors
from oddlot.report.live_log import KILLED
from oddlot.report.mesh_charts import mesh_charts
from oddlot.report.page_style import SCRIPT, STYLE, hash_of, state_colors
from oddlot.report.run_report import RunReport
from oddlot.report.run_tables import figures_table, headline, how_table, segments_table
from oddlot.report.svg_charts import Bar, bars, lanes
from oddlot.report.timeline import MachineTimeline, RunTimeline, machine_order

MARK = '<meta name="generator" content="oddlot">'
"""Marks a page of oddlot. Such a page may be overwritten."""
LONGEST_HEAD = 1_000
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hash_of(SCRIPT)}"
"""Permits only oddlot's own script."""
MAX_FAULTS = 100
MAX_BARS = 24
MIN_DOLLARS = 1e-9
"""Threshold below which differences are rounding errors."""
LINKS = {"up": "up", "down": "down", "data": "samples"}
"""Kinds of traffic: the suffix of `bytes_...`, and the name in a legend."""
LOST_WORK = "lost at a resume"


def page(runs: Sequence[RunReport]) -> str:
    """Return the page: verdict, metrics over time, machines and cost first, and folded details."""
    courses = [RunTimeline.of(run.records, run.tally.size, run.tally.seconds) for run in runs]
    names = _names(runs)
    title = f"{names[0]} in {runs[0].folder}" if len(runs) == 1 else f"{len(runs)} runs"
    charts = OverTime(runs, courses, names)
    body = [f"<h1>{escape(title)}</h1>", _verdict(runs, names)]
    body += [headline(runs[0]) if charts.alone else figures_table(runs, names)]
    # the legend stays visible within the section
    body += ["<section>", charts.legend, charts.quality(), "</section>"]
    ends = [run_timeline.seconds for run_timeline in courses]
    ends = ends if charts.unequal("seconds") else [max(ends)] * len(ends)
    for run, run_timeline, name, end in zip(runs, courses, names, ends, strict=True):
        several = f"<h2>{escape(name)}</h2>{_ended_badly(run)}{_sentence(run.verdict, not run.proof.is_exactly_once)}"
        body += ["<h2>Machines</h2>" if charts.alone else several, *_machines(run, run_timeline, end)]
    body += ["<h2>Summary</h2>", figures_table(runs, names)] if charts.alone else []
    body += ["<h2>How it was run</h2>", how_table(runs, names), *_segments(runs, names)]
    body += _details(charts, ends)
    return document(title, body, len(runs))


def _segments(runs: Sequence[RunReport], names: Sequence[str]) -> Iterator[str]:
    """Yield the table of segments of each run that has several."""
    for run, name in zip(runs, names, strict=True):
        if table := segments_table(run.settings):
            yield f"<h2>Segments{f' of {escape(name)}' * (len(runs) > 1)}</h2>{table}"


def _details(charts: OverTime, ends: Sequence[float]) -> Iterator[str]:
    """Yield the folded parts of the page. `ends` are the ends of the runs' time axes."""
    yield "<h2>Details</h2>"
    yield _folded("Other metrics and axes", charts.legend, charts.across())
    yield _folded("Progress over time", charts.legend, charts.progress())
    for run, run_timeline, name, end in zip(charts.runs, charts.courses, charts.names, ends, strict=True):
        of = "" if charts.alone else f" of {name}"
        yield _folded(f"Samples and traffic{of}", *_samples(run, run_timeline))
        yield _folded(f"Injected faults{of}", _faults(run))
        yield _folded(f"Violations{of}", _violations(run))
        yield _folded(f"Exchanges between peers{of}", *mesh_charts(run.records, end))


def document(title: str, body: Iterable[str], runs: int) -> str:
    """Return a page with this body, without external resources, and with colors for `runs` lines."""
    classes = [f".c{number} {{ --is: {color}; }}" for number, color in enumerate(colors(runs))]
    classes.append(state_colors())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'{MARK}<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{' '.join(classes)}</style></head>"
        f"<body>{''.join(body)}<script>{SCRIPT}</script></body></html>\n"
    )


def _folded(title: str, *parts: str) -> str:
    """Return a part of the page that opens on a click. Empty without content."""
    content = "".join(parts)
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if parts and parts[-1] else ""


def write_page(runs: Sequence[RunReport], path: Path) -> None:
    """Write the page. Raise the same UsageErrors as `check_place`."""
    check_place(path)
    write_text(path, page(runs))


def write_text(path: Path, text: str) -> None:
    """Write a file. Raise UsageError if that is impossible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def check_place(path: Path) -> None:
    """Raise UsageError if the page cannot be written to `path`, or would overwrite another file."""
    _check_place(path, "page")
    if path.suffix.lower() not in {".html", ".htm"}:
        message = f"{path} does not end in .html: a report page is HTML. Open it in a browser to print or convert it"
        raise UsageError(message, "not_html", path=str(path))


def check_plot_place(path: Path) -> None:
    """Raise UsageError if an SVG file with `MARK` cannot be written to `path`, or would overwrite another file."""
    _check_place(path, "plot")
    if path.suffix.lower() != ".svg":
        message = f"{path} does not end in .svg: a plot is SVG. Open it in a browser to print or convert it"
        raise UsageError(message, "not_svg", path=str(path))


def _check_place(path: Path, kind: str) -> None:
    try:
        if not path.parent.is_dir():
            message = f"cannot write {path}: the folder {path.parent} does not exist"
            raise UsageError(message, "missing_folder", path=str(path), folder=str(path.parent))
        if path.is_dir():
            message = f"cannot write {path}: it is a folder. Name a file"
            raise UsageError(message, "not_a_file", path=str(path))
        if path.is_file() and path.stat().st_size and not _is_page(path):
            message = f"{path} exists and is not a {kind} of oddlot. Name another file"
            raise UsageError(message, f"not_a_{kind}", path=str(path))
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UsageError:
    reason = error.strerror
    return UsageError(f"cannot write {path}: {reason}", "unwritable_file", path=str(path), reason=reason)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(LONGEST_HEAD)


def _names(runs: Sequence[RunReport]) -> list[str]:
    """Return distinct names of the runs."""
    titles = [run.title for run in runs]
    return [
        f"{title} ({run.folder})" if titles.count(title) > 1 else title
        for title, run in zip(titles, runs, strict=True)
    ]


def _verdict(runs: Sequence[RunReport], names: Sequence[str]) -> str:
    """Return the verdict on a run or, for several runs, whether all merged their samples exactly once."""
    if len(runs) == 1:
        return _ended_badly(runs[0]) + _sentence(runs[0].verdict, not runs[0].proof.is_exactly_once)
    if failed := [name for run, name in zip(runs, names, strict=True) if not run.proof.is_exactly_once]:
        message = (
            f"{len(failed):,} of {len(runs):,} runs did not merge samples exactly once: {', '.join(failed)}."
        )
        return _sentence(message, bad=True)
    return _sentence(
        f"In all {len(runs):,} runs, every sample of each complete epoch was merged exactly once.", bad=False
    )


def _ended_badly(run: RunReport) -> str:
    """Return the reason of a failed run, or that it was killed. Empty for other runs."""
    ended = str(run.summary["ended"])
    return f'<p class="bad">{escape(ended)}</p>' if ended.startswith((FAILED, KILLED)) else ""


def _sentence(text: str, bad: bool) -> str:
    return f'<p class="verdict{" bad" * bad}">{escape(text)}</p>'


def _machines(run: RunReport, run_timeline: RunTimeline, end: float) -> Iterator[str]:
    """Yield a run's timeline of machines until `end`, and the cost of each machine."""
    machines = _sorted(run_timeline)
    spells = {name: of_machine.spells for name, of_machine in machines.items()}
    faults = {name: of_machine.faults for name, of_machine in machines.items()}
    resumes = [(at, "resumed") for at in run_timeline.resumed]
    yield lanes("What each machine did over time", spells, faults, end, resumes, key="lanes")
    bill = {name: of_machine.dollars for name, of_machine in machines.items()}
    bill |= {"hub": run.tally.cost.dollars_of_hub} if run.tally.cost.dollars_of_hub else {}
    lost = run.tally.dollars - sum(bill.values())
    bill |= {LOST_WORK: lost} if lost > MIN_DOLLARS else {}
    paid = [Bar(name, {"": dollars}, money(dollars)) for name, dollars in bill.items()]
    if run.has_prices:
        yield bars("Dollars per machine", paid, key="bill")


def _samples(run: RunReport, run_timeline: RunTimeline) -> Iterator[str]:
    """Yield charts of the samples and of the traffic of a run."""
    has_hub = not any(record.peer for record in run.records)
    if has_hub:  # a peer merges its own updates immediately
        yield bars(
            "Staleness of merged updates, in versions", list(_staleness(run_timeline)), key="staleness"
        )
    if has_hub:
        yield bars("Bytes sent per machine", list(_links(run, _sorted(run_timeline))), key="bytes")
    left_out = {name: machine.summary["left_out"] for name, machine in run.tally.combined.machines.items()}
    if left_out:
        ordered = sorted(left_out, key=machine_order)
        shares = [Bar(name, {"": left_out[name]}, share(left_out[name])) for name in ordered]
        yield bars("Values left out by the rule of merges, per machine", shares, key="left-out")
    rest = {"skipped": run.tally.samples.skipped, "returned": run.tally.samples.returned}
    reasons = {"merged": run.tally.samples.merged, **run.tally.samples.wasted, **rest}
    rows = [
        Bar(why, {"": count}, f"{count:,} {WASTES.get(why, '')}".rstrip()) for why, count in reasons.items()
    ]
    wasted = run.tally.samples.wasted.total()
    yield bars("Why samples were wasted" if wasted else "Samples merged", rows, key="waste")


def _sorted(run_timeline: RunTimeline) -> dict[str, MachineTimeline]:
    """Return the lanes of the machines, sorted by name."""
    return dict(sorted(run_timeline.by_machine.items(), key=lambda item: machine_order(item[0])))


def _violations(run: RunReport) -> str:
    """Return a list of violations of the exactly-once check. Empty without violations."""
    items = "".join(f"<li>{escape(str(fault))}</li>" for fault in run.proof.faults)
    return f"<ul>{items}</ul>" if items else ""


def _links(run: RunReport, machines: Mapping[str, MachineTimeline]) -> Iterator[Bar]:
    """Yield the bytes of each machine, and the bytes of work lost at a resume."""
    rest = {name: getattr(run.tally.traffic, f"bytes_{name}") for name in LINKS}
    for machine, of_machine in machines.items():
        sent = {name: getattr(of_machine.traffic, f"bytes_{name}") for name in LINKS}
        rest = {name: count - sent[name] for name, count in rest.items()}
        yield _link(machine, sent)
    yield _link(LOST_WORK, rest)


def _link(machine: str, sent: Mapping[str, int]) -> Bar:
    message = traffic({f"bytes_{name}": count for name, count in sent.items()})
    return Bar(
        machine, {LINKS[name]: count for name, count in sent.items() if count or name != "data"}, message
    )


def _staleness(run_timeline: RunTimeline) -> Iterator[Bar]:
    """Yield a bar per staleness, or per range of staleness if there are many."""
    most = max(run_timeline.staleness, default=0)
    width = most // MAX_BARS + 1
    for first in range(0, most + 1, width):
        count = sum(run_timeline.staleness[behind] for behind in range(first, first + width))
        name = f"{first}" if width == 1 else f"{first}-{first + width - 1}"
        yield Bar(name, {"": count}, f"{count:,} update{'s' * (count != 1)}")


def _faults(run: RunReport) -> str:
    """Return a table of the injected faults. Empty without faults."""
    if not run.faults:
        return ""
    rows = [
        f'<tr><td class="number">{now:,.2f} s</td><td>{escape(fault.kind)}</td>'
        f"<td>{escape(fault.node or 'hub')}</td><td>{escape(fault.fault)}</td></tr>"
        for now, fault in run.faults
    ]
    more = f"<p>{len(rows) - MAX_FAULTS:,} more faults are not shown.</p>" if len(rows) > MAX_FAULTS else ""
    return f"<table>{''.join(rows[:MAX_FAULTS])}</table>{more}"
