"""Base class of engines that wrap another one and change some of its messages."""

from oddlot.engines.base import Engine
from oddlot.engines.host import Message, PortWrapper


class EngineWrapper(PortWrapper):
    """Passes all messages and requests on to `engine`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.engine = engine

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.engine.now

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come."""
        return self.engine.is_spent

    def next(self, until: float) -> Message | None:
        """Return the next message."""
        return self.engine.next(until)
