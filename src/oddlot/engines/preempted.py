"""An engine whose machines come and go as a model of capacity or a published trace says, whichever engine it is."""

from collections.abc import Sequence
from math import inf

from oddlot.core import words as w
from oddlot.core.streams import stream
from oddlot.engines.around import Around
from oddlot.engines.host import Message
from oddlot.engines.place import Engine
from oddlot.machines.capacity import Capacity

NAME, KIND = "capacity", "preempt"
"""as the log tells it"""


class Preempted(Around):
    """Machines that go are killed, as kill -9 does, and none replaces them until they are to come again.

    Times are those of the run's clock: a resumed run finds the capacity as it is then.
    """

    def __init__(self, engine: Engine, capacity: Capacity, names: Sequence[str], seed: int) -> None:
        super().__init__(engine)
        self.names = names
        self.moves = capacity.moves(len(names), stream(seed, NAME))
        self.move = next(self.moves, None)
        self.away = dict.fromkeys(names, True)
        self.nodes: dict[str, w.NodeId] = {}
        """the present life of every machine that has one"""
        self.struck: list[w.Struck] = []
        """that are still to be told"""
        while self.move is not None and self.move[0] <= engine.now:
            self._turn()
        for name, away in self.away.items():
            engine.bar(name, away)

    def next(self, until: float) -> Message | None:
        """The next message, or the word that a machine was taken away."""
        if self.struck:
            return self.struck.pop()
        while self.move is not None and self.move[0] <= self.now:
            name, away = self._turn()
            self.engine.bar(name, away)
            if away and (node := self.nodes.pop(name, "")):
                return self._take(node)
        due = self.move[0] if self.move else inf
        message = self.engine.next(min(until, due))
        match message:
            case w.Joined(node):
                self._joined(node)
            case w.Lost(node):
                self._lost(node)
        return message

    def _turn(self) -> tuple[str, bool]:
        """Take the next move into account: whose, and whether it is away from then on."""
        assert self.move is not None
        _, machine, comes = self.move
        self.move = next(self.moves, None)
        self.away[self.names[machine]] = not comes
        return self.names[machine], not comes

    def _joined(self, node: w.NodeId) -> None:
        """One that had been on its way when its machine was taken away is gone at once."""
        name = node.partition(".")[0]
        if self.away[name]:
            self.struck.append(self._take(node))
        else:
            self.nodes[name] = node

    def _take(self, node: w.NodeId) -> w.Struck:
        """Away with it."""
        self.engine.kill(node)
        return w.Struck(NAME, KIND, node)

    def _lost(self, node: w.NodeId) -> None:
        name = node.partition(".")[0]
        if self.nodes.get(name) == node:
            del self.nodes[name]
