"""The connection to a Ray cluster, checks of its resources and memory, and `put` for its object store."""

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.engines.ray import private_api
from oddlot.engines.ray.head_probe import check_head, is_open, no_cluster
from oddlot.engines.ray.ray_messages import RayMessages
from oddlot.engines.ray.settings import RaySettings
from oddlot.engines.ray.threads import in_thread

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Address that other machines cannot reach. On Linux, Ray replaces 127.0.0.1 by an external address."""
OWN_CLUSTER: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": LOOPBACK}
"""Settings of a cluster that is started for one run. It accepts connections from this machine only."""
HEAD_SECONDS = 2.0
"""Longest wait for a reply of the head, in seconds."""
SHARED_MEMORY = "/dev/shm"
MIN_SHARED_BYTES = 1 << 30
"""Minimum size of the shared-memory folder. A smaller folder causes a warning."""


class Connection(NamedTuple):
    """A connection to a cluster."""

    is_own: bool
    """Whether the cluster was started for this run."""
    runtime_env: Mapping[str, Any]
    """The runtime environment of actors, in addition to the environment of the connection."""
    messages: RayMessages


def connect(address: str | None, runtime_env: Mapping[str, Any] | None, closing: ExitStack) -> Connection:
    """Connect to the cluster of `address`, or start one on this machine.

    An existing connection of the program is used, and stays open. Raise UsageError if Ray is not installed, the cluster
    does not respond, or Ray rejects the runtime environment.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        message = 'the Ray engine needs Ray: pip install "ray>=2.58"'
        more = "" if error.name == "ray" else f" ({error})"
        raise UsageError(f"{message}{more}", "not_installed", package="ray") from None
    except ImportError as error:
        message = f"Ray cannot be imported: {error}"
        raise UsageError(message, "not_importable", package="ray", reason=str(error)) from None
    messages = RayMessages()
    closing.callback(private_api.filter_messages(messages.rest))
    if ray.is_initialized():
        try:
            return Connection(False, private_api.uploaded(runtime_env or {}), messages)
        except (ValueError, TypeError, RuntimeError) as error:
            raise _bad_settings(error, runtime_env) from error
    address = address or os.environ.get("RAY_ADDRESS") or _own_if_stale(private_api.noted_cluster())
    _check_address(address or "auto")
    os.environ.update(private_api.quiet_environment())
    with _own_sigterm():
        try:
            ray.init(
                address=address,
                runtime_env=dict(runtime_env or {}),
                logging_level=logging.ERROR,
                **(OWN_CLUSTER if address in {None, "local"} else {}),
            )
        except (ValueError, TypeError) as error:
            raise _bad_settings(error, runtime_env) from error
        except (ConnectionError, TimeoutError, RuntimeError, ray.exceptions.RayError) as error:
            raise no_cluster(address or "this machine", str(error)) from error
        except OSError as error:  # such as a path that is too long for a socket, or a full disk
            message = (
                f"Ray cannot use its folder for temporary files: {error}. Set RAY_TMPDIR to a folder with a short "
                "path, such as RAY_TMPDIR=/tmp"
            )
            raise UsageError(message, "ray_folder_unusable", reason=str(error)) from error
    closing.callback(ray.shutdown)
    is_own = private_api.is_head()
    if not is_own and not private_api.uses_tokens():
        warn(
            "the Ray cluster has no authentication: anyone who reaches its ports can run code on all nodes. Set "
            f"{private_api.TOKEN_MODE}=token on all nodes and for this command (ray get-auth-token --generate), and "
            "close the ports to other networks",
            "no_authentication",
        )
    return Connection(is_own, {}, messages)


def _bad_settings(error: Exception, runtime_env: object) -> UsageError:
    what, key = ("runtime environment", "runtime_env") if runtime_env else ("settings of this run", "")
    message = f"Ray does not accept the {what}: {error}"
    return UsageError(message, "ray_settings_rejected", key, reason=str(error))


def _own_if_stale(noted: str | None) -> str | None:
    """Return `local` if the cluster that Ray has noted on this machine does not respond, else None."""
    return "local" if noted and _is_host_and_port(noted) and not is_open(noted) else None


def _check_address(address: str) -> None:
    """Raise UsageError if no cluster responds at HOST:PORT. Other forms of addresses are not checked."""
    if "://" in address:
        message = (
            f"{address} is an address of Ray Client: run the command on a node of the cluster, for example with "
            "`ray job submit`, and use HOST:PORT or auto"
        )
        raise UsageError(message, "ray_client_address", "address", address=address)
    is_noted = address == "auto"
    if is_noted:
        address = private_api.noted_cluster() or address
    if _is_host_and_port(address):
        check_head(address, is_noted)


def _is_host_and_port(address: str) -> bool:
    return bool(re.fullmatch(r".+:\d+", address))


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM. `ray.init` would replace it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_room(settings: RaySettings, is_own: bool) -> None:
    """Raise UsageError if a cluster that was started for this run has no room for the minimum number of workers."""
    import ray

    lacking = lacks(settings, ray.cluster_resources()) if is_own else ""
    if lacking:
        raise UsageError(
            f"this machine lacks {lacking}: the least number of workers is {settings.min_workers}, and each needs "
            f"{_text(settings.needs)}. Use fewer workers, lower num_cpus, num_gpus or resources, or connect to a "
            "cluster with `address`",
            "not_enough_resources",
            "workers",
            workers=settings.min_workers,
            lacks=lacking,
        )


def lacks(settings: RaySettings, there: Mapping[str, float]) -> str:
    """Return a text with the resources that are missing for the minimum number of workers, or an empty string."""
    total = {name: amount * settings.min_workers for name, amount in settings.needs.items()}
    missing = {
        name: amount - there.get(name, 0.0) for name, amount in total.items() if amount > there.get(name, 0.0)
    }
    return _text(missing)


def fits(settings: RaySettings, node: Mapping[str, float]) -> bool:
    """Return whether a node with these resources has room for a worker."""
    kinds = [settings.needs, settings.on_demand_needs] if settings.buying else [settings.needs]
    return any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for needs in kinds)


def waiting_for(settings: RaySettings, ready: int, avoided: Collection[str] = ()) -> tuple[str, bool]:
    """Return a text about the workers that are missing, and whether nodes must join the cluster.

    `ready` is the number of workers that are ready. `avoided` are Ray's ids of nodes that get no workers.
    """
    import ray

    def ask() -> tuple[dict[str, float], list[Any]]:
        return ray.cluster_resources(), ray.nodes()

    message = f"{ready} of at least {settings.min_workers} workers are ready"
    try:
        resources, nodes = in_thread(ask).result(HEAD_SECONDS)
    except TimeoutError:
        return f"{message}, and the head of the cluster does not answer", True
    lacking = lacks(settings, resources)
    large = {node["NodeID"] for node in nodes if node["Alive"] and fits(settings, node["Resources"])}
    why = "they are starting, or their resources are in use"
    has_room = bool(large)
    if not lacking and not has_room:
        why = f"no node has {_text(settings.needs)}, which each worker needs. Nodes that join get workers"
    elif lacking:
        why = f"the cluster lacks {lacking}. Nodes that join, by hand or by an autoscaler, get workers"
    elif large <= set(avoided):
        why = f"all {len(large)} nodes with room get no workers for now, as said above. Nodes that join get workers"
        has_room = False
    is_missing = bool(lacking) or not has_room
    return f"{message}: {why}", is_missing


def check_shared_memory(needed: int) -> None:
    """Warn if the shared-memory folder of this machine is small, as it is in containers by default."""
    try:
        total = shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return  # this system has no such folder
    least = max(MIN_SHARED_BYTES, needed)
    if total < least:
        warn(
            f"{SHARED_MEMORY} has {total / 1e6:,.0f} MB, but at least {least / 1e6:,.0f} MB are useful: without them "
            "Ray keeps tensors on disk. For containers, use --shm-size (Docker) or an emptyDir of medium Memory",
            "small_shared_memory",
            bytes=total,
            least=least,
        )


def put(value: Any) -> Any:
    """Put a value into the object store. Raise JobError if it is full."""
    import ray

    try:
        return ray.put(value)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        message = (
            "Ray's object store is full, on disk too. Give nodes more (ray start --object-store-memory=BYTES), or use "
            f"fewer workers: {error}"
        )
        raise JobError(message, "object_store_full", reason=str(error)) from None


def _text(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount)
