"""Words that a shell completes after TAB. Nothing heavy is imported: a user waits for the answer."""

from collections.abc import Iterable, Iterator

from oddlot.strategies.summaries import STRATEGIES, WRAPPERS

CODECS = ("plain", "bf16", "fp16", "nonzero", "nonzero_bf16", "nonzero_fp16")
DEVICES = ("auto", "cpu", "cuda", "mps")
SETTINGS = (
    *(
        "checkpoint_every",
        "checkpoints",
        "codec",
        "dollars_per_hour",
        "epoch_barrier",
        "evaluate_every",
        "in_flight",
    ),
    *(
        "job.batch_size",
        "job.max_grad_norm",
        "job.device",
        "job.keep_optimizer",
        "job.optimizer",
        "job.optimizer.lr",
    ),
    *(
        "job.lr_schedule",
        "keep_checkpoints",
        "keep_shards",
        "max_update_ratio",
        "seed",
        "shards",
        "skip_bad",
        "strategy",
    ),
    *("threads", "until", "workers"),
)
"""What `--set` takes, beside the settings of a strategy."""

Choice = tuple[str, str]
"""a word and what it means"""


def workloads(incomplete: str) -> list[Choice]:
    """Return the built-in workloads that begin so."""
    from oddlot.workloads import TASKS

    return list(_beginning(incomplete, ((name, entry.description) for name, entry in TASKS.items())))


def strategies(incomplete: str) -> list[Choice]:
    """Return the strategies that begin so."""
    return list(_beginning(incomplete, {**STRATEGIES, **WRAPPERS}.items()))


def devices(incomplete: str) -> list[str]:
    """Return the devices that begin so."""
    return [name for name in DEVICES if name.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Return the settings that begin so and, of a setting with `=`, the values that it may have."""
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{each}=" for each in SETTINGS if each.startswith(name)]
    values = {"codec": CODECS, "job.device": DEVICES}.get(name, ())
    if name in {"strategy", "strategy.name"}:
        values = tuple(each for each, _ in strategies(begin))
    return [f"{name}={value}" for value in values if value.startswith(begin)]


def _beginning(incomplete: str, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield the choices whose word begins so."""
    return (choice for choice in choices if choice[0].startswith(incomplete))
