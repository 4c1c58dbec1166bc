"""An engine with a processing time for each update, on one or more parameter servers of the hub.

A server reads the model when it starts an update, and writes it when the update is processed. The model is one record.
A store with transactions therefore lets only one server at a time read and write it, and more servers are not faster.
In a store that overwrites, servers work at the same time, and overwrite the changes of other servers.
"""

from dataclasses import replace
from functools import partial
from heapq import heapreplace

from oddlot.core.events import Gone, Lost
from oddlot.core.support.event_queue import EventQueue
from oddlot.core.tasks import NodeId
from oddlot.engines.base import Engine, Opened
from oddlot.engines.engine_wrapper import EngineWrapper
from oddlot.engines.host import Message, ModelStore, ReceivedUpdate
from oddlot.machines.market import Hub


def served(opened: Opened, store: ModelStore) -> Engine:
    """Return the opened engine, with update servers if its hub takes time for updates."""
    return UpdateServers(opened.engine, opened.hub, store) if opened.hub.seconds_per_update else opened.engine


class UpdateServers(EngineWrapper):
    """Wraps an engine. The hub receives updates after a server has processed them."""

    def __init__(self, engine: Engine, hub: Hub, store: ModelStore) -> None:
        super().__init__(engine)
        self.hub, self.store = hub, store
        self.events: EventQueue[Message] = EventQueue(engine.now)
        self.free_at = [engine.now] * (hub.servers if hub.overwrites else 1)
        """Time when each server, or the single record of a store with transactions, is free."""
        self.in_service: dict[NodeId, list[float]] = {}
        """Processing times of each worker's updates."""
        self.lost: set[NodeId] = set()
        """Lost workers with updates that are still being processed. The hub does not know of the loss yet."""
        self.read: list[int] = []
        """Versions that are held for the last returned update."""

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """Whether no message is pending, here or in the engine."""
        return self.engine.is_spent and not self.events.heap

    def next(self, until: float) -> Message | None:
        """Return the next message before `until` that needs no server or that a server has processed."""
        while self.read:
            self.store.release(self.read.pop())
        while True:
            if (message := self.events.next(self.now)) is not None:
                return message
            due = self.events.next_time
            message = self.engine.next(min(until, due))
            if message is None and due > until:
                return None
            if isinstance(message, ReceivedUpdate):
                self._take_in(message)
            elif isinstance(message, Lost) and (ends := self.in_service.get(message.node)):
                self.lost.add(message.node)
                self.events.at(ends[-1], partial(self._lose, message))
                return Gone(message.node)
            elif message is not None:
                return message

    def _take_in(self, arrival: ReceivedUpdate) -> None:
        """Queue an update for a server. Drop the update if its worker is already lost."""
        sender = arrival.facts.sender
        if sender in self.lost:
            if arrival.payload is not None:
                arrival.payload.release()
            return
        begin = max(self.now, self.free_at[0])
        end = begin + self.hub.seconds_per_update
        heapreplace(self.free_at, end)
        self.in_service.setdefault(sender, []).append(end)
        reads = list[int]()
        if self.hub.overwrites:
            self.events.at(begin, partial(self._begin, reads))
        self.events.at(end, partial(self._end, arrival, end, reads))

    def _lose(self, lost: Lost) -> Lost:
        self.lost.remove(lost.node)
        return lost

    def _begin(self, reads: list[int]) -> None:
        """Hold the version that a server reads until it writes."""
        reads.append(self.store.version)
        self.store.acquire(self.store.version)

    def _end(self, arrival: ReceivedUpdate, end: float, reads: list[int]) -> ReceivedUpdate:
        sender = arrival.facts.sender
        ends = self.in_service[sender]
        ends.remove(end)
        if not ends:
            del self.in_service[sender]
        self.read += reads
        return replace(arrival, facts=replace(arrival.facts, read=reads[0])) if reads else arrival
