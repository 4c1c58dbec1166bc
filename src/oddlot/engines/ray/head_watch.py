"""Detection of the loss of the cluster's head, or of the raylet of this machine. A run cannot last without them."""

import select
import socket
import threading
import time
from collections.abc import Callable
from math import inf

from oddlot.core.support.errors import ClusterLost
from oddlot.core.support.user_warnings import warn
from oddlot.engines.ray import private_api

ASK_SECONDS = 1.0
"""Time between two requests to the head, and longest time for a reply, in seconds."""
SURE_SECONDS = 2.0
"""Longest time for a reply after a request without a reply, in seconds."""
SURE = 2
"""Number of consecutive requests without a reply until the head counts as lost."""
AGAIN_SECONDS = 0.25
"""Time between a request without a reply and the next request, in seconds."""
SPARE_SECONDS = 15.0
"""Seconds between the end of the run and the end of this process by Ray."""
SAVE_SECONDS = 5.0
"""Interval of checkpoints while the head is lost, in seconds."""


class HeadWatch:
    """Detects in a thread that the head does not respond or that the raylet has ended. Both can block a call of Ray.

    Without the head (the GCS), running workers continue to send updates, but Ray ends this process after a minute.
    Without the raylet, Ray ends this process at the next use of the object store, for example when an update arrives.
    The thread therefore calls `stop_workers` immediately, to prevent updates before the run is saved.
    """

    def __init__(
        self,
        stop_workers: Callable[[], object],
        link: socket.socket | None = None,
        answers: Callable[[float], bool] = private_api.head_answers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock, self._answers, self._stop_workers = clock, answers, stop_workers
        self._link = link or private_api.raylet_link()
        self._silent = 0
        """Requests to the head in a row without a reply. The first request after a pause of this process may fail."""
        self._lost_at: float | None = None
        """Time of the warning. None if the head responds."""
        self._save_at = inf
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="oddlot cluster head", daemon=True).start()

    @property
    def raylet_ended(self) -> bool:
        """Whether the raylet of this machine has ended. The object store must not be used any longer."""
        return _has_ended(self._link, 0.0)

    def check(self) -> None:
        """Warn if the head is lost. Raise ClusterLost before Ray would end this process."""
        if self.raylet_ended:
            warn("the raylet of this machine has ended. The run is saved and ends", "raylet_ended")
            message = "the raylet of this machine has ended: start Ray here again, then resume the run"
            raise ClusterLost(message, lost="raylet")
        if self._silent >= SURE:
            self._miss_head(self.clock())
        elif self._lost_at is not None:
            self._lost_at, self._save_at = None, inf
            warn("the head of the Ray cluster responds again, and the run continues", "cluster_head_back")

    def _miss_head(self, now: float) -> None:
        left = max(private_api.head_timeout() - SPARE_SECONDS, 0.0)
        if self._lost_at is None:
            self._lost_at = self._save_at = now
            warn(
                "the head of the Ray cluster does not answer. Running workers continue, and checkpoints are written. "
                f"The run ends in {left:g} s unless the head responds",
                "cluster_head_silent",
                seconds=left,
            )
        if now - self._lost_at >= left:
            message = (
                f"the head of the Ray cluster has not answered for {left:g} s: start it again, then "
                "resume the run"
            )
            raise ClusterLost(message, lost="head", seconds=left)

    def wants_checkpoint(self) -> bool:
        """Return whether a checkpoint is due because the run may end soon."""
        if self.clock() < self._save_at:
            return False
        self._save_at = self.clock() + SAVE_SECONDS
        return True

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _watch(self) -> None:
        with self._link:
            while not self._ended.is_set():
                if _has_ended(self._link, AGAIN_SECONDS if self._silent else ASK_SECONDS):
                    if not self._ended.is_set():  # otherwise the run has shut down its own cluster
                        self._stop_workers()
                    self._ended.wait()
                    return
                answered = self._answers(SURE_SECONDS if self._silent else ASK_SECONDS)
                self._silent = 0 if answered else self._silent + 1


def _has_ended(link: socket.socket, seconds: float) -> bool:
    """Wait for `seconds` at most until the other end is closed. Return whether it is."""
    poll = select.poll()  # unlike `select.select`, it takes any descriptor
    poll.register(link, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))
