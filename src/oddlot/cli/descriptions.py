"""Descriptions of strategies and workloads as text."""

import json
from collections.abc import Iterable, Iterator
from inspect import Parameter, getdoc


def strategy_text(name: str) -> str:
    """Return what a strategy does, its settings and its paper. Raise UsageError if it is unknown."""
    from oddlot.config.strategy_tables import describe_settings
    from oddlot.strategies.registry import strategy_class

    kind = strategy_class(name)
    return _text(name, kind, describe_settings(kind, "strategy."))


def workload_text(name: str) -> str:
    """Return what a workload trains, and its options. Raise UsageError or JobError if it cannot be imported."""
    from oddlot.workloads.registry import workload_function

    return _text(name, workload_function(name), options_text(name))


def _text(name: str, described: object, settings: Iterable[str]) -> str:
    """Return a name, the docstring of its object, and the lines of its settings."""
    lines = [*(getdoc(described) or "").splitlines(), "", *settings, ""]
    return "\n".join([name, *(f"    {line}".rstrip() for line in lines)])


def options_text(name: str) -> Iterator[str]:
    """Yield a line for each option of a workload, with its default."""
    from oddlot.workloads.registry import options_of

    for option in options_of(name).values():
        if option.kind is not Parameter.VAR_KEYWORD:
            default = option.default
            text = "... (needed)" if default is Parameter.empty else json.dumps(default, default=repr)
            yield f"workload.{option.name} = {text}"
