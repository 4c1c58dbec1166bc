"""Suggestions for unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most similar to `word`, ignoring case; None if none is similar."""
    folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def or_nearest(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a suggestion and the available names."""
    choices = sorted(choices)
    meant = nearest(word, choices)
    names = ", ".join(choices) or "none"
    return f"Did you mean {meant!r}? Available: {names}" if meant else f"Available: {names}"
