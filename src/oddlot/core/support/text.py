"""Text for messages and reports: escaping, masking, suggestions, field documentation and number formats."""

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except the tab and the line feed
    "\u2028\u2029"  # other line ends
    "\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # marks that change the text direction
)


def printable(text: object) -> str:
    """Return the text with control characters escaped, as Python escapes them in a string."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"]*):([^\s@\"]+)(?=@)")


def masked(text: str) -> str:
    """Return the text with every password in a URL replaced, as in `s3://user:***@host/run`."""
    return _PASSWORD.sub(r"\1:***", text)


def passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in a text."""
    return [found[2] for found in _PASSWORD.finditer(text)]


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to `word`, ignoring case, or None if no choice is similar."""
    folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def or_nearest(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a suggestion and the available names."""
    choices = sorted(choices)
    meant = nearest(word, choices)
    names = ", ".join(choices) or "none"
    return f"Did you mean {meant!r}? Available: {names}" if meant else f"Available: {names}"


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the documentation below each field of a class and of its base classes, as one line each."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is kind or is_dataclass(base):
            found |= _own_docs(base)
    return found


def _own_docs(kind: type) -> dict[str, str]:
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    found = {}
    for one, text in pairwise(ast.iter_child_nodes(body)):
        match one, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                found[name] = " ".join(doc.split())
    return found


LONG = 0.01
"""Share of time without workers above which availability is shown."""
SHORTEST = 0.05
"""Minimum seconds without workers to show availability."""
MAX_LEFT_OUT = 4
"""Largest number of machines in the text about left-out updates."""
WASTE_NAMES = {"resumed": "redone after a resume", "unfinished": "unfinished at the end"}
"""Reasons for waste with a different name in text than in the summary."""
MINUTES_FROM, HOURS_FROM = 600.0, 7200.0
"""Minimum lengths of a time axis in minutes or hours, in seconds."""


def money(dollars: float) -> str:
    """Format an amount of money: `$12.34`, `$0.60`, `$0.0041`, `$0.000022`."""
    if dollars >= 0.095 or not dollars:
        return f"${dollars:,.2f}" if dollars else "$0"
    return f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.6f}"


def counted(count: int, what: str) -> str:
    """Format a count with its noun: `1 version`, `1,200 versions`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Format a duration: `4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds >= 3.6e9:
        return f"{seconds / 3600:.3g} h"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def moment(seconds: float) -> str:
    """Format a time, right-aligned for a column of progress lines."""
    return f"{duration(seconds):>12}"


def clock(seconds: float) -> tuple[str, float]:
    """Return the unit for a time axis of this length, and the seconds of one unit."""
    if seconds < MINUTES_FROM:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < HOURS_FROM else ("hours", 3600.0)


def in_bytes(count: float) -> str:
    """Format a number of bytes: `1.92 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def traffic(figures: Mapping[str, Any]) -> str:
    """Return the traffic as text.

    With a hub, this is the bytes of weights up and down and, if the data are in shards, of samples. On a mesh, it is
    the bytes and the number of exchanges.
    """
    if (exchanges := figures.get("exchanges")) is not None:
        rejected = _counted(
            {f"from {peer}": count for peer, count in figures.get("models_rejected", {}).items()}
        )
        message = f"{in_bytes(figures['bytes_exchanged'])} in {exchanges:,} exchanges between peers"
        return f"{message}; rejected: {rejected}" if rejected else message
    data = f", {in_bytes(figures['bytes_data'])} of samples" if figures.get("bytes_data") else ""
    return f"{in_bytes(figures['bytes_up'])} up, {in_bytes(figures['bytes_down'])} down{data}"


def samples(figures: Mapping[str, Any]) -> str:
    """Return the numbers of assigned, merged and wasted samples as text, with the reasons for waste."""
    assigned, used = figures["samples_assigned"], figures["samples_merged"]
    wasted, why = figures["samples_wasted"], figures["wasted"]
    rest = {"skipped": figures["samples_skipped"], "returned": figures["samples_returned"]}
    rest["in progress"] = assigned - used - wasted - sum(rest.values())
    reasons = f": {waste(why)}" if why else ""
    not_used = f"{wasted:,} wasted ({100 * wasted / max(1, assigned):.1f} %{reasons})"
    return ", ".join(filter(None, (f"{assigned:,} assigned", f"{used:,} merged", not_used, _counted(rest))))


def waste(why: Mapping[str, int]) -> str:
    """Return the wasted samples by reason, such as `900 lost, 100 late`."""
    return _counted({WASTE_NAMES.get(reason, reason): count for reason, count in why.items()})


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def share(part: float) -> str:
    """Format a share as a percentage: `57 %`, `99.8 %`, `0.42 %`."""
    return f"{100 * part:.3g} %"


def availability(figures: Mapping[str, Any], virtual: bool) -> str:
    """Return the share of time with workers and their mean number as text.

    For real workers, return an empty string if workers were never missing.
    """
    alone, part, mean = (
        figures.get(key) for key in ("seconds_without_workers", "availability", "workers_mean")
    )
    long = (alone or 0.0) > max(LONG * figures["seconds"], SHORTEST)
    went = any(figures.get(key) for key in ("workers_lost", "workers_left", "starts_lost"))
    if part is None or not (virtual or long or went):
        return ""
    return f", workers available {share(part)} of the time ({mean:.3g} on average)"


def rejected(figures: Mapping[str, Any]) -> str:
    """Return the number of rejected updates by reason as text, or an empty string."""
    why = {"updates_invalid": "invalid", "updates_rejected": "too large", "updates_gated": "by a gate"}
    return ", ".join(f"{figures[name]:,} {reason}" for name, reason in why.items() if figures.get(name))


def combined(figures: Mapping[str, Any]) -> str:
    """Return the machines whose updates a robust rule left out most, or an empty string without such a rule."""
    found = figures.get("combined")
    if not found:
        return ""
    machines = sorted(found["machines"].items(), key=lambda item: item[1]["expected"] - item[1]["left_out"])
    parts = [_left_out(name, machine) for name, machine in machines[:MAX_LEFT_OUT]]
    more = f"; {len(machines) - MAX_LEFT_OUT:,} more machines" if len(machines) > MAX_LEFT_OUT else ""
    unchanged, samples = found["merges_without_change"], found["left_out_samples"]
    more += f"; {samples:,} samples merged without effect" if samples else ""
    more += f"; {unchanged:,} of {found['merges']:,} merges had too few updates" if unchanged else ""
    return f"left out {', '.join(parts)}{more}"


def _left_out(name: str, machine: Mapping[str, Any]) -> str:
    """Return the share of a machine's values that was left out, such as `98 % of w5 (40 % expected)`."""
    return f"{share(machine['left_out'])} of {name} ({share(machine['expected'])} expected)"


def overwritten(figures: Mapping[str, Any]) -> str:
    """Return the number of updates that a store without transactions lost as text, or an empty string."""
    lost = figures.get("overwritten")
    return f"{lost:,} of {figures['versions']:,} merges were overwritten by another server" if lost else ""


def best_weights(figures: Mapping[str, Any]) -> str:
    """Return the metrics and the version of the best weights as text, or an empty string if none were kept."""
    best = figures.get("best")
    if not best:
        return ""
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in best["metrics"].items())
    return f"{metrics} at version {best['version']:,}"


def went(lost: int, left: int, starts: int) -> str:
    """Return the numbers of workers that were lost or left as text, or an empty string."""
    counts = ((lost, "lost"), (left, "left with notice"), (starts, "lost while starting"))
    return ", ".join(f"{count:,} {how}" for count, how in counts if count)


def cost(figures: Mapping[str, Any]) -> str:
    """Return the cost of a run as text, with the part lost to preemptions and the cost per point of accuracy."""
    lost, per_point = figures.get("dollars_lost"), figures.get("dollars_per_point")
    to_preemptions = f", {money(lost)} lost to preemptions" if lost else ""
    for_what = f", {money(per_point)} per point of accuracy" if figures["dollars"] and per_point else ""
    return money(figures["dollars"]) + to_preemptions + for_what
