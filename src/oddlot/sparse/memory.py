"""How much memory there is, so that nobody has to be killed to learn it."""

import os


def check_memory(bytes_needed: int, what: str) -> None:
    """MemoryError: it needs more than this machine has."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if bytes_needed > has:
        raise MemoryError(f"{what} needs {bytes_needed / 1e9:,.1f} GB, this machine has {has / 1e9:,.1f} GB")
