"""Escaping of control characters in text from files. A terminal would execute them."""

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except the tab and the line feed
    "\u2028\u2029"  # other line ends
    "\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # marks that change the text direction
)


def printable(text: object) -> str:
    """Return the text with control characters escaped, as Python escapes them in a string."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))
