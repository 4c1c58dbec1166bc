"""Carries out a buying policy: orders on-demand machines for spot zones, and gives them back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from oddlot.core.support.event_queue import EventQueue
from oddlot.core.tasks import NodeId
from oddlot.engines.buying_plan import BuyingPlan, Progress
from oddlot.engines.host import Envelope
from oddlot.engines.simulated.zones import Change, MachineState
from oddlot.machines.buying import Purchase, Situation
from oddlot.machines.machine import Machine
from oddlot.machines.market import Zone, all_machines, spot_zones

DECISIONS = 2_000
"""Largest number of regular decisions until the deadline."""


def speed(fleet: Iterable[Machine | Zone]) -> float:
    """Return the samples per second of all machines, without transfers and waiting."""
    return sum(1 / one.seconds_per_sample for one in all_machines([*fleet]))


def seconds_needed(fleet: Sequence[Machine | Zone], plan: BuyingPlan) -> float:
    """Return the seconds until the goal if all machines are bought on demand now, without transfers and waiting."""
    return max(one.offer.seconds_to_start for one in spot_zones(fleet)) + plan.remaining / speed(fleet)


@dataclass(slots=True, eq=False)
class Supply:
    """The machines of a spot zone, and as many on-demand machines."""

    zone: Zone
    spot: list[MachineState]
    on_demand: list[MachineState]
    takes_spot: bool = True


class Purchasing:
    """Decides at regular times and when a machine becomes ready or is lost. Orders and gives back machines."""

    def __init__(
        self,
        plan: BuyingPlan,
        fleet: Sequence[Machine | Zone],
        states: Mapping[str, MachineState],
        events: EventQueue[Envelope],
        order: Change,
        give_back: Change,
    ) -> None:
        self.plan, self.events, self.order, self.give_back = plan, events, order, give_back
        self.states = states
        self.supplies = [
            Supply(
                zone, [states[name] for name in zone.names], [states[name] for name in zone.substitute.names]
            )
            for zone in spot_zones(fleet)
        ]
        for supply in self.supplies:
            for state in supply.on_demand:
                state.is_wanted = False
        self.leaving = set[NodeId]()
        """Workers on machines that are given back."""
        task_seconds = plan.batch * max(state.machine.seconds_per_sample for state in states.values())
        self.progress = Progress(plan, events.now, speed(fleet), task_seconds, is_upper=True)
        self.is_due = False

    # --- reports of the lifecycle --------------------------------------------------------------

    def changing(self) -> None:
        """Record that a machine becomes ready or ends now, and decide after the change."""
        if not self.is_due:
            self.is_due = True
            self.events.at(self.events.now, self.decide)

    # --- decisions -----------------------------------------------------------------------------

    def decide_regularly(self) -> None:
        """Make a decision now, and again after a part of a changeover, until the deadline."""
        self.changing()
        pause = self._pause
        if self.events.now < self.plan.buying.deadline_seconds:
            self.events.at(self.events.now + pause, self.decide_regularly)

    def decide(self) -> None:
        """Apply the decision of the policy to each zone, after all changes at this time."""
        if self.events.next_time <= self.events.now:
            self.events.at(self.events.now, self.decide)
            return
        self.is_due = False
        self.progress.count(self.events.now)
        if self.leaving:
            self.leaving &= {state.node for state in self.states.values()}
        for supply in self.supplies:
            self._apply(supply, self.plan.buying.decide(self._situation(supply)))
        ready = filter(self._is_ready, self.states.values())
        self.progress.ready_speed = sum(1 / state.machine.seconds_per_sample for state in ready)

    def _situation(self, supply: Supply) -> Situation:
        now, count = self.events.now, supply.zone.count
        return replace(
            self.progress.situation(now, self._pause, self._changeover, count),
            spot_ready=sum(map(self._is_ready, supply.spot)),
            spot=sum(state.has_capacity and bool(state.node) for state in supply.spot),
            on_demand=sum(state.is_wanted for state in supply.on_demand),
            takes_spot=supply.takes_spot,
        )

    def _apply(self, supply: Supply, purchase: Purchase) -> None:
        """Order and give back machines. Running machines are kept if possible, because others need time to start."""
        if purchase.on_demand != sum(state.is_wanted for state in supply.on_demand):
            ranked = sorted(
                supply.on_demand,
                key=lambda state: (not state.is_wanted, not self._is_ready(state), bool(state.node)),
            )
            for place, state in enumerate(ranked):
                self._want(state, place < purchase.on_demand)
        if purchase.takes_spot != supply.takes_spot:
            supply.takes_spot = purchase.takes_spot
            for state in supply.spot:
                state.is_wanted = purchase.takes_spot
                self.events.at(self.events.now, partial(self.order, state))

    def _want(self, state: MachineState, wanted: bool) -> None:
        if state.is_wanted == wanted:
            return
        state.is_wanted = wanted
        if not wanted and state.node:
            self.leaving.add(state.node)
        self.events.at(self.events.now, partial(self.order if wanted else self.give_back, state))

    # --- measurements --------------------------------------------------------------------------

    @property
    def _changeover(self) -> float:
        """Seconds of work that a machine loses when it is replaced: its start, and the task that is lost."""
        return (
            max(supply.zone.offer.seconds_to_start for supply in self.supplies) + self.progress.task_seconds
        )

    @property
    def _pause(self) -> float:
        """Seconds between regular decisions."""
        return max(self._changeover / 4, self.plan.buying.deadline_seconds / DECISIONS)

    def _is_ready(self, state: MachineState) -> bool:
        return state.is_ready and state.has_capacity and state.node not in self.leaving


def substitutes(fleet: Sequence[Machine | Zone], plan: BuyingPlan | None) -> list[Zone]:
    """Return the zones of on-demand machines that a buying policy can order from."""
    return [] if plan is None else [zone.substitute for zone in spot_zones(fleet)]
