"""What hub, fork server and workers say to each other: a checked binary header and a small JSON body, no pickle."""

import json
from enum import IntEnum
from typing import Any

from oddlot.wire.framing import pack, unpack

LONGEST_BYTES = 1 << 16


class Say(IntEnum):
    """The kinds of messages."""

    FORK = 1
    FORKED = 2
    EXITED = 3
    QUIT = 4
    TASK = 10
    ABORT = 11
    EVALUATE = 12
    READY = 20
    DONE = 21
    CANCELLED = 22
    EVALUATED = 23
    FAILED = 24


def encode(kind: Say, **body: Any) -> bytes:
    """One message, of less than `LONGEST_BYTES` bytes."""
    return pack(kind, json.dumps(body, separators=(",", ":")).encode())


def decode(frame: bytes) -> tuple[Say, dict[str, Any]]:
    """The message in a frame; `FrameError` when it is damaged."""
    kind, body = unpack(frame)
    return Say(kind), json.loads(body)
