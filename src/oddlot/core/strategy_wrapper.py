"""The base class of strategies that wrap another strategy and change some of its commands."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import ClassVar

from oddlot.core.strategy import Strategy, Traits
from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.validation import check_settings


@contextmanager
def _about_inner() -> Iterator[None]:
    """Turn the key of a UsageError into one of the wrapped strategy."""
    try:
        yield
    except UsageError as error:
        raise error.inside("inner") from None


@dataclass
class StrategyWrapper(Strategy):
    """Base class of strategies that wrap another strategy and, by default, have its traits.

    Raise UsageError if `inner` is not a strategy, or contains the same wrapper at any depth.
    """

    keeps_exact: ClassVar[bool] = False
    """Whether the inner strategy may compute exact rounds: the wrapper then changes no size of a task and no share."""

    inner: Strategy
    """The wrapped strategy."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not _is_strategy(self.inner):
            raise InvalidValue("inner", self.inner, "a strategy, such as Synchronous()", type(self).__name__)
        if type(self) in map(type, layers(self.inner)):
            kind = type(self).__name__
            message = f"{kind} wraps another {kind}: use it once"
            raise UsageError(message, "wrapper_twice", key="inner", wrapper=kind)
        if self.inner.traits(1).exact and not self.keeps_exact:
            kind = type(self).__name__
            message = (
                f"{kind} changes tasks or shares, so rounds inside it cannot be exact: leave out exact=True, or use "
                "BackupTasks or Deadline"
            )
            raise UsageError(message, "wrapper_not_exact", key="inner", wrapper=kind)

    def traits(self, batch_size: int) -> Traits:
        """Return the traits of the wrapped strategy."""
        inner = self.inner.traits(batch_size)
        return replace(inner, task_setting=f"inner.{inner.task_setting}") if inner.task_setting else inner

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Validate the wrapped strategy. Raise UsageError about a setting of `inner`."""
        with _about_inner():
            self.inner.validate(workers, metrics)


def _is_strategy(value: object) -> bool:
    return isinstance(value, Strategy) and is_dataclass(value)


def layers(strategy: Strategy) -> list[Strategy]:
    """Return the strategy and all strategies that it wraps, the innermost last."""
    found = [strategy]
    while isinstance(found[-1], StrategyWrapper):
        found.append(found[-1].inner)
    return found
