"""Who comes, who goes, and what it costs: the lives of simulated machines, one after the other."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from oddlot.core.errors import JobError
from oddlot.core.event_queue import EventQueue
from oddlot.core.events import Gone, Joined, Ordered, Priced
from oddlot.core.random_streams import stream
from oddlot.core.tasks import NodeId, life_name, machine_of
from oddlot.engines.host import Message
from oddlot.machines.capacity import Alive, Move, Moves
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.machines.market import Zone, all_machines

FRUITLESS_LIVES = 1_000
"""in a row, and ten more for each machine: then the run is given up; so many starts in vain likewise"""


class Work(Protocol):
    """What becomes of a life's work is the simulator's business."""

    def begin(self, node: NodeId, machine: Machine, delay: Times, ways: Times) -> None:
        """The machine is ready for tasks."""

    def notice(self, node: NodeId) -> Message | None:
        """It is to hand over what it has and go."""

    def lose(self, node: NodeId) -> Message | None:
        """It is gone."""


@dataclass(slots=True, eq=False)
class _Berth:
    """Where the lives of one machine follow each other."""

    machine: Machine
    delay: Times
    ways: Times
    """of its link"""
    lifetime: Times | None
    price: float
    """dollars an hour, now"""
    wanted: bool = True
    """the zone has room for it"""
    barred: bool = False
    """it is kept away"""
    node: NodeId = ""
    """its present life, or the one that is starting; empty while there is none"""
    ready: bool = False
    lives: int = 0
    owed: bool = False
    """another one would have been ordered, were it not barred"""


class Lives:
    """Has the machines of a fleet come and go as they say, on an events."""

    def __init__(
        self,
        events: EventQueue[Message],
        fleet: Sequence[Machine | Zone],
        work: Work,
        seed: int,
        taken: Collection[str],
    ) -> None:
        self.events, self.work, self.seed, self.taken = events, work, seed, taken
        self.berths: dict[str, _Berth] = {
            machine.name: self._berth(machine) for machine in all_machines(fleet)
        }
        self.restarts = set[NodeId]()
        """lives that end without their machine"""
        self.prices_to_come = 0
        """entries of the queue that bring nobody"""
        self.fruitless, self.most_fruitless = 0, FRUITLESS_LIVES + 10 * len(self.berths)
        self.starts_in_vain = 0
        """in a row, without anything that came in between"""
        self.lost_start = ("", 0.0)
        """the last one: who it was, and its seconds to start"""
        self.kept_away = 0
        """times in a row that a machine had room in its zone and was barred"""
        self.ended_traces: list[str] = []
        """zones whose trace brings no more machines"""
        for one in fleet:
            if isinstance(one, Zone):
                self._open(one)
            else:
                begin = partial(self._order, self.berths[one.name])
                events.at(max(events.now, one.joins_at_seconds), begin)

    def died(self, node: NodeId) -> None:
        """The life is over, whether or not the hub knows."""
        berth = self.berths[machine_of(node)]
        berth.node, berth.ready = "", False

    def restart(self, node: NodeId) -> None:
        """The life is about to end, and the machine is not: another one follows at once."""
        self.restarts.add(node)

    def noticed(self, node: NodeId) -> None:
        """The hub knows: another machine is ordered if one may come."""
        berth = self.berths[machine_of(node)]
        pause = 0.0 if node in self.restarts else berth.machine.seconds_to_return
        self.restarts.discard(node)
        if pause is not None:
            self.events.at(self.events.now + pause, partial(self._order, berth))
        elif berth.barred:
            berth.owed = True  # whoever has taken it away brings it back

    def bar(self, machine: str) -> Message | None:
        """Keep the machine away from its next life on, which may be the one that is starting."""
        berth = self.berths[machine]
        berth.barred = True
        if berth.ready or not berth.node:
            return None
        berth.owed = True
        return self._give_up_start(berth)

    def unbar(self, machine: str) -> Message | None:
        """Let the machine come again."""
        berth = self.berths[machine]
        berth.barred = False
        return self._order(berth) if berth.owed else None

    def work_came_in(self) -> None:
        """Whatever went wrong before was bad luck."""
        self.fruitless = self.starts_in_vain = self.kept_away = 0

    def count_fruitless(self, node: NodeId, lived: float, needs: float) -> None:
        """Lives that end at work before anybody has brought anything: where that goes on and on, it is not bad luck."""
        self.fruitless += 1
        if self.fruitless > self.most_fruitless:
            raise JobError(
                f"{self.fruitless:,} lives of machines in a row ended before any task was done; the last one, {node}, "
                f"lived for {lived:.3g} s, a task there computes for {needs:.3g} s: give the machines a longer "
                "lifetime or fewer seconds_per_sample, or the job a smaller batch",
                "lifetimes_too_short",
                lives=self.fruitless,
                node=node,
                lived=lived,
                needs=needs,
            )

    # --- machines ------------------------------------------------------------------------------

    def _berth(self, machine: Machine) -> _Berth:
        # One stream a machine: one machine more or less leaves the others' luck as it was.
        chance = stream(self.seed, f"machine {machine.name}")
        delay, ways = machine.delay.start(chance), machine.link.delay.start(chance)
        lifetime = machine.lifetime.start(chance) if machine.lifetime else None
        return _Berth(machine, delay, ways, lifetime, machine.dollars_per_hour)

    def _order(self, berth: _Berth) -> Message | None:
        """Another life begins `seconds_to_start` later."""
        berth.owed = berth.barred
        self.kept_away += berth.wanted and berth.barred
        self._check_luck(berth)
        if not berth.wanted or berth.barred or berth.node:
            return None
        berth.lives += 1
        while (name := life_name(berth.machine.name, berth.lives)) in self.taken:
            berth.lives += 1
        berth.node = name
        starting = berth.machine.seconds_to_start
        if not starting:
            return self._join(berth, name)
        self.events.at(self.events.now + starting, partial(self._join, berth, name))
        return Ordered(name, berth.price, berth.machine.zone)

    def _check_luck(self, berth: _Berth) -> None:
        """JobError: nobody gets to work, over and over again, so that the run would never end. Who comes for the first
        time may bring luck."""
        if berth.lives and self.starts_in_vain > self.most_fruitless:
            node, seconds = self.lost_start
            raise JobError(
                f"{self.starts_in_vain:,} machines in a row were taken away while they started, the last one was "
                f"{node}: give it fewer seconds_to_start than {seconds:g}, or a capacity that stays for longer",
                "lost_while_starting",
                starts=self.starts_in_vain,
                node=node,
                seconds_to_start=seconds,
            )
        if self.kept_away > self.most_fruitless:
            raise JobError(
                f"{self.kept_away:,} times in a row a machine's zone had room for it while the capacity of the chaos "
                "kept it away, and no work came in: let both have room for longer",
                "kept_away",
                times=self.kept_away,
            )

    def _join(self, berth: _Berth, name: NodeId) -> Message | None:
        """It is ready, unless it was given up while it started."""
        if berth.node != name:
            return None
        berth.ready, self.starts_in_vain, self.kept_away = True, 0, 0
        self.work.begin(name, berth.machine, berth.delay, berth.ways)
        if berth.lifetime is not None:
            self.events.at(self.events.now + berth.lifetime(), partial(self._preempt, name, berth.machine))
        return Joined(name, berth.price, berth.machine.zone)

    def _preempt(self, node: NodeId, machine: Machine) -> Message | None:
        """Take the machine back, with notice where it is given."""
        if not machine.notice_seconds:
            return self.work.lose(node)
        self.events.at(self.events.now + machine.notice_seconds, lambda: self.work.lose(node))
        return self.work.notice(node)

    # --- zones ---------------------------------------------------------------------------------

    def _open(self, zone: Zone) -> None:
        """Its machines come and go with its capacity, at prices that change."""
        berths = [self.berths[name] for name in zone.names]
        for berth in berths:
            berth.wanted, berth.price = False, zone.prices.at(self.events.now)
        moves = self._moves(zone)
        # A run that is resumed finds the zone as it is then: what was before that happens to nobody.
        move = next(moves, None)
        while move is not None and move[0] < self.events.now:
            berths[move[1]].wanted = move[2]
            move = next(moves, None)
        for berth in berths:
            self.events.at(self.events.now, partial(self._order, berth))
        self._await_move(berths, moves, move)
        self._await_price(zone, berths, zone.prices.changes(self.events.now))

    def _moves(self, zone: Zone) -> Moves:
        """Who comes and goes; the end of a trace is noted."""
        yield from zone.capacity.moves(zone.count, stream(self.seed, f"zone {zone.name}"))
        if isinstance(zone.capacity, Alive):
            self.ended_traces.append(zone.name)

    def _await_move(self, berths: Sequence[_Berth], moves: Moves, move: Move | None) -> None:
        if move is not None:
            when, machine, comes = move
            self.events.at(when, partial(self._move, berths, moves, berths[machine], comes))

    def _move(self, berths: Sequence[_Berth], moves: Moves, berth: _Berth, comes: bool) -> Message | None:
        self._await_move(berths, moves, next(moves, None))
        berth.wanted = comes
        if comes:
            return self._order(berth)
        if berth.ready:
            return self._preempt(berth.node, berth.machine)
        return self._give_up_start(berth) if berth.node else None

    def _give_up_start(self, berth: _Berth) -> Message:
        """It is taken away before it is ready."""
        starting, berth.node = berth.node, ""
        self.starts_in_vain += 1
        self.lost_start = starting, berth.machine.seconds_to_start
        return Gone(starting)

    def _await_price(
        self, zone: Zone, berths: Sequence[_Berth], prices: Iterator[tuple[float, float]]
    ) -> None:
        if (change := next(prices, None)) is not None:
            self.prices_to_come += 1
            self.events.at(change[0], partial(self._reprice, zone, berths, prices, change[1]))

    def _reprice(
        self, zone: Zone, berths: Sequence[_Berth], prices: Iterator[tuple[float, float]], price: float
    ) -> Message | None:
        # Prices may change for ever; a run that waits for machines which never come is to end.
        self.prices_to_come -= 1
        if len(self.events.heap) > self.prices_to_come or any(berth.wanted for berth in berths):
            self._await_price(zone, berths, prices)
        if berths[0].price == price:
            return None
        for berth in berths:
            berth.price = price
        return Priced(zone.name, price)
