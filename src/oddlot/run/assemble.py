"""Assembly of conductor, engine, faults and host, for runs, tests and benchmarks. Uses neither Job nor PyTorch."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from oddlot.core.conductor import Conductor
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Adviser, Host, Observer
from oddlot.engines.simulated.update_servers import served
from oddlot.faults.injector import FaultInjector
from oddlot.faults.plan import Chaos
from oddlot.faults.preemption import PreemptionInjector
from oddlot.timing.round_estimator import RoundTimes

if TYPE_CHECKING:
    from oddlot.engines.base import Engine, Opened


def engine_with_faults(
    opened: "Opened",
    numbers: Any,
    conductor: Conductor,
    chaos: Chaos | None = None,
    names: Sequence[str] = (),
    past: Sequence[Record] | None = None,
    left: Collection[NodeId] = (),
    flush: Callable[[], None] = lambda: None,
) -> "Engine | FaultInjector":
    """Return the engine with the faults of `chaos`, injected while the run trains.

    `numbers` is the host's store. A fault that is in `past`, the whole log of a resumed run, is not injected again;
    `left` are the workers that it had at its end. `flush` is called before the hub is killed.
    """
    engine = served(opened, numbers)
    if chaos is None:
        return engine
    faults = opened.faults
    assert faults is not None, "the engine's config declares that it injects faults"
    if chaos.capacity is not None:
        engine = PreemptionInjector(engine, faults, chaos.capacity, names, chaos.seed)
    return FaultInjector(engine, faults, chaos, lambda: conductor.version, flush, past, left)


def host_of(conductor: Conductor, numbers: Any, engine: Any, observers: list[Observer] | None = None) -> Host:
    """Return the host of these observers, with an adviser if the strategy needs estimated durations of rounds."""
    loads = conductor.strategy.traits(conductor.batch).measured_loads
    advisers: list[Adviser] = [RoundTimes(loads)] if loads else []
    return Host(conductor, numbers, engine, [] if observers is None else observers, advisers)
