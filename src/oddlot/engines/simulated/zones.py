"""Capacity and prices of zones over virtual time, and the state of their machines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from oddlot.core.events import Priced
from oddlot.core.records import HUB
from oddlot.core.support.event_queue import EventQueue
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Envelope
from oddlot.machines.capacity import Alive, Move, Moves
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.machines.market import Zone


@dataclass(slots=True, eq=False)
class MachineState:
    """A machine, its prices and its current worker. A machine has one worker at a time."""

    machine: Machine
    delay: Times
    link_delay: Times
    lifetime: Times | None
    price: float
    """Current price, in dollars per hour."""
    has_capacity: bool = True
    """Whether its zone has capacity for it."""
    is_barred: bool = False
    """Whether fault injection makes it unavailable."""
    is_wanted: bool = True
    """Whether the buying policy orders it."""
    node: NodeId = ""
    """Its running or starting worker. Empty: none."""
    is_ready: bool = False
    workers: int = 0
    """Number of its workers so far."""
    is_owed: bool = False
    """Whether the machine must be ordered when it is no longer barred."""

    @classmethod
    def of(cls, machine: Machine, seed: int) -> "MachineState":
        """Return the state of a machine before its first order."""
        # One stream for each machine: more or fewer machines do not change the random times of the others.
        rng = stream(seed, f"machine {machine.name}")
        delay, link_delay = machine.delay.start(rng), machine.link.delay.start(rng)
        lifetime = machine.lifetime.start(rng) if machine.lifetime else None
        return cls(machine, delay, link_delay, lifetime, machine.dollars_per_hour)


Change = Callable[[MachineState], Envelope | None]
"""Changes the state of a machine. Returns the message about it, if any."""


class Zones:
    """Orders and reclaims machines of zones by their capacity, at changing prices."""

    def __init__(
        self,
        events: EventQueue[Envelope],
        order: Change,
        reclaim: Change,
        seed: int,
        changing: Callable[[], None] = lambda: None,
    ) -> None:
        self.events, self.order, self.reclaim, self.seed = events, order, reclaim, seed
        self.changing = changing
        """Called before the capacity changes."""
        self.pending_prices = 0
        """Number of entries in the queue that only change a price."""
        self.ended_traces: list[str] = []
        """Names of zones with an ended trace."""

    def open(self, zone: Zone, states: Sequence[MachineState]) -> None:
        """Order the machines of a zone by its current capacity, and schedule changes of capacity and price."""
        now = self.events.now
        for state in states:
            state.has_capacity, state.price = False, zone.prices.at(now)
        moves = self._moves(zone)
        # A resumed run starts with the capacity at its start time: earlier changes have no events.
        move = next(moves, None)
        while move is not None and move[0] < now:
            states[move[1]].has_capacity = move[2]
            move = next(moves, None)
        for state in states:
            self.events.at(now, partial(self.order, state))
        self._await_move(states, moves, move)
        self._await_price(zone, states, zone.prices.changes(now))

    def _moves(self, zone: Zone) -> Moves:
        """Yield the zone's changes of capacity, and record the end of a trace."""
        yield from zone.capacity.moves(zone.count, stream(self.seed, f"zone {zone.name}"))
        if isinstance(zone.capacity, Alive):
            self.ended_traces.append(zone.name)

    def _await_move(self, states: Sequence[MachineState], moves: Moves, move: Move | None) -> None:
        if move is not None:
            when, machine, comes = move
            self.events.at(when, partial(self._move, states, moves, states[machine], comes))

    def _move(
        self, states: Sequence[MachineState], moves: Moves, state: MachineState, comes: bool
    ) -> Envelope | None:
        self._await_move(states, moves, next(moves, None))
        self.changing()
        state.has_capacity = comes
        return self.order(state) if comes else self.reclaim(state)

    def _await_price(
        self, zone: Zone, states: Sequence[MachineState], prices: Iterator[tuple[float, float]]
    ) -> None:
        if (change := next(prices, None)) is not None:
            self.pending_prices += 1
            self.events.at(change[0], partial(self._reprice, zone, states, prices, change[1]))

    def _reprice(
        self,
        zone: Zone,
        states: Sequence[MachineState],
        prices: Iterator[tuple[float, float]],
        price: float,
    ) -> Envelope | None:
        # Price changes may be endless, but they must not prolong a run that waits for machines that never come.
        self.pending_prices -= 1
        if len(self.events.heap) > self.pending_prices or any(state.has_capacity for state in states):
            self._await_price(zone, states, prices)
        if states[0].price == price:
            return None
        for state in states:
            state.price = price
        return Envelope(HUB, Priced(zone.name, price))
