"""Shell completion. There are no heavy imports, because the user waits for the reply."""

from collections.abc import Callable, Iterable

from oddlot.core.support.validation import settings_of
from oddlot.history.run_settings import MODES
from oddlot.run.config import RunKeys
from oddlot.wire.registry import CODECS

DEVICES = ("auto", "cpu", "cuda", "mps")
WEIGHTS = ("last", "best", "ema")
Choice = str | tuple[str, str]
"""A word, or a word and its description."""


def _completer(choices: Callable[[], Iterable[Choice]]) -> Callable[[str], list[Choice]]:
    """Return the function that completes a word to one of these choices."""

    def complete(incomplete: str) -> list[Choice]:
        return [choice for choice in choices() if _word(choice).startswith(incomplete)]

    return complete


def _word(choice: Choice) -> str:
    return choice if isinstance(choice, str) else choice[0]


def _workloads() -> Iterable[Choice]:
    from oddlot.workloads.registry import WORKLOADS

    return [(name, entry.description) for name, entry in WORKLOADS.items()]


def _strategies() -> Iterable[Choice]:
    from oddlot.strategies.registry import BY_NAME, WRAPPERS, summary_of

    return [(name, summary_of(kind)) for name, kind in (BY_NAME | WRAPPERS).items()]


def _engines() -> Iterable[Choice]:
    from oddlot.engines.registry import ENGINES

    return [(kind, str(each.__doc__).partition(".")[0]) for kind, each in ENGINES.items()]


workloads, strategies, engines = map(_completer, (_workloads, _strategies, _engines))
devices, codecs, resume_modes, weights = (
    _completer(lambda: DEVICES),
    _completer(lambda: CODECS),
    _completer(MODES.items),
    _completer(lambda: WEIGHTS),
)


def engine_settings() -> set[str]:
    """Return the keys of `[engine]`."""
    from oddlot.engines.registry import ENGINES

    return {f"engine.{name}" for each in ENGINES.values() for name in ("kind", *settings_of(each))}


def keys() -> list[str]:
    """Return the keys of `--set`, without strategy settings."""
    from oddlot.train.job_settings import JobSettings

    run = {f"run.{name}" for name in settings_of(RunKeys)}
    job = {f"job.{name}" for name in (*settings_of(JobSettings), "optimizer.lr")}
    return sorted({"strategy", "workload", *run, *job, *engine_settings()})


COMPLETERS = {
    "run.codec": codecs,
    "job.device": devices,
    "engine.kind": engines,
    "strategy": strategies,
    "strategy.name": strategies,
}
"""Completers of values, by setting."""


def settings(incomplete: str) -> list[str]:
    """Return the settings with this prefix or, after `SETTING=`, the matching values of the setting."""
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{each}=" for each in keys() if each.startswith(name)]
    return [f"{name}={_word(each)}" for each in COMPLETERS[name](begin)] if name in COMPLETERS else []
