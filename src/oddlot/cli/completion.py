"""Words that a shell completes after TAB. Nothing heavy is imported: a user waits for the answer."""

from collections.abc import Iterable, Iterator

from oddlot.history.run_settings import MODES
from oddlot.run.config import RunConfig
from oddlot.wire.registry import CODECS

DEVICES = ("auto", "cpu", "cuda", "mps")
ENGINES = {"local": "Worker processes of this machine.", "ray": "Workers on a Ray cluster."}
ENGINE_SETTINGS = (
    *("kind", "workers", "threads", "num_cpus", "num_gpus", "resources", "runtime_env", "address"),
    *("in_flight", "lost_after_seconds", "respawn", "dollars_per_hour"),
)
"""Keys of `[engine]`."""
SETTINGS = (
    *(f"run.{name}" for name in RunConfig.flags()),
    *(f"run.{name}" for name in ("checkpoints", "out")),
    *(f"engine.{name}" for name in ENGINE_SETTINGS),
    *(f"job.{name}" for name in ("batch_size", "device", "keep_optimizer", "lr_schedule", "max_grad_norm")),
    "job.optimizer",
    "job.optimizer.lr",
    "strategy",
    "workload",
)
"""What `--set` takes, beside the settings of a strategy."""

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


def engines(incomplete: str) -> list[Choice]:
    """Return the engines of `oddlot train` that begin so."""
    return list(_beginning(incomplete, ENGINES.items()))


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
        return [f"{each}=" for each in SETTINGS if each.startswith(name)]
    values = {"run.codec": CODECS, "job.device": DEVICES, "engine.kind": ENGINES}.get(name, ())
    if name in {"strategy", "strategy.name"}:
        values = tuple(each for each, _ in strategies(begin))
    return [f"{name}={value}" for value in values if value.startswith(begin)]


def _beginning(incomplete: str, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield the choices whose word begins so."""
    return (choice for choice in choices if choice[0].startswith(incomplete))
