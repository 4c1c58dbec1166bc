"""Base class of engines that wrap another engine and change some of its messages."""

from oddlot.engines.base import Engine
from oddlot.engines.host import Message, PortWrapper


class EngineWrapper(PortWrapper):
    """An engine that forwards all requests to `engine`, and all messages from it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.engine = engine

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.engine.now

    @property
    def is_spent(self) -> bool:
        """Whether no further message will arrive."""
        return self.engine.is_spent

    def next(self, until: float) -> Message | None:
        """Return the next message."""
        return self.engine.next(until)
