"""Checks of a conductor that was read from a file: ranges of numbers, and consistency of its parts.

Types are checked when a file is read. Other invalid values would cause an endless loop, exhaust the memory, or raise an
error far from their origin.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from math import inf, isfinite, isnan
from typing import Any

from oddlot.core.conductor import Conductor
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.strategy import Strategy
from oddlot.core.support.serialization import MOST, Misfit
from oddlot.core.worker_stats import WorkerHistory

MAX_IN_FLIGHT = 100_000
MAX_HOLDS = 1_000_000
MAX_DOUBLINGS = 1_000
"""Exponent of the largest power of two of a float."""


def read_conductor(plain: Mapping[str, Any], strategy: type[Strategy]) -> Conductor:
    """Return the conductor that was saved, as `Conductor.from_plain` does, with its state checked.

    Raise one of `DAMAGED`, or UsageError, if the data are invalid.
    """
    conductor = Conductor.from_plain(plain, strategy)
    check_state(conductor)
    return conductor


def check_state(conductor: Conductor) -> None:
    """Raise Misfit if the state of a conductor is inconsistent."""
    _check_counts(conductor)
    _check_ledger(conductor.ledger)
    _check_workers(conductor)
    _check_tasks(conductor)
    for member in conductor.worker_stats.members.values():
        _check_member(member)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Misfit(f"invalid: {what}")


def _check_counts(conductor: Conductor) -> None:
    _check(0 <= conductor.now < inf, f"now = {conductor.now}")
    _check(conductor.batch >= 1, f"batch = {conductor.batch}")
    _check(1 <= conductor.least_slots <= MAX_IN_FLIGHT, f"least_slots = {conductor.least_slots}")
    _check(1 <= conductor.in_flight <= MAX_IN_FLIGHT, f"in_flight = {conductor.in_flight}")
    _check(
        conductor.version >= 0 <= conductor.tasks_made,
        f"version {conductor.version} after {conductor.tasks_made} tasks",
    )
    _check(all(map(isfinite, conductor.alarms)), "an alarm that is not finite")
    _check(
        not any(isnan(when) for when, _, _ in conductor.timeouts.deadlines.heap),
        "a deadline that is not a number",
    )
    for version, holds in conductor.kept.items():
        known = (
            version.isascii()
            and version.isdecimal()
            and len(version) < 20
            and int(version) <= conductor.version
        )
        _check(known and 1 <= holds <= MAX_HOLDS, f"version {version[:20]}, kept {holds} times,")


def _check_ledger(ledger: SampleLedger) -> None:
    _check(ledger.size >= 1, f"size = {ledger.size}")
    _check(ledger.epochs is None or ledger.epochs >= 0, f"epochs = {ledger.epochs}")
    _check(ledger.epoch >= 0 <= ledger.skipped, f"epoch {ledger.epoch} with {ledger.skipped} skipped")
    _check(all(0 <= count <= ledger.size for count in ledger.merged), f"merged = {ledger.merged[:5]}")
    _check(all(count >= 0 for count in ledger.rejections.values()), "a negative number of refusals")
    spans = [span for lease in ledger.leases.values() for span in lease.spans]
    returned = [span for cursor in ledger.cursors for span in cursor.returned]
    # An epoch that has started is partly merged, or has a span that is leased or returned.
    last = ledger.epoch + len(ledger.merged) + len(spans) + len(returned) + 1
    epochs = range(ledger.epoch, last + 1)
    begin = end = ledger.cursors[0].first  # a peer of a mesh has only a part of the positions
    stop = begin + ledger.size
    _check_spans(spans, begin, stop, epochs)
    for number, cursor in enumerate(ledger.cursors):
        is_under_way = cursor.epoch + (cursor.at == cursor.last) in epochs or cursor.first == cursor.last
        inside = 0 <= cursor.first == end <= cursor.at <= cursor.last <= stop and is_under_way
        _check(inside, f"shard {number}, from {cursor.first} to {cursor.last},")
        _check_spans(cursor.returned, cursor.first, cursor.last, epochs)
        end = cursor.last
    _check(end == stop, f"shards of {end - begin} of {ledger.size} samples")
    for task, lease in ledger.leases.items():
        _check(task in lease.tasks, f"a lease of {task} that is not its own")
    _check_accounts(ledger, epochs)


def _check_accounts(ledger: SampleLedger, epochs: range) -> None:
    """Check that every sample of every epoch is fresh, returned, leased or merged."""
    leases = {id(lease): lease for lease in ledger.leases.values()}.values()  # tasks may share one
    known = Counter(dict(zip(epochs, ledger.merged, strict=False)))
    for span in chain(*(lease.spans for lease in leases), *(cursor.returned for cursor in ledger.cursors)):
        known[span.epoch] += span.stop - span.start
    for epoch in epochs:
        for cursor in ledger.cursors:
            whole = cursor.last - cursor.first if epoch > cursor.epoch else 0
            known[epoch] += cursor.last - cursor.at if epoch == cursor.epoch else whole
        _check(known[epoch] == ledger.size, f"{known[epoch]} of {ledger.size} samples of epoch {epoch}")


def _check_spans(spans: Iterable[Span], first: int, stop: int, epochs: range) -> None:
    for span in spans:
        inside = first <= span.start < span.stop <= stop and span.epoch in epochs
        _check(inside, f"samples {span.start} to {span.stop} of epoch {span.epoch}")


def _check_workers(conductor: Conductor) -> None:
    _check(
        conductor.busy.keys() == conductor.worker_stats.members.keys(), "workers that are not on the roster"
    )
    _check(
        conductor.slots.keys() <= conductor.busy.keys() >= conductor.stalled.keys(),
        "slots of an unknown worker",
    )
    _check(
        conductor.waiting.keys() <= conductor.busy.keys() - conductor.slots.keys(),
        "an unknown worker that waits",
    )
    _check(all(0 <= free <= MAX_IN_FLIGHT for free in conductor.slots.values()), "the number of free slots")
    free = {node for node, slots in conductor.slots.items() if slots}
    _check(conductor.idle.keys() == free, "idle workers without a free slot")


def _check_tasks(conductor: Conductor) -> None:
    for name, task in conductor.open.items():
        _check(task.id == name and name in conductor.busy.get(task.node, ()), f"an open task {name}")
        begin = conductor.ledger.cursors[0].first
        _check_spans(task.spans, begin, begin + conductor.ledger.size, range(MOST))
    for name, facts in conductor.inbox.items():
        known = facts.id == name in conductor.ledger.leases and min(facts.based_on, facts.samples) >= 0
        _check(known, f"an update {name}")


def _check_member(member: WorkerHistory) -> None:
    counts = member.results, member.samples, member.drops_in_a_row, member.merges_in_a_row
    _check(min(counts) >= 0, "a worker's count below 0")
    doublings = member.halvings, member.timeouts
    _check(0 <= min(doublings) <= max(doublings) <= MAX_DOUBLINGS, "a worker's halvings or timeouts")
    times = member.joined, member.pace, member.median, member.slow, *member.seconds_per_sample
    _check(all(0 <= seconds < inf for seconds in times), "a worker's time")
