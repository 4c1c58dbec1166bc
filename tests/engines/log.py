"""Queries of a log by kind of event. Workers import this module, so it imports neither pytest nor tests."""

from collections.abc import Iterable
from typing import Any

from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.tasks import Facts, machine_of


def records_of(records: Iterable[Record], *kinds: type) -> list[Any]:
    """Return the records of events of these kinds."""
    return [record for record in records if isinstance(record.event, kinds)]


def events(records: Iterable[Record], *kinds: type) -> list[Any]:
    """Return the events of these kinds."""
    return [record.event for record in records_of(records, *kinds)]


def names(records: Iterable[Record], *kinds: type) -> list[str]:
    """Return the class names of events of these kinds."""
    return [type(event).__name__ for event in events(records, *kinds)]


def times(records: Iterable[Record], *kinds: type) -> list[float]:
    """Return the times of events of these kinds."""
    return [record.now for record in records_of(records, *kinds)]


def updates(records: Iterable[Record], machine: str = "") -> list[Facts]:
    """Return the updates that arrived: of all workers of a machine, or of all machines."""
    found = [event.update for event in events(records, Arrived)]
    return [update for update in found if machine in ("", machine_of(update.sender))]
