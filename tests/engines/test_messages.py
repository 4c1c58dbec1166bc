"""Words between processes."""

import pytest

from oddlot.core.errors import OddlotError
from oddlot.engines.messages import LONGEST_BYTES, Say, decode, encode


def test_a_message_comes_back_up_to_its_longest_and_no_further() -> None:
    room = LONGEST_BYTES - len(encode(Say.FAILED, text=""))
    assert decode(encode(Say.FAILED, text="x" * room)) == (Say.FAILED, {"text": "x" * room})
    with pytest.raises(OddlotError, match=r"a message FAILED of 65537 bytes is longer than 65536"):
        encode(Say.FAILED, text="x" * (room + 1))
