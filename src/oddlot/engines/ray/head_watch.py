"""Watches the cluster's head and the raylet of this machine, without which a run cannot last."""

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
"""Time between two requests to the head, and the longest time for an answer, in seconds."""
SURE_SECONDS = 2.0
"""Longest time for the answer to the second request, without which the head counts as lost, in seconds."""
SURE = 2
"""Number of requests in a row without an answer after which the head counts as lost."""
AGAIN_SECONDS = 0.25
"""Time between a request without an answer and the next one, in seconds."""
SPARE_SECONDS = 15.0
"""Seconds before Ray would end this process at which the run ends."""
SAVE_SECONDS = 5.0
"""Interval of checkpoints while the head is lost, in seconds."""


class HeadWatch:
    """Notices that the head does not answer or that the raylet has ended, in a thread: both can block a call of Ray.

    Without the head (the GCS), workers that have started continue to send updates, but Ray ends this process after a
    minute. Without the raylet, Ray ends this process at the next use of the object store, as by an update that arrives:
    `stop_workers` is called at once, in the thread, so that none does before the run is saved.
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
        """Requests in a row without an answer of the head. After a pause of this process the first may fail."""
        self._lost_at: float | None = None
        """Time at which the run was warned. None: the head answers."""
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
            warn("the head of the Ray cluster answers again, and the run continues", "cluster_head_back")

    def _miss_head(self, now: float) -> None:
        left = max(private_api.head_timeout() - SPARE_SECONDS, 0.0)
        if self._lost_at is None:
            self._lost_at = self._save_at = now
            warn(
                "the head of the Ray cluster does not answer. Running workers continue, and checkpoints are written. "
                f"The run ends in {left:g} s unless the head answers again",
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
                    if not self._ended.is_set():  # or the run ends a cluster of its own
                        self._stop_workers()
                    self._ended.wait()
                    return
                answered = self._answers(SURE_SECONDS if self._silent else ASK_SECONDS)
                self._silent = 0 if answered else self._silent + 1


def _has_ended(link: socket.socket, seconds: float) -> bool:
    """Return whether the other end is closed, waiting for it for this time at most."""
    poll = select.poll()  # unlike `select.select`, it takes any descriptor
    poll.register(link, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))
