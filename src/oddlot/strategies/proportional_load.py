"""Loads in proportion to speed, over machines that are not alike."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from oddlot.core.commands import Assign, Command
from oddlot.core.errors import UsageError
from oddlot.core.events import Event
from oddlot.core.strategy import Traits, View
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.core.tasks import NodeId
from oddlot.core.validation import Must


@dataclass
class ProportionalLoad(Wrapper):
    """As the strategy inside, but each task has samples in proportion to its worker's measured speed, so that all take
    equally long. Together they have as many as before.

    Speed is samples over the seconds from when a task is given out to its answer, of the worker's latest ones: what
    does not depend on the load, such as the way to the hub, is evened out too. Who has brought nothing yet gets what
    the strategy inside says: one that cancels all that somebody does never learns how slow it is. Updates count in
    proportion to their samples, as every strategy here has it. `AdaptiveLoad` inside measures rounds of equal loads,
    which it does not get then: it is better alone. Alike machines whose times scatter get loads that scatter too, which
    costs some percent.

    Paper: Chen et al., "Semi-Dynamic Load Balancing: Efficient Distributed Learning in Non-Dedicated Environments"
    (SoCC 2020), section 3.
    """

    least: Annotated[float, Must("above 0 and at most 1", lambda least: 0 < least <= 1)] = 0.05
    """no task has less than this share of the samples that the strategy inside says, so that it goes on being
    measured"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.traits(1).whole_shards:
            raise UsageError(
                f"{type(self.inner).__name__} gives whole shards of the data, which cannot be in proportion",
                "whole_shards_inside",
                "inner",
                inner=type(self.inner).__name__,
            )

    def traits(self, batch_size: int) -> Traits:
        """Faster workers get larger tasks."""
        return replace(super().traits(batch_size), varies_loads=True)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """What the strategy inside says, with other numbers of samples."""
        commands = list(self.inner.on(event, view))
        assigns = any(isinstance(command, Assign) for command in commands)
        speeds = dict(self._speeds(view)) if assigns else {}
        mean = sum(speeds.values()) / max(1, len(speeds))
        for command in commands:
            if isinstance(command, Assign) and command.node in speeds:
                share = max(self.least, speeds[command.node] / mean)
                yield replace(command, samples=max(1, round(share * command.samples)))
            else:
                yield command

    @staticmethod
    def _speeds(view: View) -> Iterator[tuple[NodeId, float]]:
        """Samples a second, of those who are known."""
        for node in view.nodes:
            member = view.roster.members[node]
            if member.results and member.pace > 0:
                yield node, 1 / member.pace
