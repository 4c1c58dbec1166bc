"""An engine to which misfortune happens on purpose, whichever engine it is: what `Chaos` says, at its times."""

import os
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import floor, inf
from random import Random
from typing import Any

from oddlot.core.events import Cancelled, Joined, Leaving, Lost, Refused, Struck
from oddlot.core.random_streams import stream
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.base import Engine, FaultInjection
from oddlot.engines.engine_wrapper import Around
from oddlot.engines.host import Arrival, Message
from oddlot.faults.plan import ANSWERED, LASTING, Chaos, Fault

GOES_ON = " (goes on)"
"""behind a fault's name, when it strikes again only because the hub was lost"""
AT_ONCE: dict[str, Any] = {"at_seconds": (0.0,), "at_versions": (), "every_seconds": None, "per_hour": None}


@dataclass(frozen=True, eq=False)
class _Doom:
    """A fault with chance of its own: one fault more or less leaves the others' times as they were."""

    name: str
    fault: Fault
    times: Random
    victims: Random


class Disturbed(Around):
    """Mailbox and port of another engine, which is struck as `chaos` says.

    `version()` tells the model's version, `save()` brings the log to the disk before the hub is killed. `struck` is
    what has struck in earlier lives of the run, and when: its times and versions are over, and what lasts goes on
    upon the machines of those who were `left` when the hub was lost. Each `life` of the hub has chance of its own.
    """

    def __init__(
        self,
        engine: Engine,
        faults: FaultInjection,
        chaos: Chaos,
        version: Callable[[], int],
        save: Callable[[], None],
        struck: Sequence[tuple[float, Struck]] = (),
        left: Collection[NodeId] = (),
        life: int = 0,
    ) -> None:
        super().__init__(engine)
        self.faults = faults
        self.version, self.save = version, save
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.entries = 0
        self.to_come = 0
        """entries of the queue that may bring a message where nobody works: late answers, ends of faults"""
        self.by_version: list[tuple[int, int, _Doom]] = []
        self.here: dict[NodeId, bool] = {}
        """who is there, and whether it can be struck: one that was killed or leaves has had its share"""
        self.waiting: list[_Doom] = []
        """for somebody to strike; what happens again and again does not wait"""
        self.spoilt: list[tuple[_Doom, NodeId]] = []
        """faults that wait for an answer"""
        self.lasting: defaultdict[tuple[str, NodeId], list[tuple[float, float]]] = defaultdict(list)
        """until when faults of a kind last on somebody, and their factors"""
        self.told: deque[Message] = deque()
        done = Counter(event.fault for _, event in struck)
        for place, (name, fault) in enumerate(chaos.named()):
            times, victims = (
                stream(chaos.seed, f"{what} of {name}, life {life}") for what in ("times", "victims")
            )
            doom = _Doom(name, fault, times, victims)
            self._plan(place, doom, done[name])
            if fault.kind in LASTING:
                self._go_on(doom, struck, left)

    # --- the mailbox ---------------------------------------------------------------------------

    def next(self, until: float) -> Message | None:
        """The next message that gets through, or the word that something was done to somebody."""
        while self.by_version and -self.by_version[-1][0] <= self.version():
            self._strike(self.by_version.pop()[2])
        due = self.events[0][0] if self.events else inf
        if not self.told and due <= self.engine.now:
            heappop(self.events)[2]()  # and let the run look whether it is over
        elif not self.told:
            ended = until == inf and self.engine.is_spent and not self.to_come
            message = self.engine.next(inf if ended else min(until, due))
            if message is not None:
                self._pass(message)
        return self.told.popleft() if self.told else None

    # --- what comes of messages ----------------------------------------------------------------

    def _pass(self, message: Message) -> None:
        match message:
            case Joined(node):
                self.here[node] = True
                self._look_for_somebody()
            case Leaving(node):
                self.here[node] = False
            case Lost(node):
                self._lost(node)
            case Arrival() if struck := next((s for s in self.spoilt if s[1] == message.facts.sender), None):
                self.spoilt.remove(struck)
                self._spoil(struck[0], message)
                return
        self.told.append(message)

    def _lost(self, node: NodeId) -> None:
        """What was meant for its answer is meant for somebody else's."""
        self.here.pop(node, None)
        for doom, _ in [struck for struck in self.spoilt if struck[1] == node]:
            self.spoilt.remove((doom, node))
            if doom.fault.is_once:
                self.waiting.append(doom)
        self._look_for_somebody()

    def _look_for_somebody(self) -> None:
        """Once the message that is being passed has been told."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for doom in waiting:
                self._at(self.now, partial(self._strike, doom))

    def _spoil(self, doom: _Doom, arrival: Arrival) -> None:
        facts = arrival.facts
        self.told.append(Struck(doom.name, doom.fault.kind, facts.sender))
        match doom.fault:
            case Fault(kind="delay", delay_seconds=seconds):
                self._at(self.now + (seconds or 0.0), partial(self.told.append, arrival), brings=True)
            case Fault(kind="drop"):
                if arrival.payload is not None:
                    arrival.payload.release()
                self.told.append(Cancelled(facts.id, facts.sender))
            case _ if arrival.payload is None:
                self.told.append(Refused(facts.id, "it was corrupted on its way"))
            case _:
                arrival.payload.corrupt()
                self.told.append(arrival)

    # --- misfortune ----------------------------------------------------------------------------

    def _plan(self, place: int, doom: _Doom, done: int) -> None:
        """Put the fault on the agenda, without so many of its times as are over."""
        fault = doom.fault
        for time in sorted(fault.at_seconds)[done:]:
            self._at(time, partial(self._strike, doom))
        self.by_version += [(-version, -place, doom) for version in sorted(fault.at_versions)[done:]]
        self.by_version.sort(key=lambda entry: entry[:2])
        if not fault.is_once:
            self._again(doom)

    def _go_on(self, doom: _Doom, struck: Sequence[tuple[float, Struck]], left: Collection[NodeId]) -> None:
        """What lasts longer than the hub's last life goes on, in the next lives of the same machines."""
        fault, begun, sufferers = doom.fault, dict[str, float](), set[str]()
        for time, event in struck:
            machine = machine_of(event.node)
            if event.fault == doom.name:
                begun[machine] = time
            if event.fault.removesuffix(GOES_ON) == doom.name and event.node in left:
                sufferers.add(machine)
        for machine in sorted(sufferers):
            rest = None if fault.for_seconds is None else begun[machine] + fault.for_seconds - self.now
            if rest is None or rest > 0:
                again = replace(fault, machine=machine, for_seconds=rest, **AT_ONCE)
                doomed = replace(doom, name=f"{doom.name}{GOES_ON}", fault=again)
                self._at(self.now, partial(self._strike, doomed))

    def _again(self, doom: _Doom) -> None:
        """Plan the next time of what happens again and again."""
        fault, now = doom.fault, self.now
        if fault.every_seconds is None:
            time = now + doom.times.expovariate((fault.per_hour or 1.0) / 3600)
        else:  # of the run's clock, which goes on where it stopped
            time = fault.every_seconds * (floor(now / fault.every_seconds * (1 + 1e-12)) + 1)

        def strike() -> None:
            self._again(doom)
            self._strike(doom)

        self._at(time, strike)

    def _strike(self, doom: _Doom) -> None:
        """Do it to whoever it is for, or wait for somebody."""
        fault = doom.fault
        if fault.kind == "kill_hub":
            self.told.append(Struck(doom.name, fault.kind, ""))
            self._at(self.now, self._kill_hub)
            return
        spoilt = {node for other, node in self.spoilt if other is doom}
        # Sorted: in which order they have come is a race.
        nodes = sorted(n for n, can in self.here.items() if can and fault.is_for(n) and n not in spoilt)
        if not nodes:
            if fault.is_once:
                self.waiting.append(doom)
            return
        node = doom.victims.choice(nodes)
        if fault.kind in ANSWERED:
            self.spoilt.append((doom, node))  # and told with the answer
            return
        self.told.append(Struck(doom.name, fault.kind, node))
        self._do(fault, node)

    def _do(self, fault: Fault, node: NodeId) -> None:
        match fault.kind:
            case "kill":
                self.here[node] = False
                self.faults.kill(node)
            case "leave":
                self.here[node] = False
                self.faults.leave(node)
            case _:
                until = inf if fault.for_seconds is None else self.now + fault.for_seconds
                self._outdo(fault.kind, node, until, fault.factor or 0.0)
                self._suffer(fault.kind, node)
                if until < inf:
                    self._at(until, partial(self._suffer, fault.kind, node), brings=True)

    def _outdo(self, kind: str, node: NodeId, until: float, factor: float) -> None:
        """One more lasts; what is over sooner and no stronger is of no account any more."""
        others = (one for one in self.lasting[kind, node] if one[0] > until or one[1] > factor)
        self.lasting[kind, node] = [*others, (until, factor)]

    def _suffer(self, kind: str, node: NodeId) -> None:
        """Have it suffer the worst of what lasts now."""
        lasting = [one for one in self.lasting[kind, node] if one[0] > self.now]
        self.lasting[kind, node] = lasting
        if kind == "slow":
            self.faults.slow(node, max((factor for _, factor in lasting), default=0.0))
        elif lasting:
            self.faults.freeze(node)
        else:
            self.faults.thaw(node)

    def _kill_hub(self) -> None:
        self.save()
        os.kill(os.getpid(), signal.SIGKILL)

    def _at(self, time: float, happen: Callable[[], None], brings: bool = False) -> None:
        self.entries += 1
        self.to_come += brings

        def happens() -> None:
            self.to_come -= brings
            happen()

        heappush(self.events, (time, self.entries, happens))
