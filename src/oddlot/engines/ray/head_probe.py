"""Check of the head of a Ray cluster: open port, TLS and token. Ray itself would retry for minutes."""

import os
import socket
import ssl

from oddlot.core.support.errors import UsageError
from oddlot.engines.ray import private_api
from oddlot.engines.ray.threads import in_thread

CONNECT_SECONDS = 4.0
"""Longest time for a connection, for each reply on it, and for a request to the head, in seconds."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Preface of HTTP/2 with empty settings, the start of a gRPC connection (RFC 9113, section 3.4)."""
SETTINGS_FRAME = 4


def check_head(address: str, is_noted: bool = False) -> None:
    """Raise UsageError with the likely reason if no cluster at HOST:PORT accepts this process.

    This takes at most 20 s. `is_noted`: the address is Ray's note of a cluster on this machine.
    """
    if not is_open(address):
        raise no_cluster(address, "the port is closed or cannot be reached")
    uses_tls = os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}
    if _is_grpc(address, tls=uses_tls):
        _check_token(address, is_noted)
    elif uses_tls and _is_grpc(address, tls=False):
        raise _rejection(address, "it does not use TLS, but RAY_USE_TLS is set here. Unset it", "tls")
    elif _has_tls(address):
        message = "the TLS certificates do not fit" if uses_tls else "it uses TLS. Set RAY_USE_TLS=1"
        files = "RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT"
        raise _rejection(address, f"{message}. Use the files of its nodes ({files})", "tls")
    else:
        raise no_cluster(address, "what accepts connections there does not answer as a head does")


def is_open(address: str) -> bool:
    """Return whether HOST:PORT accepts a connection."""
    try:
        _connect(address).close()
    except (OSError, OverflowError):
        return False
    return True


def no_cluster(address: str, reason: str) -> UsageError:
    """Return the error for an address without a cluster."""
    message = (
        f"no Ray cluster answers at {address} ({reason}): start one (ray start --head), or correct the address. The "
        "port of a head is 6379 unless it was started with another --port"
    )
    return UsageError(message, "no_cluster", "address", address=address, reason=reason)


def _check_token(address: str, is_noted: bool) -> None:
    import ray

    try:
        in_thread(lambda: private_api.new_client(address, is_noted)).result(CONNECT_SECONDS)
    except TimeoutError:
        message = "it does not answer a request. Look at the logs of the head"
        raise _rejection(address, message, "silence") from None
    except ray.exceptions.AuthenticationError:
        message = (
            f"the token is missing or wrong. Set {private_api.TOKEN_MODE}=token and use the token of its nodes "
            "(RAY_AUTH_TOKEN, or the file ~/.ray/auth_token)"
        )
        raise _rejection(address, message, "token") from None
    except ray.exceptions.RayError as error:
        raise no_cluster(address, str(error)) from None


def _rejection(address: str, why: str, cause: str) -> UsageError:
    message = f"{address} does not accept the connection: {why}"
    return UsageError(message, "cluster_rejected", "address", address=address, cause=cause)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)


def _is_grpc(address: str, *, tls: bool) -> bool:
    """Return whether an HTTP/2 server responds, such as gRPC."""
    try:
        with _connect(address) as plain, _context(checked=True).wrap_socket(plain) if tls else plain as link:
            link.sendall(GREETING)
            return link.recv(9)[3:4] == bytes([SETTINGS_FRAME])
    except (OSError, TypeError):  # for example without certificate files
        return False


def _has_tls(address: str) -> bool:
    """Return whether a TLS server responds, with any certificate."""
    try:
        with _connect(address) as plain, _context(checked=False).wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _context(*, checked: bool) -> ssl.SSLContext:
    """Return the settings of a TLS connection, with Ray's certificate files if `checked`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if checked:
        context.load_verify_locations(os.environ.get("RAY_TLS_CA_CERT"))
        context.load_cert_chain(
            os.environ.get("RAY_TLS_SERVER_CERT", ""), os.environ.get("RAY_TLS_SERVER_KEY")
        )
    else:
        context.verify_mode = ssl.CERT_NONE
    return context
