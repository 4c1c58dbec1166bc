"""A web server for the page, on this machine only."""

import errno
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from oddlot.core.support.errors import UsageError
from oddlot.demo.site import INDEX, POLICY, TYPES, Site

HOST = "127.0.0.1"
PORT = 8640
TRIES = 20
"""Number of ports to try, from the given port on."""
MAX_PORT = 65_535
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Serves the files of a page on 127.0.0.1. Port 0 stands for any free port."""

    daemon_threads = True
    allow_reuse_port = False

    def __init__(self, pages: Site, port: int) -> None:
        self.pages = pages
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def run(self) -> None:
        """Serve the page until Ctrl-C."""
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            return

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless the browser has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(pages: Site, port: int = PORT) -> PageServer:
    """Return a server on this port or, if it is busy, on the next free one.

    Raise UsageError if none of `TRIES` ports is free, or if this user may not open the port.
    """
    last = min(port + TRIES - 1, MAX_PORT)
    for number in range(port, last + 1):
        try:
            return PageServer(pages, number)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                message = f"cannot open port {number}: {reason}. Name another one with --port"
                raise UsageError(message, "unusable_port", port=number, reason=reason) from error
    message = f"the ports {port} to {last} are in use: name another one with --port"
    raise UsageError(message, "no_free_port", port=port, last=last)


class _Handler(BaseHTTPRequestHandler):
    """Replies to GET and HEAD with a file of the page."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "oddlot", ""

    def do_GET(self) -> None:
        if (content := self._head()) is not None:
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self._head()

    def _head(self) -> bytes | None:
        """Send the status and the headers. Return the content, or None if there is no such file."""
        name = urlsplit(self.path).path.removeprefix("/") or INDEX
        content = self.server.pages.get(name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[PurePosixPath(name).suffix])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def end_headers(self) -> None:
        """Add the headers of all replies."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing."""
