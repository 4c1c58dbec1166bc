"""An engine to which misfortune happens on purpose, whichever engine it is: what `Chaos` says, at its times."""

import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any

from oddlot.core import words as w
from oddlot.core.streams import stream
from oddlot.engines.host import Arrival, Message
from oddlot.engines.place import Engine
from oddlot.machines.chaos import ANSWERED, Chaos, Fault


class Disturbed:
    """Mailbox and port of another engine, which is struck as `chaos` says.

    `version()` tells the model's version, `save()` brings the log to the disk before the hub is killed. What has struck
    in an earlier life of the run (`struck`: places in `chaos.faults`) and was to strike once does not again.
    """

    def __init__(
        self,
        engine: Engine,
        chaos: Chaos,
        version: Callable[[], int],
        save: Callable[[], None],
        struck: Collection[int] = (),
    ) -> None:
        self.engine, self.chaos, self.version, self.save = engine, chaos, version, save
        self.chance = stream(chaos.seed, "chaos")
        self.agenda: list[tuple[float, int, Callable[[], Message | None]]] = []
        self.entries = 0
        self.by_version: list[tuple[float, int, Fault]] = []
        self.here: dict[w.NodeId, bool] = {}
        """who is there, and whether it can be struck: one that leaves has had its share"""
        self.waiting: list[tuple[int, Fault]] = []
        """for somebody to strike; what happens again and again does not wait"""
        self.spoilt: list[tuple[Fault, w.NodeId]] = []
        """faults that wait for an answer"""
        self.told: deque[Message] = deque()
        for place, fault in enumerate(chaos.faults):
            for time in fault.at_seconds:
                if time >= engine.now and place not in struck:
                    self._at(time, partial(self._strike, place, fault))
            self.by_version += [
                (version_, place, fault) for version_ in fault.at_versions if place not in struck
            ]
            if not (fault.at_seconds or fault.at_versions):
                self._again(place, fault)
        self.by_version.sort(key=lambda entry: entry[0], reverse=True)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The engine's."""
        return self.engine.now

    def next(self, until: float) -> Message | None:
        """The next message that gets through, or the word that something was done to somebody."""
        while self.by_version and self.by_version[-1][0] <= self.version():
            _, place, fault = self.by_version.pop()
            self._tell(self._strike(place, fault))
        while not self.told:
            due = self.agenda[0][0] if self.agenda else inf
            if due <= self.engine.now:
                self._tell(heappop(self.agenda)[2]())
                continue
            message = self.engine.next(min(until, due))
            if message is not None:
                self._tell(self._pass(message))
            elif due > self.engine.now:
                return None
        return self.told.popleft()

    # --- the port, and faults from elsewhere ---------------------------------------------------

    def start(self, task: w.Task, weights: Any) -> None:
        """The engine's."""
        self.engine.start(task, weights)

    def abort(self, task: w.TaskId, node: w.NodeId) -> None:
        """The engine's."""
        self.engine.abort(task, node)

    def evaluate(self, version: int, weights: Any) -> None:
        """The engine's."""
        self.engine.evaluate(version, weights)

    def loaded(self) -> Iterable[w.TaskId]:
        """The engine's."""
        return self.engine.loaded()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    # --- misfortune ----------------------------------------------------------------------------

    def _pass(self, message: Message) -> Message | None:
        """What comes of a message on its way."""
        match message:
            case w.Joined(node):
                self.here[node] = True
                if self.waiting:
                    self._at(self.now, self._retry)
            case w.Leaving(node):
                self.here[node] = False
            case w.Lost(node):
                self.here.pop(node, None)
            case Arrival():
                return self._spoil(message)
        return message

    def _spoil(self, arrival: Arrival) -> Message | None:
        facts = arrival.facts
        struck = next((each for each in self.spoilt if each[1] == facts.sender), None)
        if struck is None:
            return arrival
        self.spoilt.remove(struck)
        match struck[0]:
            case Fault(kind="delay", delay_seconds=seconds):
                self._at(self.now + (seconds or 0.0), lambda: arrival)
                return None
            case Fault(kind="drop"):
                if arrival.payload is not None:
                    arrival.payload.release()
                return w.Cancelled(facts.id, facts.sender)
        if arrival.payload is None:
            return w.Refused(facts.id, "it was corrupted on its way")
        arrival.payload.corrupt()
        return arrival

    def _strike(self, place: int, fault: Fault) -> Message | None:
        """Do it to whoever it is for, or wait for somebody."""
        if fault.kind == "kill_hub":
            self._at(self.now, self._kill_hub)
            return w.Struck(place, fault.kind, "")
        nodes = [
            node for node, can in self.here.items() if can and fault.machine in {"", node.partition(".")[0]}
        ]
        if not nodes:
            if fault.at_seconds or fault.at_versions:
                self.waiting.append((place, fault))
            return None
        node = self.chance.choice(nodes)
        if fault.kind in ANSWERED:
            self.spoilt.append((fault, node))
        else:
            self._do(fault, node)
        return w.Struck(place, fault.kind, node)

    def _retry(self) -> None:
        """Somebody has come."""
        waiting, self.waiting = self.waiting, []
        for place, fault in waiting:
            self._tell(self._strike(place, fault))

    def _do(self, fault: Fault, node: w.NodeId) -> None:
        ends: Callable[[], None] | None = None
        match fault.kind:
            case "kill":
                self.engine.kill(node)
            case "leave":
                self.engine.leave(node)
            case "freeze":
                self.engine.freeze(node)
                ends = partial(self.engine.thaw, node)
            case "slow":
                self.engine.slow(node, fault.factor or 0.0)
                ends = partial(self.engine.slow, node, 0.0)
        if ends is not None and fault.for_seconds is not None:
            self._at(self.now + fault.for_seconds, partial(self._end, node, ends))

    def _end(self, node: w.NodeId, ends: Callable[[], None]) -> None:
        if node in self.here:
            ends()

    def _kill_hub(self) -> None:
        self.save()
        os.kill(os.getpid(), signal.SIGKILL)

    def _again(self, place: int, fault: Fault) -> None:
        """Plan the next time of what happens again and again."""
        wait = fault.every_seconds or self.chance.expovariate((fault.per_hour or 1.0) / 3600)

        def strike() -> Message | None:
            self._again(place, fault)
            return self._strike(place, fault)

        self._at(self.now + wait, strike)

    def _at(self, time: float, happen: Callable[[], Message | None]) -> None:
        self.entries += 1
        heappush(self.agenda, (time, self.entries, happen))

    def _tell(self, message: Message | None) -> None:
        if message is not None:
            self.told.append(message)
