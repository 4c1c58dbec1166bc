"""Encoding of messages between processes."""

from oddlot.core.support.errors import OddlotError
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode
from tests.transcripts import raises


def test_longest_message_is_encoded_and_a_longer_one_rejected() -> None:
    room = LONGEST_BYTES - len(encode(Say.FAILED, text=""))
    assert decode(encode(Say.FAILED, text="x" * room)) == (Say.FAILED, {"text": "x" * room})
    with raises(OddlotError, "message_too_long", kind="FAILED", bytes=LONGEST_BYTES + 1):
        encode(Say.FAILED, text="x" * (room + 1))
