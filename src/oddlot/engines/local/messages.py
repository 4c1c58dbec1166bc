"""Messages between hub or launcher, fork server, and workers or peers.

A message has a binary header with a checksum and a small JSON body, and no pickle.
"""

import json
from collections.abc import Iterable
from enum import IntEnum
from math import isfinite
from typing import Any, get_args

from oddlot.core.events import Cancelled, Evaluated
from oddlot.core.support.errors import OddlotError
from oddlot.core.support.serialization import Misfit, from_plain
from oddlot.core.tasks import Facts, Kind, NodeId
from oddlot.wire.framing import FrameError, pack, unpack

LONGEST_BYTES = 1 << 16


class Say(IntEnum):
    """The kinds of messages."""

    FORK = 1
    FORKED = 2
    EXITED = 3
    QUIT = 4
    KILL = 5
    NOT_FORKED = 6
    TASK = 10
    ABORT = 11
    EVALUATE = 12
    SLOW = 13
    HAND_OVER = 14
    BEGIN = 15
    INJECT = 16
    STOP = 17
    READY = 20
    DONE = 21
    CANCELLED = 22
    EVALUATED = 23
    FAILED = 24
    LEAVING = 25
    WARNED = 26
    ALIVE = 27


def encode(kind: Say, **body: Any) -> bytes:
    """Return the frame of a message. Raise OddlotError if it is longer than `LONGEST_BYTES`."""
    frame = pack(kind, json.dumps(body, separators=(",", ":")).encode())
    if len(frame) > LONGEST_BYTES:
        message = f"a message {kind.name} of {len(frame)} bytes is longer than {LONGEST_BYTES}"
        raise OddlotError(message, "message_too_long", kind=kind.name, bytes=len(frame))
    return frame


def decode(frame: bytes) -> tuple[Say, dict[str, Any]]:
    """Return the message in a frame. Raise FrameError if it is invalid."""
    number, text = unpack(frame)
    try:
        kind, body = Say(number), json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"a frame of kind {number} is not a message: {error}"
        raise FrameError(message, "not_a_message", kind=number, reason=str(error)) from None
    if type(body) is not dict:
        raise FrameError(f"a message {kind.name} has no body", "message_without_body", kind=kind.name)
    return kind, body


def read_facts(plain: Any, sender: NodeId) -> Facts:
    """Return the facts of a worker's update. Raise FrameError if they are invalid."""
    facts: Facts = _read(Facts, plain)
    counts = (facts.based_on, facts.samples, facts.bytes_up, facts.bytes_down, facts.bytes_data)
    known = type(facts.id) is str and facts.sender == sender and facts.kind in get_args(Kind)
    if not known or facts.read is not None or not all(type(count) is int and count >= 0 for count in counts):
        raise FrameError(f"invalid facts: {facts}", "invalid_facts", facts=facts)
    _check_finite([0.0 if facts.loss is None else facts.loss, *facts.seconds.values()])
    return facts


def read_cancelled(body: dict[str, Any], node: NodeId) -> Cancelled:
    """Return the end of a task without an update. Raise FrameError if its numbers of bytes are invalid."""
    brought = body.get("bytes_down", 0), body.get("bytes_data", 0)
    if not all(type(count) is int and count >= 0 for count in brought):
        raise FrameError(f"invalid numbers of bytes: {brought}", "invalid_bytes", bytes=brought)
    return Cancelled(str(body.get("task")), node, *brought)


def read_evaluated(plain: Any) -> Evaluated:
    """Return the metrics of a version. Raise FrameError if they are invalid."""
    message: Evaluated = _read(Evaluated, plain)
    if type(message.version) is not int:
        raise FrameError(f"invalid version {message.version!r}", "invalid_version", version=message.version)
    _check_finite(message.metrics.values())
    return message


def _read(kind: type, plain: Any) -> Any:
    try:
        return from_plain(kind, plain)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, Misfit) else repr(error)
        message = f"not a valid {kind.__name__}: {reason}"
        raise FrameError(message, "wrong_fields", kind=kind.__name__, reason=reason) from None


def _check_finite(numbers: Iterable[float | None]) -> None:
    if not all(number is not None and isfinite(number) for number in numbers):
        given = list(numbers)
        raise FrameError(f"not finite numbers: {given}", "numbers_not_finite", numbers=given)
