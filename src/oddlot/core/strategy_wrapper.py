"""Strategies around another one, of which they change a few commands."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, TypeVar

from oddlot.core.errors import InvalidValue, UsageError
from oddlot.core.strategy import Strategy
from oddlot.core.validation import check_settings

Inner = TypeVar("Inner", bound=Strategy)


@contextmanager
def _about_inner() -> Iterator[None]:
    """A UsageError's setting is one of the strategy inside."""
    try:
        yield
    except UsageError as error:
        raise error.inside("inner") from None


@dataclass
class Wrapper(Generic[Inner]):
    """Has all that a strategy may have beside `on` (see `oddlot.core.strategy.Strategy`) as the one inside has it.
    UsageError: it is around no strategy, or around one of its own class, at any depth.

    Which is a field, so that books are saved with it: the type to read them by is `Wrapper[type of the one inside]`.
    """

    inner: Inner
    """the strategy inside"""

    def __post_init__(self) -> None:
        check_settings(self)
        inner: object = self.inner
        if isinstance(inner, type) or not hasattr(inner, "on") or not is_dataclass(inner):
            raise InvalidValue("inner", inner, "a strategy, such as Synchronous(): a dataclass with `on`")
        while inner is not None:
            if type(inner) is type(self):
                kind = type(self).__name__
                told = f"{kind} is inside already: once is enough"
                raise UsageError(told, "wrapper_twice", key="inner", wrapper=kind)
            inner = getattr(inner, "inner", None)

    @property
    def server(self) -> Any:
        """The rule at the hub; None: the job's optimizer."""
        return getattr(self.inner, "server", None)

    @property
    def epoch_barrier(self) -> bool:
        """An epoch waits for the one before."""
        return bool(getattr(self.inner, "epoch_barrier", False))

    @property
    def whole_shards(self) -> bool:
        """A task is a whole shard of the data."""
        return bool(getattr(self.inner, "whole_shards", False))

    @property
    def waits_for_all(self) -> bool:
        """A round waits for everybody who works."""
        return bool(getattr(self.inner, "waits_for_all", False))

    @property
    def hands_over(self) -> bool:
        """Tasks may end before they are done."""
        return bool(getattr(self.inner, "hands_over", False))

    @property
    def reads_gradients(self) -> bool:
        """It adapts to what is measured of gradients."""
        return bool(getattr(self.inner, "reads_gradients", False))

    def check_workers(self, workers: int) -> None:
        """UsageError: so many make no sense."""
        with _about_inner():
            getattr(self.inner, "check_workers", lambda _: None)(workers)

    def check_metrics(self, names: Collection[str]) -> None:
        """UsageError: too little is evaluated."""
        with _about_inner():
            getattr(self.inner, "check_metrics", lambda _: None)(names)

    def wants_fitted(self, batch: int) -> tuple[int, ...]:
        """For tasks of how many samples what rounds take is to be told."""
        wanted: tuple[int, ...] = getattr(self.inner, "wants_fitted", lambda _: ())(batch)
        return wanted
