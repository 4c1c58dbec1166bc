"""Checks of the settings `combine` and `gates` before a run starts."""

from collections.abc import Sequence

from oddlot.core.strategy import Strategy, Traits
from oddlot.core.strategy_wrapper import layers
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.text import counted
from oddlot.engines.base import EngineConfig
from oddlot.model.combine import Combine, Gate
from oddlot.model.rule_names import rule_name
from oddlot.run.config import RunConfig
from oddlot.strategies.groups import Groups


def check_rules(
    config: RunConfig, traits: Traits, strategy: Strategy, engine: EngineConfig, in_flight: int
) -> None:
    """Raise UsageError if `combine` or a gate has the wrong type or does not fit the strategy or the workers."""
    gates: Sequence[object] = config.gates  # `RunConfig` does not check their classes
    for gate in gates:
        if not isinstance(gate, Gate):
            raise InvalidValue(
                "gates", gate, "gates, such as 'range:norm' or oddlot.merging.EvidenceRange('norm')"
            )
    combine: object = config.combine
    if combine is not None and not isinstance(combine, Combine):
        must = "a rule, such as 'trimmed_mean' or oddlot.merging.TrimmedMean()"
        raise InvalidValue("combine", config.combine, must)
    unfit = "gates" if config.gates else "combine" if config.combine is not None else ""
    if traits.mesh and unfit:
        mesh = type(strategy).__name__
        message = (
            f"{unfit} needs a hub, but {mesh} runs on a mesh of peers: leave it out, or use another strategy"
        )
        raise UsageError(message, "setting_without_hub", unfit, name=unfit, strategy=mesh)
    if config.combine is not None:
        _check_combine(config.combine, traits, strategy, engine.max_workers * in_flight)


def _check_combine(rule: Combine, traits: Traits, strategy: Strategy, tasks: int) -> None:
    """Raise UsageError if merges cannot have the updates that a rule needs, or are exact."""
    name, inner = rule_name(rule), type(layers(strategy)[-1]).__name__
    if traits.exact:
        message = f"exact=True does not work with combine = {name!r}: sums of gradients are added, not compared. Leave "
        message += "out combine, or use exact=False"
        raise UsageError(message, "setting_not_exact", "combine", name="combine")
    if traits.single_updates:
        raise UsageError(
            f"combine = {name!r} compares the updates of a merge, but {inner} merges one update at a time: use "
            "Synchronous or FastestK for gradients, LocalSGD or FederatedAveraging for local steps, or a gate",
            "single_updates",
            "combine",
            strategy=inner,
        )
    updates = traits.updates or traits.clients or tasks
    if isinstance(strategy, Groups):
        updates = tasks // strategy.groups
    if updates < rule.needs:
        raise UsageError(
            f"combine = {name!r} needs at least {rule.needs} updates per merge, but a merge has "
            f"{counted(updates, 'update')}: use more workers, or another rule",
            "too_few_updates",
            "combine",
            updates=updates,
            needs=rule.needs,
        )
