"""An engine whose hub takes time for every update, with one or more parameter servers.

A server reads the model when it starts with an update, and writes it when it ends. The model is one record. A store
with transactions therefore lets one server at a time read and write it: more servers are not faster. In a store that
overwrites, servers work at the same time, and lose what others have written meanwhile.
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
    """Wraps an engine. Updates wait for a server before the hub receives them."""

    def __init__(self, engine: Engine, hub: Hub, store: ModelStore) -> None:
        super().__init__(engine)
        self.hub, self.store = hub, store
        self.events: EventQueue[Message] = EventQueue(engine.now)
        self.free_at = [engine.now] * (hub.servers if hub.overwrites else 1)
        """When each server, or the one record of a store with transactions, is free."""
        self.in_service: dict[NodeId, list[float]] = {}
        """When the servers will have processed each worker's updates."""
        self.lost: set[NodeId] = set()
        """Lost workers whose last updates are still being processed, so that the hub does not know yet."""
        self.read: list[int] = []
        """Versions that are held for the update that the host was given."""

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come of itself."""
        return self.engine.is_spent and not self.events.heap

    def next(self, until: float) -> Message | None:
        """Return the next message that needs no server, or that a server has processed."""
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
        """Queue an update for a server. An update of a worker that was already lost is late."""
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
        """Hold the version that a server reads, until it writes."""
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
