"""All uses of Ray's private interface. Each function has its own test."""

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

TOKEN_MODE = "RAY_AUTH_MODE"
"""Environment variable with the authentication mode of a cluster. Drivers and nodes must have the same mode."""


def on_completed(ref: Any, call: Callable[[Any], None]) -> None:
    """Call `call(value)` in a thread of Ray once an object is on this machine. The call must not block.

    If the object has no value, `call` receives an exception. Arrays in it share the memory of the object store.
    """
    # `_on_ready` would not fetch an update from another machine, and the hub would have to wait for it.
    ref._on_completed(call)


def ended_part(error: BaseException) -> Literal["process", "node", "unknown"]:
    """Return the part of the cluster that ended, according to Ray's error about an actor."""
    import ray

    if not isinstance(error, ray.exceptions.ActorDiedError):
        return "unknown"
    text = str(error)
    return (
        "process"
        if "its worker process has died" in text
        else "node"
        if "its node has died" in text
        else "unknown"
    )


def cannot_start(error: BaseException) -> bool:
    """Return whether Ray's error about an actor reports that its class cannot be imported or raised an exception."""
    init_failed = getattr(error, "actor_init_failed", False)
    return init_failed or (ended_part(error) == "process" and "failed to import on the worker" in str(error))


def exception_in(error: BaseException) -> str:
    """Return the last line of a traceback in the text of Ray's error, such as `ModuleNotFoundError: No module ...`."""
    found = re.findall(r"^[\w.]+(?:Error|Exception)\b.*$", str(error), re.MULTILINE)
    return str(found[-1] if found else error)


def node_of(actor: Any) -> tuple[str, str]:
    """Return Ray's id and the IP address of the node of an actor, running or ended. Empty strings if unknown."""
    from ray._private.state import actors

    address = actors(actor._actor_id.hex())["Address"]
    return address["NodeID"], address["IPAddress"]


def draining_nodes() -> dict[str, float]:
    """Return the ids of drained nodes, each with its end in Unix seconds (0: unknown)."""
    from ray._private.state import state

    return {node: milliseconds / 1000 for node, milliseconds in state.get_draining_nodes().items()}


def head_answers(seconds: float) -> bool:
    """Return whether the cluster's head (its GCS) responds within `seconds`."""
    import ray
    from ray._private.worker import global_worker

    try:
        global_worker.gcs_client.internal_kv_get(b"oddlot", None, seconds)
    except (ray.exceptions.RayError, AttributeError):  # there is no client after `ray.shutdown`
        return False
    return True


def new_client(address: str, is_noted: bool) -> Any:
    """Return a client of the head at an address. Raise RayError if the head rejects it, or a token is missing.

    As in `ray.init`, an existing token is sent to a cluster that Ray has noted, in every authentication mode.
    """
    import ray
    from ray._private.authentication import authentication_token_setup as tokens

    if is_noted:
        tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    tokens.ensure_token_if_auth_enabled(create_token_if_missing=False)  # or the client would end this process
    _raylet: Any = ray._raylet  # it is compiled
    return _raylet.GcsClient(address=address)


def uploaded(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Send the folders of a runtime environment to the cluster. Return the environment of actors, with their addresses.

    `ray.init` does this for the environment of a connection only.
    """
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
    from ray._private.worker import global_worker

    folder = global_worker.node.get_runtime_env_dir_path()
    env: dict[str, Any] = upload_py_modules_if_needed(
        dict(runtime_env), include_gitignore=True, scratch_dir=folder
    )
    env = upload_working_dir_if_needed(env, include_gitignore=True, scratch_dir=folder)
    env.pop("excludes", None)  # actors do not take it
    return env


def raylet_link() -> socket.socket:
    """Return a connection to the raylet of this machine. It becomes readable when the raylet ends."""
    from ray._private.worker import global_worker

    link = socket.socket(socket.AF_UNIX)
    link.connect(global_worker.node.raylet_socket_name)
    return link


def head_timeout() -> float:
    """Return the seconds without the cluster's head until Ray ends this process."""
    return float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60"))  # noqa: SIM112 - Ray's name


def filter_messages(rest: Callable[[dict[str, Any]], tuple[dict[str, Any], list[str]]]) -> Callable[[], None]:
    """Filter each message of Ray and each output of workers with `rest`. Return a function that removes the filter.

    `rest` returns the message with the lines that Ray prints, and lines that are printed even if other workers have
    printed the same.
    """
    from ray._private import worker

    plain = worker.print_to_stdstream

    def print_rest(data: dict[str, Any], ignore_prefix: bool) -> None:
        left, lines = rest(data)
        if left["lines"]:
            plain(left, ignore_prefix)
        if lines:
            worker.print_worker_logs({**data, "lines": lines}, sys.stderr, ignore_prefix)

    _print_with(print_rest)
    return lambda: _print_with(plain)


def _print_with(call: Callable[..., None]) -> None:
    """Make Ray print with this function, even on an existing connection with Ray's own function."""
    from ray._private import worker

    before, outputs = worker.print_to_stdstream, worker.global_worker_stdstream_dispatcher
    worker.print_to_stdstream = call
    with outputs._lock:
        outputs.handlers = [
            (name, partial(call, **bound.keywords) if getattr(bound, "func", None) is before else bound)
            for name, bound in outputs.handlers
        ]


def output_files() -> list[str]:
    """Return the files with the output of this worker process."""
    from ray._private.worker import global_worker

    paths = [global_worker.get_out_file_path(), global_worker.get_err_file_path()]
    return [path for path in paths if path]


def noted_cluster() -> str | None:
    """Return the address that Ray noted for a cluster on this machine, running or ended, or None."""
    from ray._private.utils import read_ray_address

    noted: str | None = read_ray_address()
    return noted or None


def is_head() -> bool:
    """Return whether this process has started its cluster."""
    import ray

    node: Any = ray._private.worker._global_node
    return bool(node.is_head())


def uses_tokens() -> bool:
    """Return whether this process uses tokens to authenticate itself."""
    import ray

    _raylet: Any = ray._raylet  # it is compiled
    return bool(_raylet.get_authentication_mode() != _raylet.AuthenticationMode.DISABLED)


def quiet_environment() -> dict[str, str]:
    """Return environment variables to be set for a cluster that is started for one run. Existing variables stay."""
    wanted = {"RAY_USAGE_STATS_ENABLED": "0"}
    return {name: value for name, value in wanted.items() if name not in os.environ}
