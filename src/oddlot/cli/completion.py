"""Words that a shell completes after TAB. Nothing heavy is imported: a user waits for the answer."""

from collections.abc import Iterable, Iterator

from oddlot.core.validation import settings_of
from oddlot.history.run_settings import MODES
from oddlot.run.config import RunConfig
from oddlot.wire.registry import CODECS

DEVICES = ("auto", "cpu", "cuda", "mps")

Choice = tuple[str, str]
"""A word and its meaning."""


def workloads(incomplete: str) -> list[Choice]:
    """Return the built-in workloads that begin so."""
    from oddlot.workloads.registry import WORKLOADS

    return list(_beginning(incomplete, ((name, entry.description) for name, entry in WORKLOADS.items())))


def strategies(incomplete: str) -> list[Choice]:
    """Return the strategies that begin so."""
    from oddlot.strategies.summaries import STRATEGIES, WRAPPERS

    return list(_beginning(incomplete, {**STRATEGIES, **WRAPPERS}.items()))


def engine_settings() -> set[str]:
    """Return the keys of `[engine]`."""
    from oddlot.engines.registry import ENGINES

    return {f"engine.{name}" for each in ENGINES.values() for name in ("kind", *settings_of(each))}


def keys() -> list[str]:
    """Return the keys of `--set`, without those of a strategy."""
    from oddlot.train.job_settings import JobSettings

    run = {f"run.{name}" for name in (*RunConfig.flags(), "checkpoints", "out")}
    job = {f"job.{name}" for name in (*settings_of(JobSettings), "optimizer.lr")}
    return sorted({"strategy", "workload", *run, *job, *engine_settings()})


def engines(incomplete: str) -> list[Choice]:
    """Return the engines of `oddlot train` that begin so."""
    from oddlot.engines.registry import ENGINES

    known = ((kind, str(each.__doc__).partition(".")[0]) for kind, each in ENGINES.items())
    return list(_beginning(incomplete, known))


def resume_modes(incomplete: str) -> list[Choice]:
    """Return the values of `--resume` that begin so."""
    return list(_beginning(incomplete, MODES.items()))


def devices(incomplete: str) -> list[str]:
    """Return the devices that begin so."""
    return [name for name in DEVICES if name.startswith(incomplete)]


def codecs(incomplete: str) -> list[str]:
    """Return the codecs that begin so."""
    return [name for name in CODECS if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return the settings that begin so and, of a setting with `=`, the values that it may have."""
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{each}=" for each in keys() if each.startswith(name)]
    if name in {"strategy", "strategy.name"}:
        values = [word for word, _ in strategies(begin)]
    elif name == "engine.kind":
        values = [word for word, _ in engines(begin)]
    else:
        values = {"run.codec": codecs, "job.device": devices}.get(name, lambda _: [])(begin)
    return [f"{name}={value}" for value in values]


def _beginning(incomplete: str, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield the choices whose word begins so."""
    return (choice for choice in choices if choice[0].startswith(incomplete))
