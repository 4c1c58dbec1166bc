"""Tests of the detection of a lost head or raylet. No cluster is started."""

import socket
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from oddlot.core.support.errors import ClusterLost
from oddlot.engines.ray import head_watch, node_calls, private_api
from oddlot.engines.ray.cluster import waiting_for
from oddlot.engines.ray.config import Ray
from oddlot.engines.ray.head_watch import HeadWatch
from tests.transcripts import raises, warns


class Head:
    """A fake head and raylet that end on request, and their `HeadWatch`."""

    def __init__(self) -> None:
        self.now, self.answers = 0.0, True
        self.asked: SimpleQueue[None] = SimpleQueue()
        self.stopped = threading.Event()
        self.raylet, link = socket.socketpair()
        self.watch = HeadWatch(self.stopped.set, link, self._answer, lambda: self.now)

    def _answer(self, _: float) -> bool:
        self.asked.put(None)
        return self.answers

    def ask_thrice(self) -> None:
        """Wait until two requests have ended."""
        for _ in range(3):
            self.asked.get(timeout=30)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    for name in ("ASK_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(head_watch, name, 0.01)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "60")
    made = Head()
    yield made
    made.watch.close()
    made.raylet.close()


def test_silent_head_warns_saves_and_raises_cluster_lost(head: Head) -> None:
    head.watch.check()
    assert not head.watch.wants_checkpoint()
    head.answers = False
    head.ask_thrice()
    with warns("cluster_head_silent", seconds=45.0) as warned:
        head.watch.check()
        head.watch.check()
    assert len(warned.all) == 1
    assert head.watch.wants_checkpoint()
    assert not head.watch.wants_checkpoint(), "not after each message"
    head.now = 44.0
    assert head.watch.wants_checkpoint()
    head.watch.check()
    head.now = 45.0
    with raises(ClusterLost, "cluster_lost", lost="head"):
        head.watch.check()


def test_head_that_replies_again_is_reported(head: Head) -> None:
    head.answers = False
    head.ask_thrice()
    with warns("cluster_head_silent"):
        head.watch.check()
    head.answers, head.now = True, 100.0
    head.ask_thrice()
    with warns("cluster_head_back"):
        head.watch.check()
    assert not head.watch.wants_checkpoint()


def test_lost_head_is_reported_within_five_seconds() -> None:
    pause, first_answer = head_watch.ASK_SECONDS, head_watch.ASK_SECONDS
    assert pause + first_answer + head_watch.AGAIN_SECONDS + head_watch.SURE_SECONDS <= 5


def test_ended_raylet_raises_cluster_lost(head: Head) -> None:
    """Workers are stopped immediately, because Ray would end this process when an update arrives."""
    head.watch.check()
    head.raylet.close()
    assert head.stopped.wait(30)
    assert head.watch.raylet_ended
    with warns("raylet_ended"), raises(ClusterLost, "cluster_lost", lost="raylet"):
        head.watch.check()


def test_shutdown_of_an_own_cluster_is_no_loss(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is not called after the shutdown of the run's own cluster: a call would start another cluster."""
    head.ask_thrice()
    monkeypatch.setattr(head_watch, "ASK_SECONDS", 30.0)
    while True:  # until it only waits for the raylet
        try:
            head.asked.get(timeout=0.5)
        except Empty:
            break
    watching = next(one for one in threading.enumerate() if one.name == "oddlot cluster head")
    head.watch.close()
    head.raylet.close()
    watching.join(30)
    assert not watching.is_alive()
    assert not head.stopped.is_set()


def test_calls_to_a_lost_head_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: Any) -> Any:
        over.wait(60)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: None))

    monkeypatch.setattr(ray, "remote", hang)
    monkeypatch.setattr(ray, "cluster_resources", hang)
    monkeypatch.setattr("oddlot.engines.ray.cluster.HEAD_SECONDS", 0.01)
    monkeypatch.setattr(private_api, "on_completed", lambda *_: None)
    node_calls.NodeCalls(SimpleQueue())("0" * 56, print, len, "")
    assert waiting_for(Ray((2, 2)), 0)[1]
    assert not over.is_set()
    over.set()
