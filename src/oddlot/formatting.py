"""Numbers as people read them."""

from collections.abc import Mapping
from typing import Any

LONG = 0.01
"""of a run's time, that it is told"""
SHORTEST = 0.05
"""seconds that are not told as none"""
MINUTES_FROM, HOURS_FROM = 600.0, 7200.0
"""seconds of an axis"""


def money(dollars: float) -> str:
    """`$12.34`, `$0.60`, `$0.0041`, `$0.000022`."""
    if dollars >= 0.095 or not dollars:
        return f"${dollars:,.2f}" if dollars else "$0"
    return f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.6f}"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds >= 3.6e9:
        return f"{seconds / 3600:.3g} h"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def moment(seconds: float) -> str:
    """When a line of progress is, with room before it so that lines stand below each other."""
    return f"{duration(seconds):>12}"


def clock(seconds: float) -> tuple[str, float]:
    """The unit for an axis of so much time, and its seconds."""
    if seconds < MINUTES_FROM:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < HOURS_FROM else ("hours", 3600.0)


def in_bytes(count: float) -> str:
    """Bytes with a unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def traffic(figures: Mapping[str, Any]) -> str:
    """How much has travelled of weights and, where data are in shards, of samples."""
    data = f", {in_bytes(figures['bytes_data'])} of samples" if figures.get("bytes_data") else ""
    return f"{in_bytes(figures['bytes_up'])} up, {in_bytes(figures['bytes_down'])} down{data}"


def samples(figures: Mapping[str, Any]) -> str:
    """What was assigned, and what became of it."""
    assigned, used = figures["samples_assigned"], figures["samples_merged"]
    wasted, why = figures["samples_wasted"], figures["wasted"]
    rest = {"skipped": figures["samples_skipped"], "handed back": figures["samples_returned"]}
    rest["under way"] = assigned - used - wasted - sum(rest.values())
    reasons = f": {_counted(why)}" if why else ""
    in_vain = f"{wasted:,} wasted ({100 * wasted / max(1, assigned):.1f} %{reasons})"
    return ", ".join(filter(None, (f"{assigned:,} assigned", f"{used:,} used", in_vain, _counted(rest))))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def share(part: float) -> str:
    """`57 %`, `99.8 %`, `0.42 %`."""
    return f"{100 * part:.3g} %"


def availability(figures: Mapping[str, Any], virtual: bool) -> str:
    """Share of the time with workers available, and their mean number; of real workers only if they were missing."""
    alone, part, mean = (
        figures.get(key) for key in ("seconds_without_workers", "availability", "workers_mean")
    )
    long = (alone or 0.0) > max(LONG * figures["seconds"], SHORTEST)
    went = any(figures.get(key) for key in ("workers_lost", "workers_left", "starts_lost"))
    if part is None or not (virtual or long or went):
        return ""
    return f", workers available {share(part)} of it ({mean:.3g} on average)"


def overwritten(figures: Mapping[str, Any]) -> str:
    """How many updates a store without transactions has lost; empty where none was."""
    lost = figures.get("overwritten")
    return f"{lost:,} of {figures['versions']:,} merges were written over by another server" if lost else ""


def cost(figures: Mapping[str, Any]) -> str:
    """What a run has cost, in all, in vain and for what; older summaries know the sum alone."""
    lost, per_point = figures.get("dollars_lost"), figures.get("dollars_per_point")
    in_vain = (
        f", {money(lost)} of it in vain, for machines lost at work or while they started" if lost else ""
    )
    for_what = f", {money(per_point)} a point of accuracy" if figures["dollars"] and per_point else ""
    return money(figures["dollars"]) + in_vain + for_what
