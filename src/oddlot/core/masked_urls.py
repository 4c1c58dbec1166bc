"""Masking of passwords in URLs."""

import re

_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"]*):([^\s@\"]+)(?=@)")


def masked(text: str) -> str:
    """Return the text with every password in a URL replaced, as in `s3://user:***@host/run`."""
    return _PASSWORD.sub(r"\1:***", text)


def passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in a text."""
    return [found[2] for found in _PASSWORD.finditer(text)]
