"""Tests of user errors with clusters: settings, addresses, resources and environments. No cluster is started."""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_server, socket
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from oddlot import JobError, Local, Ray, Synchronous, UsageError
from oddlot.engines.processes.object_parcel import pickled
from oddlot.engines.ray import cluster, private_api
from oddlot.engines.ray.actor_pool import JobEntry
from oddlot.engines.ray.cluster import _own_if_stale
from oddlot.engines.ray.worker_actor import WorkerActor, check_versions, missing_here_advice
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from tests.fits import a_job
from tests.transcripts import mask, raises, warns


@pytest.mark.parametrize("workers", [0, (3, 2), (0, 4), (2, 3, 4), 2.5, (1, 20_000), "2-4"])
def test_invalid_worker_counts_are_rejected(workers: Any) -> None:
    with raises(UsageError, "invalid_value", name="workers"):
        Ray(workers)


def test_worker_range_sets_minimum_and_maximum() -> None:
    on = Ray((2, 16))
    assert (on.min_workers, on.max_workers, len(on.names)) == (2, 16, 16)
    assert (Ray(4).min_workers, Ray(4).max_workers) == (1, 4)


def test_default_batch_equals_that_of_local_workers() -> None:
    on = [Recipe(a_job(), Synchronous(), engine, RunConfig(until="epochs>=1")) for engine in (Ray(), Local())]
    ray, local = (one.effective_batch for one in on)
    assert ray
    assert local
    assert ray.samples == local.samples


def test_missing_ray_raises_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises(UsageError, "not_installed", package="ray"):
        Ray().begin(ExitStack())


def test_unused_address_raises_no_cluster() -> None:
    mask(port=r"(?<=127.0.0.1:)\d+")
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with raises(UsageError, "no_cluster", address=address):
            cluster.connect(address, None, ExitStack())


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """Yield the address of a server that sends one of `answers` on each connection, in order, and closes it."""

    def answer() -> None:
        for each in (b"", *answers):  # no data on the first connection: it checks for an open port
            link = server.accept()[0]
            if each:
                link.recv(1_000)
                link.sendall(each)
            link.close()

    mask(port=r"(?<=127.0.0.1:)\d+")
    with create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


GRPC, TLS_ALERT = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), bytes([0x15, 3, 3, 0, 2, 2, 80])
HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    ("answers", "tls", "code", "cause"),
    [
        ([HTTP, HTTP], False, "no_cluster", None),
        ([TLS_ALERT, TLS_ALERT], False, "cluster_rejected", "tls"),
        ([GRPC, GRPC], True, "cluster_rejected", "tls"),
        ([GRPC], False, "cluster_rejected", "token"),
    ],
    ids=["http", "tls", "no tls", "token"],
)
def test_head_that_rejects_connections_raises(
    answers: list[bytes], tls: bool, code: str, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object) -> None:
        raise ray.exceptions.AuthenticationError("no")

    monkeypatch.setattr(private_api, "new_client", reject)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tries for half a minute"))
    monkeypatch.setenv("RAY_USE_TLS", str(int(tls)))
    with answering(*answers) as address, raises(UsageError, code) as caught:
        cluster.connect(address, None, ExitStack())
    assert caught.fields.get("cause") == cause


def test_unusable_ray_folder_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(**_: object) -> None:
        raise OSError("AF_UNIX path length cannot exceed 107 bytes")

    monkeypatch.setattr(ray, "init", reject)
    with raises(UsageError, "ray_folder_unusable"):
        cluster.connect("local", None, ExitStack())


@pytest.mark.parametrize(("cpus", "warned_at"), [(1.0, 10.0), (4.0, 40.0)], ids=["missing", "in use"])
def test_waiting_for_resources_is_logged_as_a_warning(
    cpus: float, warned_at: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": cpus})
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "a", "Alive": True, "Resources": {"CPU": cpus}}])
    entrance, times = JobEntry(Ray((2, 2)), 0.0), []
    for now in (10.0, 20.0, 40.0, 50.0):
        entrance.tell(now, 0)
        times += [now] * sum(record.levelno == logging.WARNING for record in caplog.records)
        caplog.clear()
    assert times == [warned_at]


@pytest.mark.parametrize(("avoided", "is_missing"), [((), False), (("a",), True)])
def test_avoided_nodes_count_as_missing(
    avoided: Sequence[str], is_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}}])
    assert cluster.waiting_for(Ray((2, 2)), 0, avoided)[1] == is_missing


def test_missing_relative_path_names_the_working_directory() -> None:
    wrapped = JobError("the job's code failed", "user_code_failed")
    wrapped.__context__ = FileNotFoundError(2, "No such file", "rows.npy")
    assert str(Path.cwd()) in missing_here_advice(wrapped)
    assert missing_here_advice(FileNotFoundError(2, "No such file", "/no/such/rows.npy")) == ""


@pytest.mark.parametrize(("mapping", "advises"), [(os.environ, True), ({}, False)])
def test_missing_environment_variable_gives_advice(mapping: Any, advises: bool) -> None:
    with pytest.raises(KeyError) as caught:
        mapping["NO_SUCH_VARIABLE"]
    assert ("NO_SUCH_VARIABLE" in missing_here_advice(caught.value)) == advises


def test_ray_client_address_is_rejected() -> None:
    with raises(UsageError, "ray_client_address"):
        cluster.connect("ray://head:10001", None, ExitStack())


@pytest.mark.parametrize(
    ("on", "lacks"),
    [
        (Ray((5, 8)), "1 CPU"),
        (Ray((2, 2), num_gpus=1), "2 GPU"),
        (Ray(2, resources={"spot": 1}), "1 spot"),
        (Ray((2, 9)), ""),
    ],
)
def test_missing_resources_are_named(on: Ray, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    assert cluster.lacks(on, ray.cluster_resources()) == lacks
    cluster.check_room(on, is_own=False)  # machines may join
    if lacks:
        with raises(UsageError, "not_enough_resources", lacks=lacks):
            cluster.check_room(on, is_own=True)


class Locked:
    """A loss with a lock, so that it cannot be pickled."""

    def __init__(self) -> None:
        self.inner = {"lock": threading.Lock()}

    def __call__(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return y.sum()


def a_closure() -> Any:
    """Return a function with a lock in its closure."""
    lock = threading.Lock()
    return lambda y, t: y.sum() * lock.locked()


@pytest.mark.parametrize(("loss", "attribute"), [(Locked(), "loss.inner.lock"), (a_closure(), "loss.lock")])
def test_unpicklable_attribute_is_named(loss: Any, attribute: str) -> None:
    with raises(UsageError, "cannot_be_pickled", attribute=attribute):
        pickled(a_job(loss=loss))


@pytest.mark.parametrize(("name", "device"), [("evaluator", "cpu"), ("w1", "")])
def test_missing_device_raises_on_workers_only(name: str, device: str) -> None:
    Recipe(a_job(device="cuda:7"), Synchronous(), Ray(), RunConfig(until="epochs>=1"))  # the hub needs none
    actor = WorkerActor.__new__(WorkerActor)
    actor.name = name
    if device:
        assert str(actor._device("cuda:7")) == device
        return
    with raises(UsageError, "missing_device"):
        actor._device("cuda:7")


def test_version_mismatch_raises() -> None:
    hub = {"Python": "3.11", "PyTorch": "2.13.0", "oddlot": "0.1.0"}
    check_versions(hub, hub, "w1")
    mask(host=r"(?<=w1 on )\S+")
    with raises(JobError, "version_mismatch", different={"PyTorch": ("2.13.0", "2.12.1")}):
        check_versions(hub, hub | {"PyTorch": "2.12.1"}, "w1")


def test_full_object_store_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise ray.exceptions.ObjectStoreFullError

    monkeypatch.setattr(ray, "put", full)
    with raises(JobError, "object_store_full"):
        cluster.put(b"")


def test_small_shared_memory_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=64 << 20))
    with warns("small_shared_memory", bytes=64 << 20):
        cluster.check_shared_memory(0)


@pytest.fixture
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "_check_address", lambda _: True)


@pytest.mark.usefixtures("_no_ray")
def test_cluster_without_authentication_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_api, "uses_tokens", lambda: False)
    monkeypatch.setattr(private_api, "is_head", lambda: False)
    with ExitStack() as closing, warns("no_authentication"):
        cluster.connect("10.0.0.5:6379", None, closing)


@pytest.mark.usefixtures("_no_ray")
def test_runtime_env_is_set_only_on_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray uploads folders for a connection, and rejects them for actors."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **settings: given.append(settings["runtime_env"]))
    monkeypatch.setattr(private_api, "is_head", lambda: True)
    with ExitStack() as closing:
        connection = cluster.connect("10.0.0.5:6379", {"working_dir": "."}, closing)
    assert given == [{"working_dir": "."}]
    assert connection[:2] == (True, {})


@pytest.mark.parametrize("is_connected", [False, True])
def test_invalid_runtime_env_raises(is_connected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object, **__: object) -> None:
        raise ValueError("no such folder")

    monkeypatch.setattr(ray, "is_initialized", lambda: is_connected)
    monkeypatch.setattr(private_api, "uploaded", reject)
    monkeypatch.setattr(ray, "init", reject)
    with raises(UsageError, "ray_settings_rejected") as caught:
        cluster.connect("local", {"working_dir": "absent"}, ExitStack())
    assert caught.value.key == "runtime_env"


def test_address_of_an_ended_cluster_is_ignored() -> None:
    """The address of an ended cluster is ignored, because Ray would try to reach it for minutes."""
    with create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert _own_if_stale(address) is None
    assert _own_if_stale(address) == "local"
    assert _own_if_stale(None) is None
