"""The beginning of a run: it waits for the least number of workers."""

import logging
from collections.abc import Collection

from oddlot.core.events import Joined
from oddlot.core.tasks import NodeId
from oddlot.engines.ray.cluster import waiting_for
from oddlot.engines.ray.settings import RaySettings

TELL_SECONDS = 5.0
"""Seconds without enough workers after which a line says what the run waits for."""
WARN_SECONDS = 30.0
"""Seconds after which that line is a warning, which scripts show, even if the workers may just be starting."""
logger = logging.getLogger(__name__)


class Entrance:
    """Holds workers back until the least number of them is ready."""

    def __init__(self, settings: RaySettings, now: float) -> None:
        self.settings = settings
        self._waiting: dict[NodeId, Joined] | None = {}
        """None: the run has started."""
        self._told, self._told_at, self._since = ("", 0), now, now

    def enter(self, joined: Joined) -> list[Joined]:
        """Return the workers that join the run now that this one is ready."""
        if self._waiting is None:
            return [joined]
        self._waiting[joined.node] = joined
        if len(self._waiting) < self.settings.min_workers:
            return []
        entering, self._waiting = self._waiting, None
        return list(entering.values())

    def lost(self, node: NodeId) -> bool:
        """Return whether a lost worker had not entered yet."""
        return self._waiting is not None and self._waiting.pop(node, None) is not None

    def tell(self, now: float, ready: int, avoided: Collection[str] = ()) -> None:
        """Say what the run waits for, before its start and while no worker is ready; again when it changes.

        `avoided` are Ray's ids of nodes that get no workers.
        """
        if ready and self._waiting is None:
            self._told, self._told_at, self._since = ("", 0), now, now
        if now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        text, is_missing = waiting_for(self.settings, ready, avoided)
        level = logging.WARNING if is_missing or now - self._since >= WARN_SECONDS else logging.INFO
        if (text, level) != self._told:
            self._told = text, level
            logger.log(level, "%s", text)
