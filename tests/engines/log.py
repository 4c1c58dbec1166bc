"""What a log has of some events. Workers import this module, so it knows neither pytest nor the tests."""

from collections.abc import Iterable
from typing import Any

from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.tasks import Facts, machine_of


def records_of(records: Iterable[Record], *kinds: type) -> list[Any]:
    """Those of events of these kinds."""
    return [record for record in records if isinstance(record.event, kinds)]


def events(records: Iterable[Record], *kinds: type) -> list[Any]:
    """The events of these kinds."""
    return [record.event for record in records_of(records, *kinds)]


def names(records: Iterable[Record], *kinds: type) -> list[str]:
    """What these events are called."""
    return [type(event).__name__ for event in events(records, *kinds)]


def times(records: Iterable[Record], *kinds: type) -> list[float]:
    """When they were."""
    return [record.now for record in records_of(records, *kinds)]


def updates(records: Iterable[Record], machine: str = "") -> list[Facts]:
    """What came in: of this machine, in whichever of its lives, or of all."""
    found = [event.update for event in events(records, Arrived)]
    return [update for update in found if machine in ("", machine_of(update.sender))]
