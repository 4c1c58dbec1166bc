"""Carries out a buying policy: orders on-demand machines for spot zones, and gives them back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from oddlot.core.support.event_queue import EventQueue
from oddlot.core.support.text import duration
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Envelope
from oddlot.engines.simulated.zones import Change, MachineState
from oddlot.machines.buying import Buying, Purchase, Situation, Work
from oddlot.machines.machine import Machine
from oddlot.machines.market import Zone, all_machines, spot_zones

NOMINAL_SHARE = 0.02
"""Share of the work that counts as done at the nominal speed, so that the first tasks do not decide the measured
speed."""
AVERAGED_TASKS = 20
"""Number of tasks in the moving average of their times."""
DECISIONS = 2_000
"""Largest number of regular decisions until the deadline."""


@dataclass(frozen=True)
class BuyingPlan:
    """A buying policy and the work of the run."""

    buying: Buying
    work: Work
    batch: int
    """Samples of a minibatch."""

    def check(self, fleet: Sequence[Machine | Zone], now: float) -> None:
        """Warn if the deadline has passed, or if it is too early even with all machines on demand."""
        deadline = self.buying.deadline_seconds
        if now >= deadline:
            message = (
                f"the deadline of {duration(deadline)} has passed: the run resumes at {duration(now)}. Missing "
                "spot machines are replaced on demand immediately. Increase deadline_hours to wait for them"
            )
            warn(message, "deadline_passed", deadline=deadline, now=now)
            return
        starting = max(one.offer.seconds_to_start for one in spot_zones(fleet))
        needed = starting + (self.work.samples - self.work.done()) / speed(fleet)
        if needed > deadline - now:
            message = (
                f"the deadline is in {duration(deadline - now)}, but the run needs at least {duration(needed)} with "
                "all machines on demand. Missing spot machines are replaced on demand immediately. Increase "
                "deadline_hours, or add machines"
            )
            warn(message, "deadline_too_short", deadline=deadline, needed=needed)


def speed(fleet: Iterable[Machine | Zone]) -> float:
    """Return the samples per second of all machines, without transfers and waiting."""
    return sum(1 / one.seconds_per_sample for one in all_machines([*fleet]))


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
        self.full_speed = speed(fleet)
        self.leaving = set[NodeId]()
        """Workers on machines that are given back."""
        self.task_seconds = plan.batch * max(state.machine.seconds_per_sample for state in states.values())
        """Moving average of the computation time of a task."""
        self.done_before = plan.work.done()
        self.possible, self.counted_to = 0.0, events.now
        """Samples that the ready machines could have computed, until a time."""
        self.ready_speed = 0.0
        """Samples per second of the machines that are ready since the last decision."""
        self.is_due = False

    # --- reports of the lifecycle --------------------------------------------------------------

    def changing(self) -> None:
        """Record that a machine becomes ready or ends now, and decide after the change."""
        if not self.is_due:
            self.is_due = True
            self.events.at(self.events.now, self.decide)

    def task_ended(self, seconds: float) -> None:
        """Record the computation time of a task."""
        self.task_seconds += (seconds - self.task_seconds) / AVERAGED_TASKS

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
        self.possible += self.ready_speed * (self.events.now - self.counted_to)
        self.counted_to = self.events.now
        if self.leaving:
            self.leaving &= {state.node for state in self.states.values()}
        for supply in self.supplies:
            self._apply(supply, self.plan.buying.decide(self._situation(supply)))
        ready = filter(self._is_ready, self.states.values())
        self.ready_speed = sum(1 / state.machine.seconds_per_sample for state in ready)

    def _situation(self, supply: Supply) -> Situation:
        buying, work = self.plan.buying, self.plan.work
        done = work.done()
        return Situation(
            elapsed_seconds=self.events.now,
            deadline_seconds=buying.deadline_seconds - self._pause,  # the next decision may be this late
            seconds_needed=max(0.0, work.samples - done) / (self.full_speed * self._efficiency(done)),
            share_done=min(1.0, done / work.samples),
            changeover_seconds=self._changeover,
            count=supply.zone.count,
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
        return max(supply.zone.offer.seconds_to_start for supply in self.supplies) + self.task_seconds

    @property
    def _pause(self) -> float:
        """Seconds between regular decisions."""
        return max(self._changeover / 4, self.plan.buying.deadline_seconds / DECISIONS)

    def _is_ready(self, state: MachineState) -> bool:
        return state.is_ready and state.has_capacity and state.node not in self.leaving

    def _efficiency(self, done: float) -> float:
        """Return the merged samples over the samples that the ready machines could have computed, at most 1."""
        nominal = NOMINAL_SHARE * self.plan.work.samples
        # A task counts when it is merged. Until then, its samples are not a sign of slow machines.
        late = self.full_speed * self.task_seconds
        return min(1.0, (done - self.done_before + nominal) / max(nominal, self.possible + nominal - late))


def substitutes(fleet: Sequence[Machine | Zone], plan: BuyingPlan | None) -> list[Zone]:
    """Return the zones of on-demand machines that a buying policy can order from."""
    return [] if plan is None else [zone.substitute for zone in spot_zones(fleet)]
