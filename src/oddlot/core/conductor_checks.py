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
from oddlot.core.ledger import Ledger
from oddlot.core.serialization import MOST, Misfit
from oddlot.core.spans import Span
from oddlot.core.strategy import Strategy
from oddlot.core.worker_stats import Member

MAX_IN_FLIGHT = 100_000
MAX_HOLDS = 1_000_000
MAX_DOUBLINGS = 1_000
"""Exponent of the largest power of two of a float."""


def read_conductor(plain: Mapping[str, Any], strategy: type[Strategy]) -> Conductor:
    """Return the conductor that was saved, as `Conductor.from_plain` does, with its state checked.

    Raise one of `DAMAGED`, or UsageError, if the data are invalid.
    """
    conductor = Conductor.from_plain(plain, strategy)
    check_books(conductor)
    return conductor


def check_books(books: Conductor) -> None:
    """Raise Misfit if the state of a conductor is inconsistent."""
    _check_counts(books)
    _check_ledger(books.ledger)
    _check_workers(books)
    _check_tasks(books)
    for member in books.roster.members.values():
        _check_member(member)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Misfit(f"invalid: {what}")


def _check_counts(books: Conductor) -> None:
    _check(0 <= books.now < inf, f"now = {books.now}")
    _check(books.batch >= 1, f"batch = {books.batch}")
    _check(1 <= books.in_flight <= MAX_IN_FLIGHT, f"in_flight = {books.in_flight}")
    _check(books.version >= 0 <= books.tasks_made, f"version {books.version} after {books.tasks_made} tasks")
    _check(all(map(isfinite, books.alarms)), "an alarm that is not finite")
    _check(
        not any(isnan(when) for when, _, _ in books.timeouts.deadlines.heap),
        "a deadline that is not a number",
    )
    for version, holds in books.kept.items():
        known = (
            version.isascii() and version.isdecimal() and len(version) < 20 and int(version) <= books.version
        )
        _check(known and 1 <= holds <= MAX_HOLDS, f"version {version[:20]}, kept {holds} times,")


def _check_ledger(ledger: Ledger) -> None:
    _check(ledger.size >= 1, f"size = {ledger.size}")
    _check(ledger.epochs is None or ledger.epochs >= 0, f"epochs = {ledger.epochs}")
    _check(ledger.epoch >= 0 <= ledger.skipped, f"epoch {ledger.epoch} with {ledger.skipped} skipped")
    _check(all(0 <= count <= ledger.size for count in ledger.merged), f"merged = {ledger.merged[:5]}")
    _check(all(count >= 0 for count in ledger.refusals.values()), "a negative number of refusals")
    spans = [span for lease in ledger.leases.values() for span in lease.spans]
    returned = [span for lane in ledger.lanes for span in lane.returned]
    # An epoch that has started is partly merged, or has a span that is leased or returned.
    last = ledger.epoch + len(ledger.merged) + len(spans) + len(returned) + 1
    epochs = range(ledger.epoch, last + 1)
    begin = end = ledger.lanes[0].first  # a peer of a mesh has only a part of the positions
    stop = begin + ledger.size
    _check_spans(spans, begin, stop, epochs)
    for number, lane in enumerate(ledger.lanes):
        is_under_way = lane.epoch + (lane.at == lane.last) in epochs or lane.first == lane.last
        inside = 0 <= lane.first == end <= lane.at <= lane.last <= stop and is_under_way
        _check(inside, f"shard {number}, from {lane.first} to {lane.last},")
        _check_spans(lane.returned, lane.first, lane.last, epochs)
        end = lane.last
    _check(end == stop, f"shards of {end - begin} of {ledger.size} samples")
    for task, lease in ledger.leases.items():
        _check(task in lease.tasks, f"a lease of {task} that is not its own")
    _check_accounts(ledger, epochs)


def _check_accounts(ledger: Ledger, epochs: range) -> None:
    """Check that every sample of every epoch is fresh, returned, leased or merged."""
    leases = {id(lease): lease for lease in ledger.leases.values()}.values()  # tasks may share one
    known = Counter(dict(zip(epochs, ledger.merged, strict=False)))
    for span in chain(*(lease.spans for lease in leases), *(lane.returned for lane in ledger.lanes)):
        known[span.epoch] += span.stop - span.start
    for epoch in epochs:
        for lane in ledger.lanes:
            whole = lane.last - lane.first if epoch > lane.epoch else 0
            known[epoch] += lane.last - lane.at if epoch == lane.epoch else whole
        _check(known[epoch] == ledger.size, f"{known[epoch]} of {ledger.size} samples of epoch {epoch}")


def _check_spans(spans: Iterable[Span], first: int, stop: int, epochs: range) -> None:
    for span in spans:
        inside = first <= span.start < span.stop <= stop and span.epoch in epochs
        _check(inside, f"samples {span.start} to {span.stop} of epoch {span.epoch}")


def _check_workers(books: Conductor) -> None:
    _check(books.busy.keys() == books.roster.members.keys(), "workers that are not on the roster")
    _check(books.slots.keys() <= books.busy.keys() >= books.stalled.keys(), "slots of an unknown worker")
    _check(all(0 <= free <= MAX_IN_FLIGHT for free in books.slots.values()), "the number of free slots")
    free = {node for node, slots in books.slots.items() if slots}
    _check(books.idle.keys() == free, "idle workers without a free slot")


def _check_tasks(books: Conductor) -> None:
    for name, task in books.open.items():
        _check(task.id == name and name in books.busy.get(task.node, ()), f"an open task {name}")
        begin = books.ledger.lanes[0].first
        _check_spans(task.spans, begin, begin + books.ledger.size, range(MOST))
    for name, facts in books.inbox.items():
        known = facts.id == name in books.ledger.leases and min(facts.based_on, facts.samples) >= 0
        _check(known, f"an update {name}")


def _check_member(member: Member) -> None:
    counts = member.results, member.samples, member.drops_in_a_row, member.merges_in_a_row
    _check(min(counts) >= 0, "a worker's count below 0")
    doublings = member.halvings, member.timeouts
    _check(0 <= min(doublings) <= max(doublings) <= MAX_DOUBLINGS, "a worker's halvings or timeouts")
    times = member.joined, member.pace, member.median, member.slow, *member.seconds_per_sample
    _check(all(0 <= seconds < inf for seconds in times), "a worker's time")
