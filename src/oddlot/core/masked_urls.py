"""Passwords in URLs are never shown."""

import re

_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"]*):([^\s@\"]+)(?=@)")


def masked(text: str) -> str:
    """The text with `***` in place of every password in a URL, as in `s3://user:***@host/run`."""
    return _PASSWORD.sub(r"\1:***", text)


def passwords(text: str) -> list[str]:
    """Those of the URLs in the text."""
    return [found[2] for found in _PASSWORD.finditer(text)]
